#!/bin/sh
# An alert rule with a command: the server runs a program when messages become dead letters.
#
#   sh examples/alerts.sh demo-alerts
#
# It starts a server of its own. Other sinks are webhooks and mail: docs/alerts.md.

folder=$1
mkdir -p "$folder"
cat > "$folder/notify.sh" << 'END'
#!/bin/sh
# The notice is JSON on stdin; level, rule and kind of notice are in the environment.
echo "$YIRANGMQ_ALERT_LEVEL $YIRANGMQ_ALERT_RULE $YIRANGMQ_ALERT_NOTICE" >> "$0.log"
grep -o '"subject": *"[^"]*"' >> "$0.log"
END
cat > "$folder/server.json" << END
{"data": "$folder", "alerts": {
    "everySec": 1,
    "rules": {"dead_letters": {"limit": 1, "level": "CRITICAL"}},
    "sinks": [{"kind": "command", "name": "pager", "run": ["sh", "$folder/notify.sh"]}]}}
END

yirangmq serve --config "$folder/server.json" --http off > "$folder/serve.log" 2>&1 &
trap 'kill $! && wait $!' EXIT
until grep -q 'is ready' "$folder/serve.log"; do sleep 0.1; done

server=unix:$folder/yirangmq.sock
yirangmq policy set --store "$server" --queue mail '{"retry": {"limit": 0}}' > /dev/null
yirangmq publish --store "$server" --queue mail '{"to": "nobody"}' > /dev/null
yirangmq consume --store "$server" --queue mail --exec false --max 1 2> /dev/null

until grep -q subject "$folder/notify.sh.log" 2> /dev/null; do sleep 0.1; done
cat "$folder/notify.sh.log"
yirangmq alert list --store "$server" --json | grep -o '"rule": *"[a-z_]*"'
