"""Every method whose devices upload features hides what the device chose to hide, without being listed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch

from edgebed.methods import base
from edgebed.methods.base import HALVES, METHODS, DeviceHalf, Method, Outgoing, Plan
from edgebed.methods.topk_split import dense
from edgebed.models.staged import Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Privacy
from orchestrator.testing.rounds import SCHEDULE, make_method, play, small_model, view

THREE = {"a": 10, "b": 9, "c": 5}
ROUNDS = range(1)
DCOR, SHUFFLE = Privacy(dcor_alpha=0.5), Privacy(patch_shuffle=2, secret=11)


def initial() -> Weights:
    return {name: value.clone() for name, value in small_model().weights().items()}


def uploads_features(assignment: Assignment) -> bool:
    return "features" in assignment.uploads


def plan_of(name: str) -> Plan:
    return make_method(name).plan(0, [view(device, samples) for device, samples in THREE.items()], SCHEDULE)


UPLOADING = [name for name in METHODS.names() if any(map(uploads_features, plan_of(name).assignments.values()))]


class Hiding(msgspec.Struct):
    """Plans like `method`, with the choices of the devices filled in, as agents do; the method plans without them. It
    can be copied into the trainer's process."""

    method: Method
    chosen: Mapping[str, Privacy]

    def __call__(self, *args: Any) -> Plan:
        made = type(self.method).plan(self.method, *args)
        filled = {
            name: msgspec.structs.replace(each, privacy=self.chosen.get(name, Privacy()))
            for name, each in made.assignments.items()
        }
        return msgspec.structs.replace(made, assignments=filled)


def hiding(method: Method, chosen: Mapping[str, Privacy]) -> Method:
    """The method on devices that choose for themselves what they hide."""
    method.plan = Hiding(method, chosen)  # type: ignore[method-assign]
    return method


class Spy:
    """What each device's halves of a round upload and train."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.features: dict[str, list[torch.Tensor]] = {}
        self.trained: dict[str, Weights] = {}
        real = base.find_half
        monkeypatch.setattr("edgebed.device.core.find_half", lambda objective: self.watch(real(objective)))

    def watch(self, half: DeviceHalf) -> DeviceHalf:
        def watched(model: Any, assignment: Assignment, batches: Any) -> Any:
            inner = half(model, assignment, batches)
            reply: Weights | None = None
            while True:
                try:
                    out: Outgoing = inner.send(reply)
                except StopIteration as stop:
                    self.trained[assignment.device] = {k: v.clone() for k, v in stop.value.weights.items()}
                    return stop.value
                sent = {name: value.clone() for name, value in out.tensors.items()}
                if "places" in sent:  # of sparse features
                    shape = model.feature_shape(assignment.stages)
                    sent["features"] = dense(sent["values"], sent["places"].long(), shape)
                if "features" in sent:
                    self.features.setdefault(assignment.device, []).append(sent["features"])
                reply = yield out

        return watched


async def watched(name: str, monkeypatch: pytest.MonkeyPatch, chosen: Mapping[str, Privacy]) -> tuple[Spy, Weights]:
    with monkeypatch.context() as patch:
        spy = Spy(patch)
        return spy, await play(hiding(make_method(name), chosen), initial(), THREE, ROUNDS)


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def told(spy: Spy, device: str) -> list[torch.Tensor]:
    """All that left the device."""
    return [*spy.features[device], *spy.trained[device].values()]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("name", UPLOADING)
async def test_distance_correlation_changes_what_the_device_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the device's own α; what another device sends first, before it hears of the others, stays."""
    plain, _ = await watched(name, monkeypatch, {})
    hidden, weights = await watched(name, monkeypatch, {"a": DCOR})
    stronger, _ = await watched(name, monkeypatch, {"a": msgspec.structs.replace(DCOR, dcor_alpha=0.9)})
    assert not equal(told(hidden, "a"), told(plain, "a"))
    assert not equal(told(hidden, "a"), told(stronger, "a"))
    assert torch.equal(hidden.features["b"][0], plain.features["b"][0])
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


@pytest.mark.parametrize("name", UPLOADING)
async def test_shuffled_patches_are_all_that_leaves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = await watched(name, monkeypatch, {})
    hidden, weights = await watched(name, monkeypatch, {"a": SHUFFLE, "c": SHUFFLE})
    for device in ("a", "c"):
        before, after = plain.features[device][0], hidden.features[device][0]
        assert not torch.equal(after, before)
        assert torch.equal(after.flatten(2).sort(2).values, before.flatten(2).sort(2).values)
    assert torch.equal(hidden.features["b"][0], plain.features["b"][0])
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


@pytest.mark.parametrize("name", UPLOADING)
async def test_the_same_choices_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"a": Privacy(0.5, 2, 3), "b": Privacy(0.25)}
    first, again = [await play(hiding(make_method(name), chosen), initial(), THREE, ROUNDS, order=o) for o in (1, 2)]
    assert same(first, again)


@pytest.mark.parametrize("name", METHODS.names())
def test_no_method_plans_privacy(name: str) -> None:
    assert all(each.privacy == Privacy() for each in plan_of(name).assignments.values())


def test_every_half_that_trains_is_seen_here() -> None:
    """`serve` answers requests after training (tests of serving); `partial` (FedPMT, option II) and `statistics`
    (HeteroFL's last round) upload no features."""
    planned = {each.objective for name in METHODS.names() for each in plan_of(name).assignments.values()}
    assert set(HALVES) - planned <= {"serve", "partial", "statistics"}
