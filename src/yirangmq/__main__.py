"""``python -m yirangmq`` is the command ``yirangmq``."""

import sys

from yirangmq.cli.main import run

sys.exit(run())
