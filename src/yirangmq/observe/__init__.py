"""Observability of a running server: metrics, events, log lines, traces and the event-loop watchdog.

The input is the events of each commit (``core.events``) and numbers passed in. Nothing here reads a store."""
