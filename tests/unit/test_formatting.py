"""Figures as text."""

from __future__ import annotations

import pytest

from orchestrator.records.critical.stragglers import CAUSES
from orchestrator.records.timeline.timeline import WAITING
from orchestrator.records.words import formatting as f
from orchestrator.records.words import vocabulary
from orchestrator.records.words.palette import COLOURED_AS, PHASES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1230.4, "1230"),
        (0.5, "0.5"),
        (3.14159, "3.14"),
        (999.96, "1000"),
        (2.125, "2.13"),
        (-0.00125, "-0.00125"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert f.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (0.0348, "34.8 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.741, "1.74 s"),
        (999.6, "1000 s"),
        (12345.6, "12346 s"),
    ],
)
def test_seconds_below_one_are_milliseconds(value: float, text: str) -> None:
    assert f.seconds(value) == text


def test_signs_are_always_written() -> None:
    assert f.signed_seconds(-0.2) == "−200 ms"
    assert f.signed_seconds(1.5) == "+1.5 s"
    assert f.signed_seconds(0.0) == "0 s"
    assert f.signed_percent(0.041) == "+4.1%"
    assert f.signed_percent(-0.003) == "−0.3%"


def test_shares() -> None:
    assert [f.percent(value) for value in (0, 0.0004, 0.928, 1)] == ["0.0%", "0.04%", "92.8%", "100.0%"]
    assert f.percent(0.9, 0) == "90%"


def test_an_accuracy_is_never_rounded_up() -> None:
    assert f.accuracy(0.8997) == "89.9%"
    assert f.accuracy(0.9) == "90.0%"


def test_sizes_and_rates() -> None:
    assert [f.size(value) for value in (0, 999, 999.7, 1_125_000, 2.5e12)] == [
        "0 B",
        "999 B",
        "1 kB",
        "1.13 MB",
        "2500 GB",
    ]
    assert f.rate(12_500_000) == "12.5 Mbit/s"
    assert f.quantity(0.19996, "CPU") == "0.2 CPU"
    assert f.factor(1.2345) == "1.23 ×"
    assert f.known(None, f.seconds) == "–"


def test_every_name_that_has_a_colour_has_a_meaning() -> None:
    assert set(PHASES) <= set(vocabulary.PHASES)
    assert set(WAITING) <= set(vocabulary.PHASES)
    assert tuple(vocabulary.CAUSES) == CAUSES
    assert set(COLOURED_AS) == {*CAUSES, ""}
