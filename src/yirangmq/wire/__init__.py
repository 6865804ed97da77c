"""Bytes on the line and values, in both directions. Knows: frames. Does not know: sockets, loops, brokers."""
