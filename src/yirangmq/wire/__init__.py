"""Wire formats: bytes of frames, topic records, heartbeats and STOMP, to values and back. Sans-IO."""
