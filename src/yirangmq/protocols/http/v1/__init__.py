"""The native HTTP API, ``/v1``: a table of endpoints (``api``), each translating to a verb and back."""
