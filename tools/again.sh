#!/bin/sh
# again.sh COMMAND…: what may fail because of a network. Tried four times, with a pause that grows, then it is an error.
most=4
pause=5
turn=1
while true; do
    "$@" && exit 0
    code=$?
    [ "$turn" -lt "$most" ] || break
    echo "failed (exit code $code), trying again in $pause seconds ($turn of $((most - 1))): $*" >&2
    sleep "$pause"
    pause=$((pause * 2))
    turn=$((turn + 1))
done
echo "failed $most times (exit code $code): $*" >&2
echo "Is there a network, and a mirror or index that answers? Then run make again: it goes on where it stopped." >&2
exit "$code"
