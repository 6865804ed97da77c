"""A token that the server accepts: at least 16 characters."""

TOKEN = "a-token-of-these-tests"
