"""Files store: one JSON file per message; the file's folder is the message's state."""
