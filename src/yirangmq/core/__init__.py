"""Rules of queues and topics: values, state transitions, policies, strategies and ports, as pure code.

Nothing in this package does I/O, logs, or reads a clock or a random source: time and random numbers are arguments."""
