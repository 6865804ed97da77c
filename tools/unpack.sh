#!/bin/sh
# unpack.sh FOLDER "PACKAGE…" PATH…: files of Debian's packages, each by its path there (which may be a pattern), into
# FOLDER. Nothing is installed and no service is started.
set -eu

cd "$(dirname "$0")/.."
folder=$1
packages=$2
shift 2

complete() { for path in "$@"; do [ -e "$folder/$(basename "$path")" ] || return 1; done; }
if complete "$@"; then exit 0; fi

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "There is no apt-get to fetch $* with. Put them into $folder and run make again." >&2
    exit 1
fi

echo "fetching $packages into $folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$PWD
cd "$work"
# shellcheck disable=SC2086 # the packages are words
fetch() { "$@" download $packages >/dev/null 2>"$work/complaints"; }
if ! fetch apt-get -qq; then
    if [ "$(id -u)" = 0 ]; then "$root/tools/apt.sh" update; fi
    fetch "$root/tools/apt.sh" || true
fi
for package in $packages; do
    found=$(find . -maxdepth 1 -name "${package}_*.deb")
    if [ -z "$found" ]; then
        cat "$work/complaints" >&2
        echo "apt-get brought no $package. If its lists are old: sudo apt-get update" >&2
        exit 1
    fi
    dpkg-deb -x "$found" unpacked
done
cd "$root"
mkdir -p "$folder"
# By rename: a program that runs beside this one finds no half of a file.
for path in "$@"; do
    found=$(find "$work/unpacked" -type f -path "$work/unpacked/$path" | head -n 1)
    [ -n "$found" ] || { echo "there is no $path in $packages" >&2; exit 1; }
    file=$(basename "$path")
    cp "$found" "$folder/.$file.$$"
    mv "$folder/.$file.$$" "$folder/$file"
done
