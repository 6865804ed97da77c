#!/bin/sh
# The HTTP API with curl: publish, lease, ack, nack, and the dead letters.
#
#   yirangmq serve &
#   sh examples/http_api.sh http://127.0.0.1:8080
#
# Needs curl. A server with tokens also needs -H "Authorization: Bearer $TOKEN".

url=$1/v1/queues/letters

call() {
    curl -sS --fail-with-body -X "$1" -H 'Content-Type: application/json' ${3:+--data-binary "$3"} "$url$2" || exit 1
}
lease_id() {
    sed -n 's/.*"leaseId":"\([^"]*\)".*/\1/p'
}

call PUT /policy '{"retry": {"limit": 0}}' > /dev/null # the first failure is final
call POST /messages '[{"to": "ann"}, {"to": "nobody"}]' | grep -o '"stored":[0-9]*'

lease=$(call POST /lease '{"max": 1, "leaseSec": 60}' | lease_id)
call POST /ack "{\"leases\": [\"$lease\"]}" | grep -o '"ok":true'

lease=$(call POST /lease '{"max": 1, "leaseSec": 60}' | lease_id)
call POST /nack "{\"leases\": [\"$lease\"], \"reason\": \"REJECTED\", \"text\": \"no such person\"}" > /dev/null

call GET /dead-letters | grep -o '"reasonMessage":"[^"]*"'
call POST /dead-letters/purge '{"all": true}' | grep -o '"count":[0-9]*'
