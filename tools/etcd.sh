#!/bin/sh
# etcd and etcdctl for the tests of the cluster: Debian's packages, unpacked into .tools/etcd. Nothing is installed and no
# service is started. Those found by name on this machine are taken as they are.
set -eu

cd "$(dirname "$0")/.."
place=.tools/etcd

here() { [ -x "$place/etcd" ] && [ -x "$place/etcdctl" ]; }
known() { command -v etcd >/dev/null 2>&1 && command -v etcdctl >/dev/null 2>&1; }

if here || known; then exit 0; fi

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "The cluster's tests need etcd and etcdctl, and there is no apt-get to fetch them with." >&2
    echo "Put both into $place, or where they are found by name, and run make again." >&2
    exit 1
fi

echo "fetching the packages etcd-server and etcd-client into $place"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$PWD
cd "$work"
fetch() { "$@" download etcd-server etcd-client >/dev/null 2>"$work/complaints"; }
if ! fetch apt-get -qq; then
    if [ "$(id -u)" = 0 ]; then "$root/tools/apt.sh" update; fi
    fetch "$root/tools/apt.sh" || true
fi
for package in etcd-server etcd-client; do
    set -- "$package"_*.deb
    if ! [ -e "$1" ]; then
        cat "$work/complaints" >&2
        echo "apt-get brought no $package. If its lists are old: sudo apt-get update" >&2
        exit 1
    fi
    dpkg-deb -x "$1" unpacked
done
cd "$root"
mkdir -p "$place"
# By rename: whoever finds them finds them whole.
for name in etcd etcdctl; do
    cp "$work/unpacked/usr/bin/$name" "$place/.$name.$$"
    mv "$place/.$name.$$" "$place/$name"
done
here || { echo "the packages held no etcd and etcdctl" >&2; exit 1; }
