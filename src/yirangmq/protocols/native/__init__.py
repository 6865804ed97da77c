"""The framed protocol of the unix and TCP sockets (docs/wire.md)."""
