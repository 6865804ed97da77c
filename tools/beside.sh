#!/bin/sh
# beside.sh COMMAND… -- OTHER…: both at once. The other's words come as they are said, the first one's all together when
# it has ended. Fails if either fails.
set -u
out=$(mktemp)
trap 'rm -f "$out"' EXIT
first=
while [ "$#" -gt 0 ] && [ "$1" != -- ]; do
    first="$first '$(printf %s "$1" | sed "s/'/'\\\\''/g")'"
    shift
done
shift
(
    eval "$first" >"$out" 2>&1
    code=$?
    echo
    cat "$out"
    exit "$code"
) &
beside=$!
"$@"
code=$?
wait "$beside"
of_first=$?
[ "$of_first" -eq 0 ] || echo "failed (exit code $of_first):$first" >&2
[ "$code" -eq 0 ] || exit "$code"
exit "$of_first"
