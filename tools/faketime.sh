#!/bin/sh
# libfaketime for the tests of clocks: Debian's package, unpacked into .tools/faketime. Nothing is installed. With it one
# process gets a wall clock that is set forward and back while the clock of the machine stays as it is.
set -eu

cd "$(dirname "$0")/.."
place=.tools/faketime
library=libfaketimeMT.so.1

if [ -e "$place/$library" ]; then exit 0; fi

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "The tests of clocks need libfaketime, and there is no apt-get to fetch it with." >&2
    echo "Put $library into $place and run make again." >&2
    exit 1
fi

echo "fetching the package libfaketime into $place"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$PWD
cd "$work"
fetch() { "$@" download libfaketime >/dev/null 2>"$work/complaints"; }
if ! fetch apt-get -qq; then
    if [ "$(id -u)" = 0 ]; then "$root/tools/apt.sh" update; fi
    fetch "$root/tools/apt.sh" || true
fi
set -- libfaketime_*.deb
if ! [ -e "$1" ]; then
    cat "$work/complaints" >&2
    echo "apt-get brought no libfaketime. If its lists are old: sudo apt-get update" >&2
    exit 1
fi
dpkg-deb -x "$1" unpacked
found=$(find unpacked -name "$library" | head -n 1)
[ -n "$found" ] || { echo "the package held no $library" >&2; exit 1; }
cd "$root"
mkdir -p "$place"
cp "$work/$found" "$place/.$library.$$"
mv "$place/.$library.$$" "$place/$library"
