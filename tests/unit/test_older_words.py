"""What records of older versions say in words only is read from the sentences that those versions wrote."""

from __future__ import annotations

import pytest

from orchestrator.records.older_words import ending_of, limit_of
from orchestrator.records.reader import decode
from orchestrator.records.types import DeviceOut, Ending, RunFinished

OUT = '{"type":"device_out","at_ns":3014306144,"round":1,"device":"eq-c-1","how":"%s","why":"%s","trace":""}'
FINISHED = '{"type":"run_finished","at_ns":9,"why":"%s"}'


@pytest.mark.parametrize(
    ("how", "why", "limit_s"),
    [
        ("late", "not done at the deadline of 1 s", 1.0),
        ("late", "not done at the deadline of 2.5e+06 s", 2.5e6),
        ("late", "not done when the round's ceiling of 50 s was reached (training.round_ceiling_s)", 50.0),
        ("late", "2 others were enough", None),
        ("failed", "RuntimeError: deadline of 3 s", None),
    ],
)
def test_the_limit_of_a_device_that_an_older_version_put_out(how: str, why: str, limit_s: float | None) -> None:
    out = decode((OUT % (how, why)).encode())
    assert isinstance(out, DeviceOut)
    assert limit_of(out) == limit_s


@pytest.mark.parametrize(
    ("why", "ending"),
    [
        ("rounds done", "finished"),
        ("target reached", "finished"),
        ("interrupted", "interrupted"),
        ("error: no quorum", "failed"),
        ("120 requests settled", "finished"),
    ],
)
def test_how_a_run_of_an_older_version_ended(why: str, ending: Ending) -> None:
    finished = decode((FINISHED % why).encode())
    assert isinstance(finished, RunFinished)
    assert ending_of(finished) == ending


def test_what_a_record_holds_as_data_goes_before_its_words() -> None:
    assert limit_of(DeviceOut(0, 0, "a", "late", "not done at the deadline of 1 s", limit_s=7.0)) == 7.0
    assert ending_of(RunFinished(0, "error: it says", "finished")) == "finished"
