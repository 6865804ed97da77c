"""How long tests wait for what must come: one number for all. Only a failure ever waits so long, so it is generous;
``YIRANGMQ_TEST_PATIENCE`` makes it longer, for a machine that is slower still or has much else to do."""

import os

PATIENCE = int(os.environ.get("YIRANGMQ_TEST_PATIENCE", "120"))
"""Seconds."""
