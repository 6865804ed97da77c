"""The STOMP door: programs that spoke STOMP to another broker reach the same queues and topics (docs/stomp.md)."""
