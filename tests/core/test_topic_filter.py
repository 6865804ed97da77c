"""Names, patterns, masks: what a subscriber asks for, and what it gets."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yirangmq.core.errors import BadInput
from yirangmq.core.topic_filter import ALL, MAX_PATTERNS, MAX_TOPICS, Glob, make_filter, masked

MASKED = ["TOPIC1", "TOPIC2", "MISC"]


@pytest.mark.parametrize("mask", range(8))
def test_topic_mask_is_a_set_of_bits_and_not_a_shift_count(mask: int) -> None:
    """The public implementation shifts: its mask 7 never sees MISC, its mask 1 sees nothing."""
    bits = {"TOPIC1": 1, "TOPIC2": 2, "MISC": 4}
    assert masked(mask, MASKED) == {topic for topic, bit in bits.items() if mask & bit}


@pytest.mark.parametrize("mask", range(1, 8))
def test_topic_mask_filter_selects_the_topics_of_its_bits(mask: int) -> None:
    chosen = make_filter([], mask, MASKED)
    assert [topic for topic in [*MASKED, "other"] if chosen.wants(topic)] == sorted(
        masked(mask, MASKED), key=MASKED.index
    )


def test_topic_mask_of_unassigned_bits_selects_nothing() -> None:
    assert not any(make_filter([], 8, MASKED).wants(topic) for topic in MASKED)


def test_topic_mask_can_use_all_32_bits() -> None:
    topics = [f"t{place}" for place in range(32)]
    assert [topic for topic in topics if make_filter([], 1 << 31, topics).wants(topic)] == ["t31"]
    assert masked(2**32 - 1, topics) == set(topics)


def test_topic_filter_without_names_and_mask_selects_everything() -> None:
    assert make_filter() is ALL
    assert ALL.is_all
    assert ALL.wants("anything")
    assert make_filter(["*"]).is_all


def test_topic_filter_selects_topics_by_name_or_by_mask() -> None:
    chosen = make_filter(["news"], 2, MASKED)
    assert [topic for topic in [*MASKED, "news", "weather"] if chosen.wants(topic)] == ["TOPIC2", "news"]


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("quotes.*", ["quotes.", "quotes.asia", "quotes.asia.tokyo"], ["quotes", "xquotes.asia"]),
        ("quotes.+", ["quotes.asia"], ["quotes.", "quotes.asia.tokyo", "quotes"]),
        ("+.asia", ["quotes.asia"], [".asia", "a.b.asia"]),
        ("*.asia", [".asia", "a.b.asia"], ["asia", "a.asian"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc"]),
        ("a*b*c", ["abc", "axxbxxc", "abcbc"], ["acb", "abcx"]),
        ("a+b+c", ["axbxc", "abbbc"], ["abc", "ax.bxc", "axb.c"]),
        ("**", ["", "a"], []),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_topic_filter_pattern_matches_its_names_and_no_others(pattern: str, fits: list[str], fails: list[str]) -> None:
    glob = Glob(pattern)
    assert [name for name in fits if not glob.matches(name)] == []
    assert [name for name in fails if glob.matches(name)] == []


@given(st.text("ab.*?+", max_size=8), st.text("ab.", max_size=10))
def test_topic_filter_pattern_equals_its_regular_expression(pattern: str, name: str) -> None:
    parts = {"*": ".*", "?": ".", "+": "[^.]+"}
    expression = "".join(parts.get(letter, re.escape(letter)) for letter in pattern)
    assert Glob(pattern).matches(name) == (re.fullmatch(expression, name) is not None)


def test_topic_filter_malicious_pattern_takes_no_longer_than_another() -> None:
    """As a regular expression this would not end."""
    assert not Glob("*a" * 100).matches("a" * 99 + "b" * 100)


@pytest.mark.parametrize(
    ("wanted", "mask", "field"),
    [
        (["no/slash"], 0, "topics"),
        (["no/slash*"], 0, "topics"),
        ([""], 0, "topics"),
        ([7], 0, "topics"),
        ("trades", 0, "topics"),
        (["t"] * (MAX_TOPICS + 1), 0, "topics"),
        ([f"t{n}*" for n in range(MAX_PATTERNS + 1)], 0, "topics"),
        ([], -1, "mask"),
        ([], 2**32, "mask"),
        ([], True, "mask"),
        ([], "7", "mask"),
    ],
)
def test_topic_filter_that_is_invalid_is_refused_with_its_field(wanted: list[object], mask: object, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        make_filter(wanted, mask, MASKED)
    assert caught.value.field == field


def test_topic_filters_for_the_same_topics_are_equal() -> None:
    assert make_filter(["b", "a"]).names == make_filter(["a", "b"]).names
    assert make_filter(["a"], 0) == make_filter(["a"], 0)
    assert hash(make_filter(["a*"])) == hash(make_filter(["a*"]))


def test_topic_filter_text_keeps_the_words_of_the_request() -> None:
    assert make_filter(["b", "a.*"], 7).text == "b,a.*,mask=7"
