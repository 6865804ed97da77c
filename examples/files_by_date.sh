#!/bin/sh
# Files by date: each accepted message and its outcome as a line of JSON, in a folder for each day.
#
#   yirangmq serve --files-by-date on &
#   sh examples/files_by_date.sh unix:yirang-data/yirangmq.sock yirang-data/by-date

server=$1 folder=$2
yirangmq publish --store "$server" --queue payments --id payment-17 '{"cents": 500}' > /dev/null
yirangmq consume --store "$server" --queue payments --consumer-id teller-3 > /dev/null

# The lines are on disk before the server replies. grep, jq and Spark read them.
cat "$folder"/*/*.jsonl | grep '"payment-17"' | grep -o '"record":"[a-z]*"\|"state":"[a-z]*"\|"consumerId":"[^"]*"'
yirangmq files show --store "$server" --id payment-17 --payload
echo
