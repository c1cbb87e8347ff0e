"""The error of a simulation, from the records of two runs."""

from __future__ import annotations

import msgspec
import pytest

from edgebed.wire.messages import Assignment, Report
from edgebed.wire.piece_times import Phase
from orchestrator.records import types as t
from orchestrator.records.compare.sim_error import sim_error, simulation_and_real
from orchestrator.records.run_index import RunFacts, sort

SECOND = 1_000_000_000


def run(
    seconds: list[float], *, simulated: bool, dilation: float = 1.0, cut: int = 1, method: str = "dtfl"
) -> RunFacts:
    """Rounds that last so long, undilated; device `a` computes nine tenths of each."""
    kind = "simulated" if simulated else "kernel"
    head = t.RunStarted(SECOND, "", kind, "x", method, 1, kind, kind, dilation, True, 0, 1.0)
    records: list[t.Record] = [head, t.DeviceJoined(SECOND, "a", "i", False), t.ClockOffset(SECOND, "a", 0, 0)]
    at = 2 * SECOND
    for number, each in enumerate(seconds):
        length = round(each * dilation * SECOND)
        records += one_round(number, at, length, cut)
        at += length
    return sort([*records, t.RunFinished(at, "rounds done")])


def one_round(number: int, at: int, length: int, cut: int) -> list[t.Record]:
    task, end, busy = f"t{number}", at + length, at + length * 9 // 10
    work = Assignment("a", {}, 2, (1, 8, 8), cut, "head")
    report = Report(1, 1, 0.0, 0.0, 0.0, None, 0, 0.0, 0, 0.0, 0.0)
    phases = (Phase("compute", task, at, busy), Phase("upload_tail", task, busy, end))
    return [
        t.RoundStarted(at, number, 0.0, 0.1, ("a",), {"a": work}),
        t.TaskSent(at, number, "a", task, 1),
        t.UpdateReceived(end, busy, number, "a", task, 1, report),
        t.DevicePhases(end, "a", "i", phases),
        t.DeviceDone(end, number, "a", length / SECOND, 0.0, 0.0, 0.0),
        t.RoundFinished(end, number, length / SECOND, ("a",), "all done"),
    ]


def test_rounds_are_compared_by_number_in_undilated_seconds() -> None:
    error = sim_error(run([11, 8, 10], simulated=True), run([10, 10, 10, 99], simulated=False, dilation=4.0))
    assert error is not None
    assert [each.error for each in error.rounds] == [pytest.approx(0.1), pytest.approx(-0.2), pytest.approx(0)]
    assert error.median == pytest.approx(0.1)
    assert error.p90 == pytest.approx(0.2)
    assert error.total_error == pytest.approx(29 / 30 - 1)
    assert error.same_cuts == 1


def test_phases_of_a_device_are_shares_of_its_real_round() -> None:
    error = sim_error(run([12], simulated=True, cut=2), run([10], simulated=False))
    assert error is not None
    found = {row.phase: row for row in error.devices}
    assert found["whole"].share == pytest.approx(0.2)
    assert found["compute"].simulated_s == pytest.approx(10.8)
    assert found["compute"].share == pytest.approx(0.18)
    assert found["upload_tail"].share == pytest.approx(0.02)
    assert "reply_wait" not in found
    assert error.same_cuts == 0


def test_two_runs_without_a_round_in_common_have_no_error() -> None:
    assert sim_error(run([], simulated=True), run([10], simulated=False)) is None


def test_it_is_looked_for_where_one_of_two_runs_of_a_method_is_simulated() -> None:
    simulated, real = run([10], simulated=True), run([10], simulated=False)
    assert simulation_and_real([real, simulated]) == (simulated, real)
    assert simulation_and_real([real, real]) is None
    assert simulation_and_real([simulated, simulated]) is None
    assert simulation_and_real([simulated, run([10], simulated=False, method="fedavg")]) is None
    assert simulation_and_real([simulated, real, real]) is None


def test_it_can_be_written_as_json() -> None:
    error = sim_error(run([10], simulated=True), run([10], simulated=False))
    assert msgspec.json.decode(msgspec.json.encode(error))["median"] == 0
