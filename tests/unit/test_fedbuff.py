"""FedBuff: a step of the server worked by hand; its devices at work."""

from __future__ import annotations

import torch
from torch import nn

from edgebed.methods.base import Context, Contribution
from edgebed.methods.fedbuff import FedBuff
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask
from orchestrator.testing.rounds import make_method, view


def weights_of(value: float) -> Weights:
    return {"fc.weight": torch.full((2, 1), value)}


def made(buffer: int, lr: float = 1.0, devices: int = 3) -> FedBuff:
    method = FedBuff(FedBuff.Options(buffer=buffer, lr=lr))
    model = StagedModel([("fc", nn.Linear(1, 2, bias=False))], {}, LearningTask((1,), 2))
    method.setup(Context({}, model, {}, server_slots=1, devices=tuple("abcdef"[:devices])))
    return method


def contribution(base: float, after: float, step: int) -> Contribution:
    work = Assignment("a", {}, 2, (1,), 1, "output", options={"step": step})
    return Contribution("a", 1, work, weights_of(after), {}, base=weights_of(base))


def test_steps_of_the_server_worked_by_hand() -> None:
    """K = 2, η_g = 1/2. Updates 8 → 4 and 8 → 6, both fresh: Σ = 4 + 2, w = 8 - 1/4 · 6 = 6.5. Then one from before
    that step, 8 → 0: τ = 1, s = 1/√2, and a fresh one, 6.5 → 4.5: w = 6.5 - 1/4 (8/√2 + 2) = 6 - √2."""
    method = made(buffer=2, lr=0.5)
    w = weights_of(8.0)
    assert method.merge(w, [contribution(8, 4, 0)]) is w
    w = method.merge(w, [contribution(8, 6, 0)])
    assert w["fc.weight"].flatten().tolist() == [6.5, 6.5]
    assert method.merge(w, [contribution(8, 0, 0)]) is w
    w = method.merge(w, [contribution(6.5, 4.5, 1)])
    assert torch.allclose(w["fc.weight"], torch.full((2, 1), 6 - 2**0.5), rtol=1e-6)


def test_a_buffer_of_all_devices_that_began_together_is_fedavg() -> None:
    method = made(buffer=3)
    w = weights_of(1.0)
    for after in (2.0, 4.0, 6.0):
        w = method.merge(w, [contribution(1, after, 0)])
    assert w["fc.weight"].flatten().tolist() == [4.0, 4.0]


def test_running_statistics_move_from_where_the_servers_are_by_the_whole_change() -> None:
    """K = 2, η_g = 2. The server's variance is 4, and devices that began with 1 found 3 and 1: 4 - (1 + 3) / 2 = 2.
    With η_g it would be 0. Of the counters the largest stays, which is the server's."""
    method = FedBuff(FedBuff.Options(buffer=2, lr=2.0))
    model = StagedModel([("norm", nn.BatchNorm1d(1))], {}, LearningTask((1,), 2))
    method.setup(Context({}, model, {}, server_slots=1, devices=("a",)))

    def norm(variance: float, batches: int) -> Weights:
        return {"norm.running_var": torch.tensor([variance]), "norm.num_batches_tracked": torch.tensor(batches)}

    w, base = norm(4.0, 9), norm(1.0, 0)
    work = Assignment("a", {}, 2, (1,), 1, "output", options={"step": 0})
    for update in (norm(3.0, 5), norm(1.0, 4)):
        w = method.merge(w, [Contribution("a", 1, work, update, {}, base=base)])
    assert {name: value.tolist() for name, value in w.items()} == {
        "norm.running_var": [2.0],
        "norm.num_batches_tracked": 9,
    }


def test_so_many_devices_work_at_once_and_any_idle_one_is_next() -> None:
    method = FedBuff(FedBuff.Options(concurrency=2))
    method.setup(make_method("fedavg").context)
    devices = [view(name) for name in "abc"]
    lanes = method.lanes(devices)
    assert list(lanes) == ["slot 1", "slot 2"]
    assert all([device.name for device in lane] == ["a", "b", "c"] for lane in lanes.values())
    drawn = {method.draw(number, devices, 1.0, 1)[0].name for number in range(20)}
    assert drawn == {"a", "b", "c"}
    assert len(method.draw(0, devices, 1.0, 1)) == 1


def test_all_devices_work_by_default() -> None:
    assert len(made(buffer=2, devices=4).lanes([view("a")])) == 4


def test_an_update_from_a_later_step_than_the_server_s_counts_as_fresh() -> None:
    """Of a checkpoint that was edited, say."""
    method = made(buffer=2)
    w = weights_of(8.0)
    for _ in range(2):
        w = method.merge(w, [contribution(8, 4, 3)])
    assert w["fc.weight"].flatten().tolist() == [4.0, 4.0]
