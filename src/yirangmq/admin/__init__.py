"""Methods of a server beside the hot path: queues, messages, topics, bridges, health. Below every protocol."""
