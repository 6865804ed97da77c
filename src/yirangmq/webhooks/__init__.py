"""Webhook push: messages of a queue are POSTed to the address in its policy, and settled by what comes back."""
