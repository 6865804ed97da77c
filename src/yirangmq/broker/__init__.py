"""Uses of the rules: load, decide, swap, in one transaction for all that wait. Knows: core, format, ports.
Does not know: which store it has, which door it serves."""
