#!/bin/sh
# Export and import: move queues with their policies, states and dead letters to another store, here of another kind.
#
#   sh examples/export_import.sh demo.db demo-queues

db=$1 folder=$2
yirangmq policy set --db "$db" --queue moved '{"retry": {"limit": 0}}' > /dev/null
yirangmq publish --db "$db" --queue moved --id m-1 '{"n": 1}' > /dev/null
yirangmq publish --db "$db" --queue moved --id m-2 --delay 3600 '{"n": 2}' > /dev/null
yirangmq publish --db "$db" --queue moved --id m-3 --priority 0 '{"n": 3}' > /dev/null
yirangmq consume --db "$db" --queue moved --exec false --max 1 2> /dev/null # m-3 fails

yirangmq export exported.jsonl --db "$db" --queue moved --force
yirangmq import exported.jsonl --path "$folder"
yirangmq import exported.jsonl --path "$folder" # a second import adds nothing

for id in m-1 m-2 m-3; do
    yirangmq show "$id" --path "$folder" --queue moved --json | grep -o '"state":"[a-z]*"'
done
rm -f exported.jsonl
