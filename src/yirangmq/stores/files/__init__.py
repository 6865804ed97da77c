"""The store of JSON files: one file a message, whose name says its state."""
