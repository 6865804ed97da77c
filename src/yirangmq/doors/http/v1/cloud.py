"""How a request says that it speaks CloudEvents."""

from yirangmq.doors.http.exchange import Request

EVENT_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"


def wants_events(request: Request) -> bool:
    """It asks for events in so many words; whoever takes anything gets our own form."""
    return "application/cloudevents" in request.headers.get("accept", "")
