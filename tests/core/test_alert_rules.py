"""What is a fault, and what is not yet one."""

from dataclasses import replace

import pytest

from yirangmq.core.alert_rules import (
    RULES,
    CounterGrowth,
    DiskFacts,
    InactiveFacts,
    PeerFacts,
    QueueFacts,
    RoleChange,
    RuleSetting,
    ServerFacts,
    SlidingWindow,
    faults,
)
from yirangmq.core.alerts import AlertState, Level, NoticePacing, evaluate

MIB = 1 << 20
WELL = ServerFacts(
    queues=[QueueFacts("mail", 10_000, 3600.0, 0), QueueFacts("empty", 0, None, 0)],
    peer=PeerFacts("b", 7500, 15_000, "RUNNING"),
    inactive=InactiveFacts(20_000, 20_000, "2 last status: STOPPED"),
    switches=5,
    disk=DiskFacts(5 * MIB, 100 * MIB, ""),
    refused={},
    commit=0.5,
    jump=-2.0,
)


def test_alert_rules_find_no_fault_at_their_limits() -> None:
    assert faults(WELL, {}) == []


@pytest.mark.parametrize(
    ("name", "facts", "level"),
    [
        ("peer_silent", replace(WELL, peer=PeerFacts("b", 7501, 15_000, "RUNNING")), Level.WARNING),
        ("peer_silent", replace(WELL, peer=PeerFacts("b", 15_001, 15_000, "RUNNING")), Level.CRITICAL),
        ("peer_silent", replace(WELL, peer=PeerFacts("", 15_001, 15_000, "")), Level.CRITICAL),
        ("peer_silent", replace(WELL, peer=PeerFacts("b", 99_000, 15_000, "STOPPED")), Level.INFO),
        ("peer_silent", replace(WELL, peer=PeerFacts("b", 7500, 15_000, "RUNNING", 7501)), Level.WARNING),
        ("pair_keys_differ", replace(WELL, peer=PeerFacts("b", 99_000, 15_000, "RUNNING", 0, True)), Level.CRITICAL),
        ("no_active_node", replace(WELL, inactive=InactiveFacts(20_001, 20_000, "cooldown")), Level.CRITICAL),
        ("takeover", replace(WELL, role_changes=[RoleChange("took-over", 2, False)]), Level.WARNING),
        ("takeover", replace(WELL, role_changes=[RoleChange("took-over", 2, True)]), Level.INFO),
        ("takeover", replace(WELL, role_changes=[RoleChange("took-over", 2, True)], switches=6), Level.CRITICAL),
        ("queue_age", replace(WELL, queues=[QueueFacts("mail", 1, 3601.0, 0)]), Level.WARNING),
        ("queue_depth", replace(WELL, queues=[QueueFacts("mail", 10_001, 1.0, 0)]), Level.WARNING),
        ("dead_letters", replace(WELL, queues=[QueueFacts("mail", 0, None, 1)]), Level.WARNING),
        ("disk_low", replace(WELL, disk=DiskFacts(4 * MIB, 100 * MIB, "")), Level.WARNING),
        ("disk_low", replace(WELL, disk=DiskFacts(50 * MIB, 100 * MIB, "as large as it may be")), Level.CRITICAL),
        ("client_refused", replace(WELL, refused={"http not_allowed": 1}), Level.WARNING),
        ("slow_commits", replace(WELL, commit=0.51), Level.WARNING),
        ("clock_jump", replace(WELL, jump=-2.1), Level.WARNING),
        ("store_refuses", replace(WELL, trouble="read-only"), Level.CRITICAL),
        ("topic_records_lost", replace(WELL, losses=["records after sequence 4 are lost"]), Level.CRITICAL),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_alert_rule_finds_only_its_own_fault_and_obeys_its_settings_of_off_and_level(
    name: str, facts: ServerFacts, level: Level
) -> None:
    [found] = faults(facts, {})
    assert (found.rule, found.level) == (name, level)
    assert faults(facts, {name: RuleSetting(is_on=False)}) == []
    [shouted] = faults(facts, {name: RuleSetting(level=Level.CRITICAL)})
    assert shouted.level is Level.CRITICAL


def test_alert_text_has_the_singular_for_one() -> None:
    one = ServerFacts(queues=[QueueFacts("mail", 1, 1.0, 1)], refused={"http not_allowed": 1})
    found = [fault.text for fault in faults(one, {"queue_depth": RuleSetting(limit=0.5)})]
    assert found == [
        "1 message waits in mail, more than 0.5",
        "1 new dead letter in mail",
        "1 client refused: http not_allowed 1",
    ]
    many = faults(ServerFacts(queues=[QueueFacts("mail", 2, 1.0, 2)]), {"queue_depth": RuleSetting(limit=1)})
    assert [fault.text for fault in many] == ["2 messages wait in mail, more than 1", "2 new dead letters in mail"]


def test_alert_rule_peer_silent_waits_for_the_timeout_if_no_heartbeat_ever_came() -> None:
    assert faults(replace(WELL, peer=PeerFacts("", 14_000, 15_000, "")), {}) == []


def test_alert_rule_takeover_notifies_each_unplanned_takeover_in_the_window() -> None:
    """S-03: each fault raises one alert, also a second takeover while the alert of the first one is open."""
    first, second = RoleChange("took-over", 2, False), RoleChange("took-over", 4, False)
    notified: list[str] = []
    alert_state = AlertState()
    for now, role_changes in enumerate(([first], [first], [first, second], [first, second], [second])):
        found = faults(replace(WELL, role_changes=role_changes), {})
        alert_state, notices = evaluate(alert_state, found, NoticePacing(), now * 1000)
        notified += [f"{notice.notified}: {notice.alert.text}" for notice in notices]
    assert notified == ["opened: this node took-over in term 2", "opened: this node took-over in term 4"]


def test_alert_rule_pair_keys_differ_stands_for_the_silent_peer_and_the_missing_active_node() -> None:
    """S-03: one fault, one alert."""
    inactive = InactiveFacts(99_000, 20_000, "key")
    facts = replace(WELL, peer=PeerFacts("b", 99_000, 15_000, "RUNNING", 99_000, True), inactive=inactive)
    assert [found.rule for found in faults(facts, {})] == ["pair_keys_differ"]
    assert "the keys differ" in faults(facts, {})[0].text


def test_alert_rule_limit_can_be_set_per_queue_and_per_pattern() -> None:
    facts = ServerFacts(queues=[QueueFacts(name, 50, 1.0, 0) for name in ("orders", "bulk-1", "mail")])
    setting = RuleSetting(limit=40, queues=(("orders", 100), ("bulk-*", 0)))
    assert [found.subject for found in faults(facts, {"queue_depth": setting})] == ["mail"]


@pytest.mark.parametrize(
    "name", [name for name, rule in RULES.items() if rule.limit is not None and name != "takeover"]
)
def test_alert_rule_with_limit_zero_never_fires(name: str) -> None:
    bad = ServerFacts(
        queues=[QueueFacts("q", 10**9, 1e9, 10**9)],
        disk=DiskFacts(0, MIB, ""),
        refused={"x": 10**9},
        commit=1e9,
        jump=1e9,
    )
    assert [found for found in faults(bad, {name: RuleSetting(limit=0)}) if found.rule == name] == []


def test_alert_recent_values_are_forgotten_after_their_window() -> None:
    lately = SlidingWindow(60_000)
    for second in range(100):
        lately.add(second * 1000, 2)
    assert lately.total(99_000) == pytest.approx(120, abs=2)
    assert lately.mean(99_000) == 2
    assert lately.total(200_000) == 0
    assert lately.mean(200_000) is None


def test_alert_counter_growth_is_summed_within_its_window() -> None:
    rising = CounterGrowth(60_000)
    rising.observe(0, "a", 5)
    rising.observe(0, "b", 5, since=0)
    rising.observe(1000, "a", 7)
    rising.observe(2000, "b", 1)
    assert rising.all(2000) == {"a": 2, "b": 5}
    assert rising.all(100_000) == {}
