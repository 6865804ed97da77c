"""Webhook push: messages of a queue are POSTed to the URL in its policy and settled by the response."""
