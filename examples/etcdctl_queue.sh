#!/bin/sh
# A dispatched queue in etcd with etcdctl alone: a producer puts keys, a consumer watches and deletes them.
#
#   yirangmq cluster serve --store etcd://127.0.0.1:2379 &
#   sh examples/etcdctl_queue.sh
#
# Needs etcd with etcdctl and `yirangmq[etcd]`. Other members: ETCDCTL_ENDPOINTS and YIRANGMQ_ETCD. docs/cluster.md
# explains the keys.

queue=/q/letters
export ETCDCTL_API=3

# Register the consumer "me", on a lease: if this script dies, its messages go to other consumers after 60 s.
lease=$(etcdctl lease grant 60 | cut -d ' ' -f 2)
etcdctl put "$queue/c/me/" my-host --lease "$lease" > /dev/null

# Produce: any key in the inbox.
etcdctl put "$queue/p/shop/k1" '{"to": "ann"}' > /dev/null
etcdctl put "$queue/p/shop/k2" '{"to": "bob"}' > /dev/null

# Consume: the node puts the messages for "me" under its key. Deleting a key is the ack.
done=0
while [ "$done" -lt 2 ]; do
    for key in $(etcdctl get --prefix "$queue/c/me/0" --keys-only); do
        echo "message ${key##*/}: $(etcdctl get "$key" --print-value-only)"
        etcdctl del "$key" > /dev/null
        done=$((done + 1))
    done
done
etcdctl lease revoke "$lease" > /dev/null
echo "$done acked"
