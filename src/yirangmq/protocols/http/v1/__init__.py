"""Native HTTP API, ``/v1``: a table of endpoints, each of which translates to one operation and back."""
