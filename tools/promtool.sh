#!/bin/sh
# promtool for the tests of alert rules, in .tools/prometheus. One found by name on this machine is taken as it is.
set -eu
if command -v promtool >/dev/null 2>&1; then exit 0; fi
exec "$(dirname "$0")/unpack.sh" .tools/prometheus prometheus usr/bin/promtool
