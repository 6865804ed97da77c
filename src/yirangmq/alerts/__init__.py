"""Alerts: monitor, methods, outboxes and sinks. The rules are in ``core.alerts``."""
