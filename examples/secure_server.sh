#!/bin/sh
# A server with TLS and a token, and a second token that may only publish to one queue.
#
#   sh examples/secure_server.sh demo-tls 9000 8000
#
# Needs openssl and curl. It starts a server of its own. docs/guides/secure-server.md explains each step.

folder=$1 tcp=$2 http=$3
umask 077
mkdir -p "$folder"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=example" \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" -keyout "$folder/key.pem" -out "$folder/cert.pem" 2> /dev/null
yirangmq token new --file "$folder/token" > /dev/null
shop=$(yirangmq token new)
cat > "$folder/server.json" << END
{"data": "$folder", "token_file": "$folder/token", "tls_cert": "$folder/cert.pem", "tls_key": "$folder/key.pem",
 "http_tokens": [{"token": "$shop", "scopes": ["publish"], "queues": ["orders"]}]}
END

yirangmq serve --config "$folder/server.json" --tcp "127.0.0.1:$tcp" --http "127.0.0.1:$http" > "$folder/serve.log" 2>&1 &
trap 'kill $! && wait $!' EXIT
until grep -q 'is ready' "$folder/serve.log"; do sleep 0.1; done

post() { # a request with the token of the shop; print its status
    curl -s -o /dev/null -w "$1: %{http_code}\n" --cacert "$folder/cert.pem" -H "Authorization: Bearer $shop" \
        -H 'Content-Type: application/json' --data-binary '{"order": 17}' "https://127.0.0.1:$http/v1/queues/$1"
}
post orders/messages
post salaries/messages
post orders/lease

export YIRANGMQ_CA="$folder/cert.pem"
yirangmq status --store "tls://127.0.0.1:$tcp" > /dev/null 2>&1 || echo "without a token: exit code $?"
export YIRANGMQ_TOKEN="$(cat "$folder/token")"
yirangmq consume --store "tls://127.0.0.1:$tcp" --queue orders --raw
