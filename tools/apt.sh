#!/bin/sh
# apt.sh WORDS…: apt-get, quiet, patient, and one at a time, as make starts several side by side and they share its
# locks. AS_ROOT is what goes before it, as "sudo -n".
set -eu
home=$(cd "$(dirname "$0")/.." && pwd)
export DEBIAN_FRONTEND=noninteractive
set -- apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
if command -v flock >/dev/null 2>&1; then
    mkdir -p "$home/.tools"
    set -- flock "$home/.tools/apt.lock" ${AS_ROOT:-} "$@"
else
    set -- ${AS_ROOT:-} "$@"
fi
exec "$home/tools/again.sh" "$@"
