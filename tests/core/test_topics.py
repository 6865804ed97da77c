"""Every edge of the two tables, and none besides."""

from pathlib import Path

import pytest

from yirangmq.core.topics import (
    PUBLISHER_MEANING,
    PUBLISHER_TRANSITIONS,
    SUBSCRIBER_MEANING,
    SUBSCRIBER_TRANSITIONS,
    PublisherState,
    PublisherVerb,
    SubscriberState,
    SubscriberVerb,
    publisher_after,
    subscriber_after,
)

DRAWN_PUBLISHER = {("starting", "listening"), ("listening", "online")} | {
    (state, "error") for state in ("starting", "listening", "online")
}
DRAWN_CLIENT = {("connected", "online"), ("online", "recovering"), ("recovering", "online")} | {
    (state, "offline") for state in ("connected", "online", "recovering")
}


def test_topic_states_have_every_transition_of_the_original_diagram() -> None:
    assert {(str(before), str(after)) for (before, _), after in PUBLISHER_TRANSITIONS.items()} >= DRAWN_PUBLISHER
    assert {(str(before), str(after)) for (before, _), after in SUBSCRIBER_TRANSITIONS.items()} >= DRAWN_CLIENT


@pytest.mark.parametrize("state", [None, *PublisherState])
@pytest.mark.parametrize("verb", PublisherVerb)
def test_topic_publisher_changes_state_by_the_table_alone(state: PublisherState | None, verb: PublisherVerb) -> None:
    assert publisher_after(state, verb) == PUBLISHER_TRANSITIONS.get((state, verb))
    if verb is PublisherVerb.FAIL and state not in (None, PublisherState.ERROR):
        assert publisher_after(state, verb) is PublisherState.ERROR


@pytest.mark.parametrize("state", [None, *SubscriberState])
@pytest.mark.parametrize("verb", SubscriberVerb)
def test_topic_client_changes_state_by_the_table_alone(state: SubscriberState | None, verb: SubscriberVerb) -> None:
    assert subscriber_after(state, verb) == SUBSCRIBER_TRANSITIONS.get((state, verb))
    if verb is SubscriberVerb.LEAVE and state not in (None, SubscriberState.OFFLINE):
        assert subscriber_after(state, verb) is SubscriberState.OFFLINE


def test_topic_client_that_is_offline_stays_offline() -> None:
    assert [verb for verb in SubscriberVerb if subscriber_after(SubscriberState.OFFLINE, verb)] == []


def test_topic_states_are_all_reachable_and_explained() -> None:
    assert set(SUBSCRIBER_TRANSITIONS.values()) == set(SubscriberState) == set(SUBSCRIBER_MEANING)
    assert set(PUBLISHER_TRANSITIONS.values()) == set(PublisherState) == set(PUBLISHER_MEANING)


def test_topic_states_page_shows_every_transition_and_state() -> None:
    page = (Path(__file__).parents[2] / "docs" / "topics.md").read_text()
    for table, meaning in ((PUBLISHER_TRANSITIONS, PUBLISHER_MEANING), (SUBSCRIBER_TRANSITIONS, SUBSCRIBER_MEANING)):
        for (before, verb), after in table.items():
            assert f"| {before or '–'} | {verb} | {after} |" in page
        for state, text in meaning.items():
            assert f"| **{state}** | {text} |" in page


def test_topic_client_states_have_the_public_order() -> None:
    assert [str(state).upper() for state in SubscriberState] == [
        "CONNECTED",
        "RECOVERY_NEEDED",
        "RECOVERING",
        "CATCHING_UP",
        "ONLINE",
        "OFFLINE",
    ]
