#!/bin/sh
# libfaketime for the tests of clocks, in .tools/faketime. With it one process gets a wall clock that is set forward and
# back while the clock of the machine stays as it is.
exec "$(dirname "$0")/unpack.sh" .tools/faketime libfaketime "usr/lib/*/faketime/libfaketimeMT.so.1"
