#!/bin/sh
# Back up a running server, and restore the queues into a new data folder.
#
#   yirangmq serve &
#   sh examples/backup.sh yirang-data/queue.db restored
#
# For a copy of the SQLite file, and for topics, see docs/guides/backup.md.

db=$1 folder=$2
yirangmq publish --db "$db" --queue kept '{"n": 1}' > /dev/null
yirangmq publish --db "$db" --queue kept '{"n": 2}' > /dev/null

# Each queue at one moment, while producers and consumers go on. The file appears when it is complete. This command
# reads the store itself; the others notice that a server holds it, and call the server.
yirangmq export --db "$db" --queue kept backup.jsonl --force
tail -n 1 backup.jsonl

# The disk is lost: a new folder, the same queues. A server on it: yirangmq serve --data restored
yirangmq import backup.jsonl --db "$folder/queue.db"
yirangmq check --db "$folder/queue.db"
yirangmq consume --db "$folder/queue.db" --queue kept --raw --max 2

yirangmq purge --db "$db" --queue kept --all > /dev/null
rm -rf backup.jsonl "$folder"
