"""The journal: messages of a day in files by date, beside a store."""
