"""Ways in and out: translate, call the broker once, translate back. Knows: broker, wire, core.
Does not know: stores. Rules live in core, never here."""
