"""Dispatch strategies: which consumer gets a message, and copies for broadcast."""
