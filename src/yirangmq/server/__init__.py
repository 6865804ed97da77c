"""Composition root of a server: builds it from its parts, opens its listeners, starts and stops it in order."""
