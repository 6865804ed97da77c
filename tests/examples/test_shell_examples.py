"""Examples in shell, C and JavaScript, as their headers run them."""

import pytest

from tests.support.examples import Places, run_example
from tools.examples_docs import EXAMPLES

pytestmark = pytest.mark.process

OUTPUTS = {
    "alerts.sh": """\
0 done, 1 failed
CRITICAL dead_letters opened
"subject":"mail"
"rule":"dead_letters"
""",
    "backup.sh": """\
exported 2 messages of 1 queue to backup.jsonl
{"kind":"end","messages":2}
imported: 2 messages
in order: nothing is wrong
{"n": 1}
{"n": 2}
""",
    "consume.sh": """\
2 on disk
working on {"n": 1}
working on {"n": 2}
the queue is empty
""",
    "export_import.sh": """\
0 done, 1 failed
exported 3 messages of 1 queue to exported.jsonl
imported: 3 messages
imported: 0 messages; 3 existed already
"state":"ready"
"state":"delayed"
"state":"dead"
""",
    "files_by_date.sh": """\
"record":"accepted"
"record":"outcome"
"state":"done"
"consumerId":"teller-3"
{"cents": 500}
""",
    "http_api.sh": """\
"stored":2
"ok":true
"reasonMessage":"no such person"
"count":1
""",
    "http_queue.sh": """\
set a draft
ordered the same id
got: dear ann
"completed":1
""",
    "legacy.sh": "published … to invoices\n1 done\n",
    "load.sh": """\
published 3 to loaded
refused as a whole, exit code 2
published 3 to loaded
{"n": 1}
{"n": 2}
{"n": 3}
4
5
6
""",
    "publish.c": "2 on disk\n",
    "publish.sh": "2 on disk\n",
    "secure_server.sh": """\
orders/messages: 200
salaries/messages: 403
orders/lease: 403
without a token: exit code 9
{"order": 17}
""",
    "unix_socket.mjs": """\
3 on disk
working on {"n":1}
working on {"n":2}
working on {"n":3}
the queue is empty
""",
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_shell_example_prints_its_point(places: Places, name: str) -> None:
    run_example(places, name, OUTPUTS[name])


def test_consume_example_nacks_what_its_work_refuses(places: Places) -> None:
    place = places.with_server("yirangmq serve --http unix:yirang-data/http.sock")
    script = (EXAMPLES / "consume.sh").read_text()
    (place.folder / "refusing.sh").write_text(script.replace('if echo "working on $payload"', "if false"))
    place.run('yirangmq policy set --queue refused \'{"retry": {"limit": 0}}\'')
    place.run("printf '{\"n\": 1}\\n' | sh examples/publish.sh yirang-data/http.sock refused")
    assert place.run("sh refusing.sh yirang-data/http.sock refused") == "the queue is empty\n"
    assert "the work failed" in place.run("yirangmq dlq list --queue refused --json")
