"""The composition root: builds a server from its parts, and starts and stops them in order."""
