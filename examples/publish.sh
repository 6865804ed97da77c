#!/bin/sh
# A producer in shell: each line of stdin becomes a message, over HTTP on a unix socket.
#
#   yirangmq serve --http unix:yirang-data/http.sock &
#   printf '{"n": 1}\n{"n": 2}\n' | examples/publish.sh yirang-data/http.sock mail
#
# Needs curl. Status 200 means that the message is on disk. A script that has all its lines in a file sends them in one
# request, with curl --data-binary @lines.jsonl and the content type application/x-ndjson.

socket=$1
url=http://localhost/v1/queues/$2/messages
published=0

while IFS= read -r line; do
    answer=$(printf '%s' "$line" | curl -sS --fail-with-body --unix-socket "$socket" \
        -H 'Content-Type: application/json' --data-binary @- "$url") || {
        echo "publish.sh: $answer; $published before it are on disk" >&2
        exit 1
    }
    published=$((published + 1))
done
echo "$published on disk"
