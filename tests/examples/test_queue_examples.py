"""Examples of queues, as their headers run them on a store of their own, and with the address of a server."""

import pytest

from tests.support.examples import Places, run_example

pytestmark = pytest.mark.process

OUTPUTS = {
    "asyncio_worker.py": "0 left; never more than ten at the same time\n",
    "batches.py": """\
1000 on disk
leased 250, acked 250
leased 250, acked 250
leased 250, acked 250
leased 250, acked 250
the sum is 499500
an unknown lease: not_found
""",
    "checks.py": """\
stored
refused: attributes.bank: has 2 characters, not 3 to 3
refused: payload: must be an object
refused: payload: has 202 bytes, not at most 100
SHA-256 of the payload: bb185f94
""",
    "concurrent_worker.py": """\
4 handlers run at the same time
4 done, 16 back in the queue
""",
    "dead_letters.py": """\
tea costs 3
dead: REJECTED, no price for milk
dead: REJECTED, no price for coal
1 redriven
milk costs 2
1 purged
""",
    "deduplication.py": """\
by-id: stored
by-id: duplicate
by-key: stored
by-key: duplicate
by-payload: stored
by-payload: duplicate
by-payload: stored
""",
    "delayed.py": """\
first: the other one
then: the delayed one after half a second
""",
    "groups.py": """\
leased together: ann: open, bob: open
leased together: ann: pay in 50
leased together: ann: pay out 20
""",
    "json_schema.py": """\
delivered: {'celsius': 21.5}
VALIDATION_ERROR: payload.celsius: "warm" is not of type "number"
VALIDATION_ERROR: payload.celsius: -300 is less than the minimum of -273.15
VALIDATION_ERROR: payload: "celsius" is a required property
""",
    "leases.py": """\
slow has January, attempt 1
quick has January, attempt 2
slow may not ack it any more
quick acked it
""",
    "priorities.py": """\
password reset
receipt
second receipt
newsletter
""",
    "quota.py": """\
0 stored
1 stored
2 stored
3 refused, the queue is full
4 stored
the newest are kept: b c d
""",
    "request_reply.py": """\
7 squared is 49
12 squared is 144
""",
    "retries.py": """\
attempt 1: no answer
attempt 2: no answer
attempt 3: no answer
attempt 4: fetched
1 done after 3 failures
""",
}
"""Examples whose address may be that of a store or of a server, with their output."""

OUTPUTS_WITHOUT_SERVER = {
    "hook.py": """\
1250 stored
-1 refused: payload: an amount must be positive
payments: {'from': 'ann', 'cents': 1250}
receipts: {'to': 'ann', 'text': 'received 12.50'}
""",
    "own_tests.py": """\
passed: test_reminder_is_delivered_after_its_time
passed: test_reminder_is_delivered_again_if_its_worker_dies
""",
    "web_app.py": """\
listening at http://127.0.0.1:…/
accepted
already accepted
sent to ann@example.org: hello
1 done, 0 to be tried again, 0 rejected
""",
    "worker.py": """\
published … to mail
sent to ann@example.org: hello
1 done, 0 to be tried again, 0 rejected
""",
}


@pytest.mark.parametrize("name", [*OUTPUTS, *OUTPUTS_WITHOUT_SERVER])
def test_queue_example_prints_its_point(places: Places, name: str) -> None:
    run_example(places, name, OUTPUTS.get(name) or OUTPUTS_WITHOUT_SERVER[name])


@pytest.mark.parametrize("name", OUTPUTS)
def test_queue_example_prints_the_same_on_a_server(places: Places, name: str) -> None:
    run_example(places, name, OUTPUTS[name], "unix:yirang-data/yirangmq.sock")
