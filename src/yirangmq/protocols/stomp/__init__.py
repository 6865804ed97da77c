"""STOMP 1.0 to 1.2: programs written for another broker reach the same queues and topics (``docs/stomp.md``)."""
