"""The log of topics: segments of records, appended and never changed."""
