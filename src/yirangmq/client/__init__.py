"""What programs use to reach a server. Knows: wire, format, core. Does not know: broker, stores.
Every verb is written once, as a coroutine; the blocking face runs the very same one over a socket that blocks."""
