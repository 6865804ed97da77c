"""Alerts as the world hears of them: looks, sinks, and what can be asked. The rules are in ``core.alerts``."""
