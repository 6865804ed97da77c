"""What the commands show is what plain SQL shows: the view of docs/sqlite.md beside show, peek and counts."""

from collections import Counter
from pathlib import Path

import apsw

from yirangmq.format.envelope import NewMessage
from yirangmq.testing import ManualClock, open_for_test

COLUMNS = "messageId, state, priority, attempt, consumer, reason, payload, seq"


def test_sql_view_agrees_with_show_peek_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    clock = ManualClock()
    with open_for_test(f"sqlite:{file}", clock=clock) as queues:
        for number in range(12):
            queues.publish("mail", NewMessage(payload={"n": number}, priority=number % 3 or None))
        queues.publish("mail", NewMessage(payload={"n": 12}, delay=60))
        taken = queues.lease("mail", 6, consumer="ann")
        queues.ack([taken[0].lease_id, taken[1].lease_id])
        queues.nack(taken[2].lease_id, "TIMEOUT", "slow")
        queues.nack(taken[3].lease_id, "REJECTED", "never")
        rows = list(apsw.Connection(str(file)).execute(f"SELECT {COLUMNS} FROM messages WHERE queue = 'mail'"))
        assert len(rows) == 13
        for id, state, priority, attempt, consumer, reason, payload, _ in rows:
            look = queues.show("mail", id)
            row = look.row()
            shown = (row["state"], row["priority"], row["attempt"], row["reasonCode"])
            assert shown == (state, priority, attempt, reason)
            assert row["consumerId"] == consumer
            assert look.envelope is not None
            assert look.envelope.payload.decode() == payload
        states = Counter(found_row[1] for found_row in rows)
        counts = queues.counts("mail")._asdict()
        assert states == {state: counts[state] for state in states}
        assert [look.message.id for look in queues.peek("mail", 99)] == [
            found_row[0]
            for found_row in sorted(
                (found_row for found_row in rows if found_row[1] == "ready"),
                key=lambda found_row: (found_row[2] is None, found_row[2], found_row[7]),
            )
        ]


def test_sql_rows_of_a_retry_and_a_dead_letter_hold_state_attempt_due_time_and_failure(tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    clock = ManualClock()
    with open_for_test(f"sqlite:{file}", clock=clock) as queues:
        queues.publish_many("mail", [1, 2])
        retried, dead = queues.lease("mail", 2, consumer="ann")
        queues.nack(retried.lease_id, "HANDLER_ERROR", "once more")
        queues.nack(dead.lease_id, "REJECTED", "never")
        now = clock.now_ms()
    rows = {
        found_row[0]: found_row[1:]
        for found_row in apsw.Connection(str(file)).execute("SELECT id, state, attempt, due_at FROM life")
    }
    assert rows[retried.id] == ("delayed", 1, now + 1_000)
    assert rows[dead.id] == ("dead", 1, now + 14 * 86_400_000)
    [failure] = apsw.Connection(str(file)).execute(
        "SELECT reason_code, reason_message, attempt, consumer FROM failure JOIN name USING (seq) WHERE id = ?",
        (dead.id,),
    )
    assert failure == ("REJECTED", "never", 1, "ann")
