#!/bin/sh
# Load a file: each line of JSON becomes a message, checked to the last line before the first is stored.
#
#   sh examples/load.sh demo.db

db=$1
printf '{"n": 1}\n{"n": 2}\n{"n": 3}\n' > good.jsonl
printf '{"n": 4}\n{"n": \n' > bad.jsonl

yirangmq publish --db "$db" --queue loaded --lines --file good.jsonl
yirangmq publish --db "$db" --queue loaded --lines --file bad.jsonl || echo "refused as a whole, exit code $?"

# From a program: a line is stored as soon as it comes.
seq 4 6 | yirangmq publish --db "$db" --queue loaded --lines --file -
yirangmq consume --db "$db" --queue loaded --raw --max 10
rm -f good.jsonl bad.jsonl
