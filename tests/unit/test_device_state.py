"""What a device keeps between tasks: its versions, what is gone, and what an update may hold beside weights."""

from __future__ import annotations

import msgspec
import pytest
import torch

from edgebed.device.kept import MOST_RUNS, KeptStates
from edgebed.errors import RunError
from edgebed.methods.base import Contribution, Method, Stream
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.exchange import UNMEASURED
from edgebed.models.staged import EXTRA, Weights
from edgebed.wire.messages import Assignment, Report
from orchestrator.rounds.bounds import extra_fault
from orchestrator.rounds.checks import opened
from orchestrator.rounds.device_states import DeviceStates, sent_state
from orchestrator.testing.rounds import SCHEDULE, make_method, small_model, view
from tests.unit._assignments import assignment


def value(number: float) -> Weights:
    return {"m": torch.tensor([number])}


def test_a_task_goes_on_with_the_version_that_was_merged_and_drops_the_others() -> None:
    states = KeptStates()
    assert states.begin("run", "") == {}
    states.keep("run", "1", value(1.0))
    assert states.begin("run", "1") == {"kept.m": torch.tensor([1.0])}
    states.keep("run", "2", value(2.0))
    assert states.begin("run", "1") == {"kept.m": torch.tensor([1.0])}  # 2 was not merged
    states.keep("run", "3", value(3.0))
    with pytest.raises(RunError, match="the device state of task 2 is gone"):
        states.begin("run", "2")


def test_a_task_without_a_version_begins_with_nothing() -> None:
    states = KeptStates()
    states.keep("run", "1", value(1.0))
    assert states.begin("run", "") == {}
    with pytest.raises(RunError, match="gone"):
        states.begin("run", "1")


def test_what_is_kept_does_not_change_with_the_tensors_of_the_half() -> None:
    states, tensors = KeptStates(), value(1.0)
    states.keep("run", "1", tensors)
    tensors["m"] += 1
    states.begin("run", "1")["kept.m"] += 1
    assert states.begin("run", "1") == {"kept.m": torch.tensor([1.0])}


def test_runs_have_states_of_their_own_and_the_oldest_run_goes_first() -> None:
    states = KeptStates()
    for number in range(MOST_RUNS + 1):
        states.keep(f"run {number}", f"{number}", value(number))
    with pytest.raises(RunError, match="gone"):
        states.begin("run 2", "1")
    assert states.begin("run 1", "1") == {"kept.m": torch.tensor([1.0])}
    with pytest.raises(RunError, match="gone"):
        states.begin("run 0", "0")


class Keeping(FedAvg):
    keeps_state = True

    def state_copy(self, device: str) -> Weights:
        return value(5.0) if device == "known" else {}


def test_the_orchestrator_expects_what_was_merged_of_the_agent_that_runs() -> None:
    agents = {"known": "first", "new": "first"}
    states, method = DeviceStates(agents.__getitem__), Keeping()
    assert sent_state(method, "new", states.expected("new")) == ("new", {})
    states.took("known", "task 1", "first")
    assert sent_state(method, "known", states.expected("known")) == ("kept", {})
    agents["known"] = "second"
    origin, copy = sent_state(method, "known", states.expected("known"))
    assert origin == "restored"
    assert copy == {"kept.m": torch.tensor([5.0])}
    agents["known"] = "first"
    states.forget("known")
    assert states.expected("known") == ""
    assert sent_state(FedAvg(), "known", "") == ("none", {})


SHAPES = {"sign": Stream((2, 3), torch.int8)}


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"sign": torch.zeros(2, 3, dtype=torch.int8)}, ""),
        ({}, "it holds nothing instead of sign"),
        ({"sign": torch.zeros(2, 3, dtype=torch.int8), "more": torch.zeros(1)}, "more, sign instead of sign"),
        ({"sign": torch.zeros(3, 2, dtype=torch.int8)}, r"\(3, 2\) instead of torch.int8 \(2, 3\)"),
        ({"sign": torch.zeros(2, 3)}, "torch.float32"),
    ],
)
def test_an_update_holds_beside_weights_what_the_method_says(extra: Weights, why: str) -> None:
    found = extra_fault(SHAPES, extra)
    assert bool(found) == bool(why)
    if why:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(found)


class Largest(FedAvg):
    """Sends the largest change of all weights of the last layer, by its place in them."""

    PLACE = "md4.fc.bias"

    def update_names(self, assignment: Assignment, notes: object) -> list[str]:
        return []

    def extra(self, assignment: Assignment) -> dict[str, Stream]:
        return {"place": Stream((1,), torch.int64), "change": Stream((1,), torch.float32)}

    def decode_update(
        self, assignment: Assignment, report: Report, sent: Weights, update: Weights, extra: Weights
    ) -> Weights:
        before, place = sent[self.PLACE], int(extra["place"])
        if not 0 <= place < before.numel():
            raise RunError(f"place {place} of {before.numel()} weights")
        after = before.clone()
        after[place] += extra["change"][0]
        return {self.PLACE: after}


def sparse(place: int, change: float = 0.5) -> Weights:
    return {f"{EXTRA}place": torch.tensor([place]), f"{EXTRA}change": torch.tensor([change])}


def open_sparse(tensors: Weights) -> tuple[Weights, Weights]:
    method: Method = Largest()
    method.setup(make_method("fedavg").context)
    work = method.plan(0, [view("a")], SCHEDULE).assignments["a"]
    return opened(method, small_model().weights(), work, UNMEASURED, tensors)


def test_an_update_with_an_encoding_of_its_own_is_decoded() -> None:
    update, extra = open_sparse(sparse(2))
    change = update[Largest.PLACE] - small_model().weights()[Largest.PLACE]
    assert torch.allclose(change, torch.tensor([0.0, 0.0, 0.5, 0.0]))
    assert set(extra) == {"place", "change"}


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (sparse(4), "place 4 of 4 weights"),
        (sparse(2, float("nan")), "not finite"),
        ({**sparse(2), "md4.fc.bias": torch.zeros(4)}, "were not asked for"),
        ({f"{EXTRA}place": torch.tensor([1])}, "instead of change, place"),
    ],
)
def test_one_that_makes_no_sense_is_refused(tensors: Weights, why: str) -> None:
    with pytest.raises(RunError, match=why):
        open_sparse(tensors)


def test_a_contribution_without_them_is_as_before() -> None:
    part = Contribution("a", 1, assignment(), {}, {})
    assert (part.extra, part.base, part.state, part.report) == ({}, {}, "none", UNMEASURED)
    assert msgspec.structs.replace(part, state="kept").state == "kept"
