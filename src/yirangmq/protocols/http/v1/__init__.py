"""Native HTTP API, ``/v1``: a table of endpoints, each of which translates between HTTP and one operation."""
