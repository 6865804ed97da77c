"""Admission control: checks and hooks that a message passes before it is stored."""
