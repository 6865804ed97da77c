"""Verbs of ``cluster`` that look at etcd and its queues."""

from yirangmq.cli.command import Command

VERBS: dict[str, tuple[str, Command]] = {}
