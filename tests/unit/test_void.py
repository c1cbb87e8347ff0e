"""When void rounds end a run, whom they are counted against, and the advice that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import RunError
from orchestrator.experiment import Training
from orchestrator.rounds.machine import Leave, RoundMachine, Tick
from orchestrator.rounds.void import VOID_ROUNDS, VoidByDevice, VoidRounds, hint

LATE = {"dev-1": Leave("dev-1", "late", "it was too slow", 5.0)}
FAILED = {"dev-2": Leave("dev-2", "failed", "late: KeyError")}


def test_three_void_rounds_in_a_row_end_a_run_and_name_the_devices() -> None:
    void = VoidRounds(Training(quorum=2))
    for was_void in (True, True, False, True, True):
        void.count(was_void)
        void.check(FAILED)
    void.count(True)
    with pytest.raises(
        RunError, match=r"3 rounds in a row .* quorum of 2; missing in the last one: dev-2 \(failed: late"
    ):
        void.check(FAILED)


@pytest.mark.parametrize(
    ("training", "missing", "said", "unsaid"),
    [
        (Training(quorum=1), FAILED, ["mend these devices"], ["quorum", "deadline"]),
        (Training(quorum=2), FAILED, ["mend these devices", "lower training.quorum (now 2)"], ["deadline"]),
        (Training(round_ceiling_s=5.0), LATE, ["raise training.round_ceiling_s (now 5 s)"], ["quorum", "mend"]),
        (Training(round_ceiling_s=5.0), {**LATE, **FAILED}, ["mend these devices"], ["raise"]),
        (Training(quorum=2), {"a": None}, ["mend these devices"], ["raise"]),
    ],
)
def test_the_advice_fits(
    training: Training, missing: dict[str, Leave | None], said: list[str], unsaid: list[str]
) -> None:
    advice = hint(training, missing)
    assert all(words in advice for words in said)
    assert not any(words in advice for words in unsaid)


def test_a_void_round_whose_devices_were_late_had_reached_its_ceiling_not_its_deadline() -> None:
    machine = RoundMachine("ab", 0.0, deadline_s=5.0, quorum=2, liveness_s=1000.0, ceiling_s=50.0)
    assert machine.handle(Tick(), 6.0) == []
    leaves = {effect.device: effect for effect in machine.handle(Tick(), 50.0) if isinstance(effect, Leave)}
    assert {device: leave.limit_s for device, leave in leaves.items()} == {"a": 50.0, "b": 50.0}
    assert machine.finished
    assert "raise training.round_ceiling_s" in hint(Training(quorum=2, deadline_s=5.0, round_ceiling_s=50.0), leaves)


def test_only_devices_whose_work_is_missing_are_counted() -> None:
    void = VoidByDevice(Training(quorum=2))
    for _ in range(VOID_ROUNDS - 1):
        assert void.count(["good", "dev-2"], True, [], FAILED) == []
    assert void.count(["good", "dev-2"], True, [], FAILED) == ["dev-2"]
    assert void.left_out == FAILED


def test_a_merge_forgives_and_a_round_that_others_carried_does_not_count() -> None:
    void = VoidByDevice(Training())
    for _ in range(10):
        assert void.count(["dev-2"], True, [], FAILED) == []
        assert void.count(["good", "dev-2"], False, ["good"], FAILED) == []
        assert void.count(["dev-2"], True, [], FAILED) == []
        assert void.count(["dev-2"], False, ["dev-2"], {}) == []


@given(st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=20, max_size=20))
def test_where_every_round_is_void_all_who_take_part_are_left_out_in_the_end(rounds: list[set[str]]) -> None:
    void, begun = VoidByDevice(Training()), 0
    for devices in rounds:
        able = devices - set(void.left_out)
        begun += bool(able)
        void.count(able, bool(able), [], {})
    assert begun <= 3 * VOID_ROUNDS
    assert all(d in void.left_out for d in "abc" if sum(d in r for r in rounds) >= VOID_ROUNDS)
