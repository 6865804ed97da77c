"""How long hypothesis looks: a little at each run, much longer with ``YIRANGMQ_HYPOTHESIS=long``; what servers of
tests have in common."""

import os

from hypothesis import HealthCheck, settings

# Time on a shared machine says nothing about the code, so no example has a deadline.
settings.register_profile("quick", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("quick"), max_examples=3000)
settings.load_profile(os.environ.get("YIRANGMQ_HYPOTHESIS", "quick"))

# Tests run servers side by side, and there is only one port 8080. A test of HTTP says where its server listens.
os.environ["YIRANGMQ_HTTP"] = "off"
