"""What queues demand of messages before they store them: who has a processor, and what it would say."""

from yirangmq.admin import queue_methods
from yirangmq.core.processor import EVERY
from yirangmq.doors.http.v1.endpoint import Ask, Content, Endpoint
from yirangmq.doors.http.v1.fields import QUEUE_NAME, Field
from yirangmq.doors.http.v1.intake import HEADERS, Intake
from yirangmq.doors.http.v1.publishing import BODY
from yirangmq.doors.http.v1.schemas import COUNT, FLAG, TEXT, items, some, thing

ROW = thing(**{"queue": TEXT, "from": TEXT, "processor": {"type": "object", "description": "docs/processor.md"}})
TRIED = thing(
    ("code", "error", "field"),
    ok=FLAG, bytes=COUNT, sha256=TEXT, produces=items(thing(queue=TEXT, hook=TEXT)), code=TEXT, error=TEXT,
    field=some(TEXT),
)  # fmt: skip
MESSAGES = Content(
    {**BODY.types, "application/json": {"description": "an envelope, a bare payload, or an array of them"}},
    "what would be published",
)
SOME_QUEUE = Field("queue", QUEUE_NAME, "of this queue only")


def processors(ask: Ask) -> None:
    sees = ask.sees()
    ask.call(
        "processors",
        ask.values(),
        lambda rows: ask.reply({"processors": [row for row in rows if row["queue"] == EVERY or sees(row["queue"])]}),
    )


def check(ask: Ask) -> None:
    house, queue = ask.house, ask.path["queue"]
    envelopes = Intake(queue, house.clock.now_ms(), house.ids, 0, None).envelopes(ask.request)
    queue_methods.try_out(house.desk, queue, envelopes, ask.told(ask.reply))


def endpoints(max_body: int) -> tuple[Endpoint, ...]:
    return (
        Endpoint("GET", "/v1/processors", "Queues that demand something of messages, and what", processors, "policies",
                 "look", thing(processors=items(ROW)), query=(SOME_QUEUE,), is_filtered=True),
        Endpoint("POST", "/v1/queues/{queue}/check", "Would these messages be stored? Nothing is", check, "messages",
                 "publish", thing(queue=TEXT, processor=FLAG, refused=COUNT, messages=items(TRIED)), content=MESSAGES,
                 headers=HEADERS, max_body=max_body, refusals=("hook_failed",)),
    )  # fmt: skip
