"""What operators see of a running server. Knows: events and numbers it is given. Does not know: whence they come."""
