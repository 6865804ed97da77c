"""Journal: accepted messages and their outcomes in files by date, beside a store."""
