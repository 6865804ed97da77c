#!/bin/sh
# A consumer in shell: leases one message at a time over HTTP on a unix socket, and acks it when its work is done.
#
#   yirangmq serve --http unix:yirang-data/http.sock &
#   printf '{"n": 1}\n{"n": 2}\n' | sh examples/publish.sh yirang-data/http.sock jobs
#   sh examples/consume.sh yirang-data/http.sock jobs
#
# Needs curl. It ends after a second without a message. 'yirangmq consume --exec' does more: see legacy.sh.

socket=$1
url=http://localhost/v1/queues/$2

post() {
    curl -sS --fail-with-body --unix-socket "$socket" -H 'Content-Type: application/json' --data-binary "$2" "$url/$1"
}

while true; do
    answer=$(post lease '{"max": 1, "waitSec": 1, "leaseSec": 60, "consumer": "shell"}') || exit 1
    lease=$(printf '%s' "$answer" | sed -n 's/.*"leaseId":"\([^"]*\)".*/\1/p')
    [ -n "$lease" ] || break
    payload=$(printf '%s' "$answer" | sed -n 's/.*"payload":\(.*\)}}\]}$/\1/p')

    if echo "working on $payload"; then # the work; its exit code decides
        post ack "{\"leases\": [\"$lease\"]}" > /dev/null || exit 1
    else
        post nack "{\"leases\": [\"$lease\"], \"text\": \"the work failed\"}" > /dev/null || exit 1
    fi
done
echo "the queue is empty"
