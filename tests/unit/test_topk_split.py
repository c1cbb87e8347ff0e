"""Top-k split: with all entries it is SplitFed to the bit; what is left out comes the next time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgebed.errors import RunError
from edgebed.methods.parts.distillation import rows_of
from edgebed.methods.topk_split import dense, topk_half
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask, Optimizer
from orchestrator.testing.agents import Agents
from orchestrator.testing.log import Log
from orchestrator.testing.rounds import SCHEDULE, make_method, play, shard, small_model, view

THREE = {"a": 10, "b": 9, "c": 6}


async def test_with_all_entries_it_is_splitfed_to_the_bit() -> None:
    start = small_model().weights()
    ours = await play(make_method("topk-split", share=1.0), start, THREE, range(3))
    theirs = await play(make_method("splitfed"), start, THREE, range(3))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


async def test_with_a_tenth_it_is_not() -> None:
    start = small_model().weights()
    ours = await play(make_method("topk-split"), start, THREE, range(3))
    theirs = await play(make_method("splitfed"), start, THREE, range(3))
    assert not torch.equal(ours["md1.conv.weight"], theirs["md1.conv.weight"])


def test_what_is_left_out_of_a_sample_is_added_the_next_time() -> None:
    """Two samples in one batch, two epochs; the gradient that comes back is 0, so the features stay. What was sent and
    what is left out at the end add up to the features of both epochs."""
    model, (x, _) = small_model(), shard("a", 2)
    work = Assignment(
        "a", {}, 4, (1, 6, 6), 1, "topk", uploads=("features", "weights"), batch_size=2, epochs=2,
        optimizer=Optimizer("sgd", 0.05), options={"k": 5, "samples": 2},
    )  # fmt: skip
    z = model.lower(1).train()(x).detach().flatten(1)
    rows = [rows_of(work, epoch, (0, 2)) for epoch in range(2)]
    half = topk_half(model, work, [(x[each], torch.zeros(2).long()) for each in rows])
    sent, upload = torch.zeros_like(z), next(half)
    for each in rows:
        places = upload.tensors["places"].long()
        sent[each] += torch.zeros_like(z).scatter(1, places, upload.tensors["values"])
        try:
            upload = half.send({"gradient": torch.zeros(2, 5)})
        except StopIteration as ended:
            left_out = ended.value.state["left_out"].flatten(1)
    assert torch.allclose(sent + left_out, 2 * z, atol=1e-5)
    assert left_out.abs().max() > 0


def test_two_tasks_by_hand() -> None:
    """z = x = (-3, 1, 2) and k = 1; the gradient is 0, so z stays. -3 goes up and (0, 1, 2) is left out. The next task
    begins with that: of (-3, 2, 4) the 4 goes up."""
    first = nn.Linear(3, 3, bias=False)
    nn.init.eye_(first.weight)
    model = StagedModel([("a", first), ("b", nn.Linear(3, 2))], {}, LearningTask((3,), 2))
    work = Assignment("a", {}, 2, (3,), 1, "topk", uploads=("features",), batch_size=1, options={"k": 1, "samples": 1})
    for place, value, left_out in ((0, -3.0, [0.0, 1.0, 2.0]), (2, 4.0, [-3.0, 2.0, 0.0])):
        half = topk_half(model, work, [(torch.tensor([[-3.0, 1.0, 2.0]]), torch.zeros(1).long())])
        upload = next(half).tensors
        assert (upload["places"].tolist(), upload["values"].tolist()) == ([[place]], [[value]])
        with pytest.raises(StopIteration) as ended:
            half.send({"gradient": torch.zeros(1, 1)})
        model.kept = ended.value.value.state
        assert model.kept["left_out"].tolist() == [left_out]


@pytest.mark.parametrize(("share", "k"), [(0.1, 11), (0.001, 1), (1.0, 108)])
def test_a_share_is_rounded_up_to_places(share: float, k: int) -> None:
    """Of the 3 x 6 x 6 features behind the first stage. A k of 0 would send nothing, and train nothing."""
    method = make_method("topk-split", cut=1, share=share)
    assert method.plan(0, [view("a")], SCHEDULE).assignments["a"].options["k"] == k


async def test_a_device_that_lost_its_state_begins_without() -> None:
    log, agents = Log(), Agents()
    method = make_method("topk-split")
    weights = await play(method, small_model().weights(), {"a": 10}, range(2), log=log, agents=agents)
    await play(method, weights, {"a": 10}, range(2, 3), log=log, agents=agents, restarts=("a",))
    assert log.origins == ["new", "kept", "new"]


@pytest.mark.parametrize("places", [[[0, 9]], [[-1, 0]], [[2, 2]], [[3, 1]]])
def test_places_that_make_no_sense_are_refused(places: list[list[int]]) -> None:
    with pytest.raises(RunError, match=r"not increasing numbers of 0..8"):
        dense(torch.ones(1, 2), torch.tensor(places), (1, 3, 3))


def test_features_are_zero_at_all_other_places() -> None:
    made = dense(torch.tensor([[5.0, 7.0]]), torch.tensor([[1, 3]]), (2, 2))
    assert made.tolist() == [[[0.0, 5.0], [0.0, 7.0]]]
