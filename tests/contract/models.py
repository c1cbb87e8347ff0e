"""What every staged model must do, as checks that a test applies to a plugin."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from edgebed.models.costs import model_costs
from edgebed.models.learning import blank_x, blank_y, loss_of
from edgebed.models.staged import ModelPlugin, StagedModel, head_name, seeded
from edgebed.models.width import narrow_model, ordered_keep, width_groups
from edgebed.wire.settings import LearningTask

SHAPE, CLASSES, BATCH = (2, 16, 16), 3, 4


TASKS = {
    task.kind: task
    for task in (
        LearningTask(SHAPE, CLASSES),
        LearningTask((5,), CLASSES),
        LearningTask((6,), CLASSES, vocabulary=7),
        LearningTask((6,), 7, vocabulary=7, per_token=True),
    )
}


def make(plugin: ModelPlugin, task: LearningTask, seed: int = 0) -> StagedModel:
    return seeded(lambda: plugin.build(task), seed)


def batch(task: LearningTask) -> tuple[Tensor, Tensor]:
    return blank_x(task, BATCH, torch.Generator().manual_seed(1)), blank_y(task, BATCH)


def it_knows_its_data(plugin: ModelPlugin, task: LearningTask) -> None:
    model = make(plugin, task)
    assert model.task == task
    assert plugin.summary
    assert model(batch(task)[0]).shape == (BATCH, *task.answer_shape, task.classes)


def any_cut_composes_to_the_whole_to_the_bit(plugin: ModelPlugin, task: LearningTask) -> None:
    """Output, gradients, and the running statistics that training leaves behind."""
    x, y = batch(task)
    start, whole = make(plugin, task).train(), make(plugin, task).train()
    loss_of(whole(x), y).backward()
    for cut in range(1, len(start)):
        halves = copy.deepcopy(start)
        z = halves.lower(cut)(x)
        received = z.detach().clone().requires_grad_()
        loss_of(halves.upper(cut)(received), y).backward()
        z.backward(received.grad)
        assert all(torch.equal(a, b) for a, b in zip(whole.weights().values(), halves.weights().values(), strict=True))
        for (name, a), (_, b) in zip(whole.named_parameters(), halves.named_parameters(), strict=True):
            if name.split(".")[0] in whole.stage_names:
                assert a.grad is not None, f"{name} gets no gradient"
                assert b.grad is not None
                assert torch.equal(a.grad, b.grad), f"{name} at cut {cut}"


def heads_classify_the_features_of_their_cut(plugin: ModelPlugin, task: LearningTask) -> None:
    model = make(plugin, task).train()
    for cut in model.cuts_with_head:
        z = model.lower(cut)(batch(task)[0]).detach()
        out = model.head(cut)(z)
        assert out.shape == (BATCH, *task.answer_shape, task.classes)
        out.sum().backward()
        assert all(parameter.grad is not None for parameter in model.head(cut).parameters())


def nothing_works_in_place_on_the_features(plugin: ModelPlugin, task: LearningTask) -> None:
    """They share memory with what is being sent while head and server half go on."""
    model = make(plugin, task).train()
    for cut in range(1, len(model)):
        z = model.lower(cut)(batch(task)[0]).detach()
        before = z.clone()
        model.upper(cut)(z)
        if cut in model.cuts_with_head:
            model.head(cut)(z)
        assert torch.equal(z, before), f"cut {cut}"


def weights_are_named_by_stage_or_head(plugin: ModelPlugin, task: LearningTask) -> None:
    model = make(plugin, task)
    owners = {name.split(".", 1)[0] for name in model.state_dict()}
    assert owners <= {*model.stage_names, *(head_name(cut) for cut in model.cuts_with_head)}
    for cut in range(1, len(model)):
        assert set(model.lower(cut).state_dict()) == set(model.names_below(cut, head=False))


def the_seed_decides_the_weights(plugin: ModelPlugin, task: LearningTask) -> None:
    first, again, other = (make(plugin, task, seed).weights() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def its_costs_can_be_counted(plugin: ModelPlugin, task: LearningTask) -> None:
    model, costs = make(plugin, task), model_costs(plugin, task, BATCH)
    for cut in costs.cuts[:-1]:
        assert cut.feature_shape == model.feature_shape(cut.cut)
    assert costs.parameters + costs.head_parameters == sum(p.numel() for p in model.parameters())
    assert costs.cuts[-1].training_flops > costs.cuts[-1].forward_flops > 0


def its_split_points_are_cuts(plugin: ModelPlugin, task: LearningTask) -> None:
    model = make(plugin, task)
    points = model.split_points
    assert points
    assert list(points) == sorted(set(points))
    assert set(points) <= set(range(1, len(model)))


def it_trains_at_half_its_width(plugin: ModelPlugin, task: LearningTask) -> None:
    """Whatever groups it has: a network of modules that the walk does not know has none, and stays as it is."""
    model = make(plugin, task)
    narrow = narrow_model(model, ordered_keep(width_groups(model), 0.5)).train()
    x, y = batch(task)
    loss_of(narrow(x), y).backward()
    assert all(torch.isfinite(p.grad).all() for p in narrow.parameters() if p.grad is not None)
    for cut in narrow.cuts_with_head:
        assert narrow.head(cut)(narrow.lower(cut)(x)).shape == (BATCH, *task.answer_shape, task.classes)


CHECKS: list[Callable[[ModelPlugin, LearningTask], None]] = [
    it_knows_its_data,
    any_cut_composes_to_the_whole_to_the_bit,
    heads_classify_the_features_of_their_cut,
    nothing_works_in_place_on_the_features,
    weights_are_named_by_stage_or_head,
    the_seed_decides_the_weights,
    its_costs_can_be_counted,
    its_split_points_are_cuts,
    it_trains_at_half_its_width,
]
