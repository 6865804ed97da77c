"""How long hypothesis looks: a little at each run, much longer with ``YIRANGMQ_HYPOTHESIS=long``."""

import os

from hypothesis import HealthCheck, settings

# Time on a shared machine says nothing about the code, so no example has a deadline.
settings.register_profile("quick", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("quick"), max_examples=3000)
settings.load_profile(os.environ.get("YIRANGMQ_HYPOTHESIS", "quick"))
