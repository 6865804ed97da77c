"""The HTTP door: a small protocol of our own, and the routes behind it."""
