#!/bin/sh
# The HTTP queue under /mq: draft a message, set its content, order the next id, get the content, complete it.
#
#   yirangmq serve &
#   sh examples/http_queue.sh http://127.0.0.1:8080
#
# Needs curl. A web page uses the same five requests with fetch: docs/guides/http-queue-browser.md.

url=$1/mq/letters.mq

call() {
    curl -sS --fail-with-body -X "$@" || exit 1
}

# The producer: a draft has an id and no content yet.
id=$(call POST "$url/messages" -H 'Content-Type: application/json' --data-binary '{"priority": null}')
call PUT "$url/messages/$id" -H 'Content-Type: text/plain' --data-binary 'dear ann'
echo "set a draft"

# The consumer: order waits for a message, get leases it.
next=$(call GET "$url/messages")
[ "$next" = "$id" ] && echo "ordered the same id"
echo "got: $(call GET "$url/messages/$next")"
call PATCH "$url/messages/$next/complete"
call GET "$url/stats" | grep -o '"completed":[0-9]*'
call DELETE "$url" # clear: the counters too
