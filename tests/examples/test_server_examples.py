"""Examples that need a server, a topic or a protocol, as their headers run them."""

import re
import time

import pytest

from tests.support.clock import WallClock
from tests.support.examples import Places, is_output, run_example
from tools.examples_docs import EXAMPLES, read_header

pytestmark = pytest.mark.process

OUTPUTS = {
    "asyncio_client.py": "…12 squared is 144\n…30 done\n",
    "bridge.py": """\
shop.orders, key ann: {'order': 17}
shop.returns, key bob: {'order': 12}
the bridge is running
""",
    "dispatch.py": """\
ann has 2 calls
bob has 2 calls
cyd has 2 calls
archive has {'eur': 1.08}
shop has {'eur': 1.08}
""",
    "ledger.py": """\
published …, trades#1
online, 0 behind
… trades {'price': 100}
""",
    "metrics.py": """\
yirangmq_queue_ready 3
yirangmq_published_total 3
""",
    "publish.py": "1000 on disk\n",
    "sender.py": """\
500 on disk
1 refused: too_large
502 in the queue
""",
    "stomp_client.py": """\
receipt r-1: the message is on disk
message {"to": "ann"}
receipt r-2: the ack is on disk
""",
    "stomp_transaction.py": """\
after abort:  1 order leased, 0 in invoices, 0 in parcels
after commit: 0 order leased, 1 in invoices, 1 in parcels
""",
    "subscribe.py": "5 on disk\n1\n2\n3\n4\n5\n",
    "topic_filter.py": """\
weather.kr.+
    0 weather.kr.seoul
    1 weather.kr.busan
weather.*
    0 weather.kr.seoul
    1 weather.kr.busan
    2 weather.jp.tokyo
    3 weather.kr.seoul.wind
*.seoul, weather.jp.tokyo
    0 weather.kr.seoul
    2 weather.jp.tokyo
    4 roads.kr.seoul
""",
    "topic_subscriber.py": """\
charts reads two records and stops
record 1: A 100
record 2: A 101
one more is published while it is away; it comes back
record 3: B 55
record 4: B 56
it has all of them
""",
    "webhook_receiver.py": """\
listening at port …
genuine: order-17 {"order": 17}
…published order-17 to hooks
""",
}
SCHEDULE = "schedule.py"


@pytest.mark.parametrize("name", OUTPUTS)
def test_server_example_prints_its_point(places: Places, name: str) -> None:
    run_example(places, name, OUTPUTS[name])


def test_schedule_example_gets_the_message_of_the_next_minute(places: Places) -> None:
    """The wall clock of the server shows 57 s past a minute when it starts."""
    serve, example = read_header(EXAMPLES / SCHEDULE).commands
    place = places.fresh()
    clock = WallClock(place.folder, 57 - int(time.time()) % 60)
    with place.background(serve.removesuffix("&"), place.folder / "serve.txt", clock.env):
        said = place.run(example)
    expected = "every-minute is next due at …\nnightly is next due at …\nevery-minute-…Z: {'kind': 'short'}\n"
    assert is_output(expected, said), said
    assert re.search(r"every-minute-\d{8}T\d{4}00Z", said)


def test_webhook_receiver_example_refuses_a_forged_request(places: Places) -> None:
    place = places.fresh()
    (place.folder / "secret").write_text("0123456789abcdef\n")
    output = place.folder / "receiver.txt"
    command = "curl -s -o answer -w '%{http_code}' -H 'X-MQ-Signature: sha256=00' -H 'X-MQ-Timestamp: 1' -d x"
    with place.background("python examples/webhook_receiver.py 9000 secret", output):
        assert place.run(f"{command} http://127.0.0.1:9000/") == "403"
    assert "forged: None x\n" in output.read_text()
