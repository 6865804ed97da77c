"""Subjects of certificates, as rules name them."""

import pytest

from yirangmq.core.access import read_subject, show_subject, subject_of
from yirangmq.core.errors import BadInput

SHOWN = {"subject": ((("organizationName", "Bank, Inc"),), (("commonName", "gateway"),))}


@pytest.mark.parametrize("rule", ["CN=gateway", r"cn=gateway, O=Bank\, Inc", r"O=Bank\, Inc"])
def test_certificate_subject_fits_a_rule_that_names_some_of_it(rule: str) -> None:
    assert read_subject(rule, "certificate") <= subject_of(SHOWN)


@pytest.mark.parametrize("rule", ["CN=gate", "CN=gateway,OU=x", "O=Bank", "CN=Gateway"])
def test_certificate_subject_does_not_fit_another_rule(rule: str) -> None:
    assert not read_subject(rule, "certificate") <= subject_of(SHOWN)


def test_certificate_subject_is_shown_as_it_is_read() -> None:
    text = show_subject(subject_of(SHOWN))
    assert text == r"CN=gateway,O=Bank\, Inc"
    assert read_subject(text, "x") == subject_of(SHOWN)
    assert subject_of(None) == frozenset()


@pytest.mark.parametrize("given", ["", 7, "gateway", "CN=", "=x", "colour=red", "CN=a,,O=b", "x" * 2000])
def test_certificate_rule_is_checked(given: object) -> None:
    with pytest.raises(BadInput, match="certificate: "):
        read_subject(given, "certificate")
