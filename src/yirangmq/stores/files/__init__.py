"""Files store: one JSON file a message; its folder is the message's state."""
