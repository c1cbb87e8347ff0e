"""The host's speed in a run's figures: mean and error, a slow host, and runs of hosts that differ."""

from __future__ import annotations

import msgspec
import pytest

from orchestrator.records.account import summarise
from orchestrator.records.compare.comparison import compare
from orchestrator.records.run_index import sort
from orchestrator.records.summary import Summary
from orchestrator.records.timeline.host_index import differing_hosts, host_index, index_text, is_slow
from orchestrator.records.types import HostIndex, Record, RunFinished, RunStarted
from tests.summaries import changed
from tests.synthetic import Synthetic


def index(value: float, error: float = 0.01, reference: str = "core") -> HostIndex:
    return HostIndex(reference, value, error, 0.0)


def records(start: HostIndex | None, end: HostIndex | None) -> list[Record]:
    def told(record: Record) -> Record:
        if isinstance(record, RunStarted | RunFinished):
            found = start if isinstance(record, RunStarted) else end
            return msgspec.structs.replace(record, host_index=found)
        return record

    return [told(each) for each in Synthetic().records]


def test_the_index_of_a_run_is_that_of_its_start_and_end_and_the_error_has_their_difference() -> None:
    steady = host_index(sort(records(index(1.0, 0.03), index(1.0, 0.04))))
    assert steady is not None
    assert (steady.index, steady.drift) == (1.0, 0.0)
    assert steady.error == pytest.approx(0.025)
    drifting = host_index(sort(records(index(1.0), index(0.8))))
    assert drifting is not None
    assert drifting.index == pytest.approx(0.9)
    assert drifting.error == pytest.approx(0.1)
    assert drifting.drift == pytest.approx(0.25)


def test_a_run_that_did_not_finish_has_the_index_of_its_start_and_an_older_one_has_none() -> None:
    assert host_index(sort(records(index(0.7), None))) == index(0.7)
    assert host_index(sort(records(None, None))) is None
    assert summarise(records(None, None)).host_index is None


@pytest.mark.parametrize(
    ("value", "error", "slow"), [(0.85, 0.01, True), (0.85, 0.06, False), (0.92, 0.001, False), (1.5, 0.01, False)]
)
def test_a_host_is_slow_by_a_tenth_and_three_errors(value: float, error: float, slow: bool) -> None:
    assert is_slow(index(value, error)) is slow
    assert ("a slow host" in index_text(index(value, error))) is slow
    assert not is_slow(None)


def run(name: str, found: HostIndex | None, speed: str = "host") -> Summary:
    return changed(summarise(records(found, found)), run=name, speed=speed)


@pytest.mark.parametrize(
    ("one", "other", "warned"),
    [
        (index(1.0), index(0.85), True),
        (index(1.0), index(0.91), False),  # a tenth is not reached
        (index(1.0, 0.08), index(0.8, 0.08), False),  # not three standard errors
        (index(1.0), index(0.5, reference="another"), False),
    ],
)
def test_runs_of_hosts_that_differ_are_not_compared_in_silence(one: HostIndex, other: HostIndex, warned: bool) -> None:
    found = differing_hosts({"fast": one, "middle": one, "slow": other})
    assert bool(found) is warned
    notes = compare([run("fast", one), run("slow", other)]).notes
    assert (
        any(note.startswith("the host of slow was slower (") and "the host of fast (" in note for note in notes)
        is warned
    )
    held = compare([run("fast", one, "core"), run("slow", other, "core")]).notes
    assert not any("was slower" in note for note in held)


def test_no_run_with_an_index_is_no_note() -> None:
    assert differing_hosts({}) == []


def test_a_slow_host_is_doubted_where_devices_have_its_speed() -> None:
    assert any("slow throughout" in note for note in compare([run("a", index(0.6))]).notes)
    assert not any("slow throughout" in note for note in compare([run("a", index(0.6), "core")]).notes)
    assert not any("slow throughout" in note for note in compare([run("a", index(1.2))]).notes)


def test_the_index_is_a_column_of_the_comparison() -> None:
    found = compare([run("a", index(0.6))])
    assert found.rows[0]["host_index"]["index"] == pytest.approx(0.6)
    assert found.texts[0]["host_index"].startswith("0.60 ± 0.0")
