"""What operators see of a running server. Knows: events and numbers it is handed. Does not know: how they come about."""
