#!/bin/sh
# etcd and etcdctl for the tests of the cluster, in .tools/etcd. Those found by name on this machine are taken as they are.
set -eu
if command -v etcd >/dev/null 2>&1 && command -v etcdctl >/dev/null 2>&1; then exit 0; fi
exec "$(dirname "$0")/unpack.sh" .tools/etcd "etcd-server etcd-client" usr/bin/etcd usr/bin/etcdctl
