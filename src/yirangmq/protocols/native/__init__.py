"""Native protocol: binary frames over unix sockets and TCP (``docs/wire.md``)."""
