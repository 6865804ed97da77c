"""Pulls the plug on a store, on paper: records what it asks of the disk, rebuilds every kind of disk a power cut could
leave behind, and opens the store in each. Knows: stores, the broker. Does not know: doors, the command line's looks."""
