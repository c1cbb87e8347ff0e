"""FedDrop and HeteroFL: who gets which channels, the merge per coordinate, and that narrow really is narrow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec
import pytest
import torch

from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Context, Contribution, Outcome, Plan
from edgebed.methods.parts.submodels import SubModels
from edgebed.models.costs import stage_flops, width_costs
from edgebed.models.staged import MODELS, StagedModel
from edgebed.models.width import Group, kept_size, narrow_model, ordered_keep, width_groups, window
from edgebed.wire.messages import Report
from edgebed.wire.settings import LearningTask
from orchestrator.testing.rounds import SCHEDULE, WIDTHS, make_method, play, small_model, view

HALVES = [0.5, 1.0]


def ready(name: str, **options: object) -> SubModels:
    method = make_method(name, **options)
    assert isinstance(method, SubModels)
    return method


def plan(method: SubModels, cpus: Mapping[str, float], round: int = 0) -> Plan:
    return method.plan(round, [view(name, 10, each) for name, each in cpus.items()], SCHEDULE)


def kept(made: Plan) -> dict[str, int | None]:
    """How many of the five channels of md3 each device keeps; None: the full model."""
    return {name: len(each.keep["md3.conv"]) if each.keep else None for name, each in made.assignments.items()}


# ---- sizes ----


def test_costs_of_widths_by_hand() -> None:
    """Channels 1-3-4-5 at a half: 1-2-2-2 (rounded to even); 36 places, 9 taps, two operations each; 4 classes."""
    full = 2 * (36 * 9 * (1 * 3 + 3 * 4 + 4 * 5) + 5 * 4)
    half = 2 * (36 * 9 * (1 * 2 + 2 * 2 + 2 * 2) + 2 * 4)
    model = small_model()
    assert sum(stage_flops(model)) == full
    assert width_costs(model, width_groups(model), (0.5, 1.0)) == pytest.approx([half / full, 1.0])
    assert model.training


def test_feddrop_gives_every_device_the_fraction_that_fits() -> None:
    """A half costs .28: at .28 CPU or more it takes no longer than the fast device with everything."""
    method = ready("feddrop", widths=[0.2, 0.5, 1.0])
    made = plan(method, {"fast": 1.0, "half": 0.4, "slow": 0.1})
    assert made.notes["widths"] == {"fast": 1.0, "half": 0.5, "slow": 0.2}
    assert kept(made) == {"fast": None, "half": 2, "slow": 1}


def test_heterofl_widths_are_fixed_when_a_device_is_first_met() -> None:
    method = ready("heterofl", widths=HALVES)
    method.draw(0, [view("fast", cpus=1.0), view("slow", cpus=0.1)], 0.5, 1)
    first = plan(method, {"slow": 0.1})
    assert first.notes["widths"] == {"slow": 0.5}  # beside a device that was not drawn
    later = plan(method, {"slow": 4.0, "new": 0.5}, round=1)
    assert later.notes["widths"] == {"slow": 0.5, "new": 0.5}
    again = ready("heterofl", widths=HALVES)
    again.restore(json.loads(json.dumps(method.state())), {})
    assert plan(again, {"slow": 4.0}).notes["widths"] == {"slow": 0.5}


@pytest.mark.parametrize("name", ["feddrop", "heterofl"])
def test_levels(name: str) -> None:
    made = plan(ready(name, widths=[0.2, 0.5, 1.0], levels=[0.1, 0.25, 1.0]), {"a": 4.0, "b": 1.0, "c": 0.9})
    assert made.notes["widths"] == {"a": 1.0, "b": 0.5, "c": 0.2}


@pytest.mark.parametrize("widths", [[], [0.5], [1.0, 0.5], [0.5, 0.5, 1.0]])
def test_wrong_widths_are_refused(widths: list[float]) -> None:
    with pytest.raises(UsageError, match="widths"):
        ready("feddrop", widths=widths)


def test_feddrop_learns_how_fast_devices_are() -> None:
    """Both declare one CPU; b takes ten times as long at the same width."""
    method = ready("feddrop", widths=HALVES)
    made = plan(method, {"a": 1.0, "b": 1.0})
    assert kept(made) == {"a": None, "b": None}
    outcomes = [
        Outcome(d, made.assignments[d], Report(10, 3, 1.0, s, s, None, 100, 0.1, 100, 0.1, 0.0), s, 0.0, 1e6, 0.0)
        for d, s in (("a", 3.0), ("b", 30.0))
    ]
    method.observe(0, outcomes)
    made = plan(method, {"a": 1.0, "b": 1.0}, 1)
    assert kept(made) == {"a": None, "b": 2}
    assert made.predicted_s == {"a": pytest.approx(3), "b": pytest.approx(30 * method.costs[0])}


# ---- channels ----


def test_feddrop_draws_anew_for_every_device_and_round() -> None:
    method = ready("feddrop", widths=HALVES, levels=[0.1, 1.0])
    fleet = {"a": 4.0, "b": 1.0, "c": 1.0}
    draws = [plan(method, fleet, round).assignments[d].keep for round in range(4) for d in ("b", "c")]
    assert len({str(keep) for keep in draws}) > 4
    assert plan(method, fleet, 2).assignments["b"].keep == draws[4]


def feddrop_on(model: StagedModel, **options: object) -> SubModels:
    method = METHODS.create({"name": "feddrop", "widths": [0.1, 1.0], "levels": [0.1, 1.0], **options})
    method.setup(Context({"name": "cnn"}, model, {}, server_slots=1))
    assert isinstance(method, SubModels)
    return method


def test_feddrop_keeps_convolutions_whole_as_table_2_does() -> None:
    """CNN-CIFAR10: 500 and 300 hidden neurons, convolutions of 16 and 32 filters."""
    model = MODELS.create({"name": "cnn-cifar10"}).build(LearningTask((3, 32, 32), 10))
    fleet = {"fast": 1.0, "slow": 0.1}
    keep = plan(feddrop_on(model), fleet).assignments["slow"].keep
    assert {name: len(kept) for name, kept in keep.items()} == {"fc1.fc": 50, "fc2.fc": 30}
    narrow = narrow_model(model, keep)
    assert narrow.get_submodule("conv2.conv").weight.shape == (32, 16, 5, 5)
    assert narrow.get_submodule("fc1.fc").weight.shape == (50, 800)
    everything = plan(feddrop_on(model, layers="all"), fleet).assignments["slow"].keep
    assert {name: len(kept) for name, kept in everything.items()} == {
        "conv1.conv": 2,
        "conv2.conv": 3,
        "fc1.fc": 50,
        "fc2.fc": 30,
    }


def test_feddrop_narrows_convolutions_where_there_is_no_hidden_fully_connected_layer() -> None:
    assert plan(feddrop_on(small_model()), {"fast": 1.0, "slow": 0.1}).assignments["slow"].keep.keys() == {
        "md1.conv",
        "md2.conv",
        "md3.conv",
    }


def test_heterofl_takes_the_first_channels_and_fedrolex_a_window_that_moves() -> None:
    group = {"g": Group(5, ())}
    assert window(group, 0.5, 0) == ordered_keep(group, 0.5) == {"g": (0, 1)}
    assert [window(group, 0.5, start)["g"] for start in range(1, 6)] == [(1, 2), (2, 3), (3, 4), (0, 4), (0, 1)]
    for rolling, expected in ((False, [(0, 1), (0, 1)]), (True, [(0, 1), (1, 2)])):
        method = ready("heterofl", widths=HALVES, levels=[0.1, 1.0], rolling=rolling)
        keeps = [plan(method, {"a": 4.0, "b": 1.0}, round).assignments["b"].keep for round in range(2)]
        assert [keep["md3.conv"] for keep in keeps] == expected


@pytest.mark.parametrize("name", ["feddrop", "heterofl"])
def test_a_narrow_task_is_smaller_and_its_model_physically_narrow(name: str) -> None:
    method = ready(name, widths=HALVES, levels=[0.1, 1.0])
    made = plan(method, {"a": 4.0, "b": 1.0})
    weights = small_model().weights()
    whole, narrow = (method.task_weights(weights, made.assignments[d]) for d in ("a", "b"))
    assert all(whole[key] is weights[key] for key in whole)  # so that its encoding is shared
    assert [*narrow] == [*whole] == method.update_names(made.assignments["b"], {})
    sizes = [max(1, round(width / 2)) for width in WIDTHS]
    assert narrow["md2.conv.weight"].shape == (sizes[1], sizes[0], 3, 3)
    model = narrow_model(small_model(), made.assignments["b"].keep)
    model.load(narrow)
    assert sum(stage_flops(model)) < 0.3 * sum(stage_flops(small_model()))


# ---- merge ----


def contribution(
    method: SubModels, device: str, samples: int, keep: dict[str, tuple[int, ...]], value: float
) -> Contribution:
    made = plan(method, {device: 1.0}).assignments[device]
    assignment = msgspec.structs.replace(made, keep=keep)
    shapes = method.task_weights(small_model().weights(), assignment)
    filled = {n: torch.full_like(w, value) if w.is_floating_point() else w for n, w in shapes.items()}
    return Contribution(device, samples, assignment, filled, {})


@pytest.mark.parametrize("name", ["feddrop", "heterofl"])
@pytest.mark.parametrize(("aggregate", "shared"), [("samples", (10 * 1 + 30 * 5) / 40), ("uniform", 3.0)])
def test_per_coordinate_by_hand(name: str, aggregate: str, shared: float) -> None:
    """Of md1's three filters a had 0 and 1, b had 1 and 2; of md2's four a had 0 alone and b had 0 and 3."""
    method = ready(name, aggregate=aggregate)
    before = small_model().weights()
    keeps: Sequence[dict[str, tuple[int, ...]]] = (
        {"md1.conv": (0, 1), "md2.conv": (0,), "md3.conv": (0,)},
        {"md1.conv": (1, 2), "md2.conv": (0, 3), "md3.conv": (0,)},
    )
    parts = [
        contribution(method, d, n, keep, v) for d, n, keep, v in zip("ab", (10, 30), keeps, (1.0, 5.0), strict=True)
    ]
    merged = method.merge(before, parts)
    assert merged["md1.conv.bias"].tolist() == pytest.approx([1.0, shared, 5.0])
    md2 = merged["md2.conv.weight"][:, :, 0, 0]
    assert md2[0].tolist() == pytest.approx([1.0, shared, 5.0])
    assert md2[3, 1:].tolist() == [5.0, 5.0]
    for row, column in ((3, 0), (1, 0), (2, 2)):  # had by nobody
        assert md2[row, column] == before["md2.conv.weight"][row, column, 0, 0]
    assert merged["md4.fc.bias"].tolist() == pytest.approx([shared] * 4)
    assert torch.equal(merged["head1.fc.weight"], before["head1.fc.weight"])


@pytest.mark.parametrize("name", ["feddrop", "heterofl"])
async def test_at_full_width_it_is_fedavg(name: str) -> None:
    before, sizes = small_model().weights(), {"a": 10, "b": 5}
    plainly = {"heterofl": {"static_norm": False, "masked_loss": False, "aggregate": "samples"}}.get(name, {})
    ours = await play(ready(name, widths=[1.0], **plainly), before, sizes, range(2))
    plain = await play(make_method("fedavg"), before, sizes, range(2))
    assert all(torch.equal(ours[key], plain[key]) for key in before)


@pytest.mark.parametrize("name", ["feddrop", "heterofl"])
async def test_channels_that_nobody_had_stay_to_the_bit(name: str) -> None:
    before = {key: value.clone() for key, value in small_model().weights().items()}
    method = ready(name, widths=HALVES, levels=[0.1, 1.0])
    method.powers.cpus = {"elsewhere": 4.0}  # so that the device here is slow
    keep = plan(method, {"a": 1.0}).assignments["a"].keep
    after = await play(method, before, {"a": 10}, range(1))
    for width, stage in zip(WIDTHS, ("md1", "md2", "md3"), strict=True):
        had = torch.zeros(width, dtype=torch.bool)
        had[list(keep[f"{stage}.conv"])] = True
        moved = (after[f"{stage}.norm.running_mean"] != before[f"{stage}.norm.running_mean"]).logical_and(~had)
        assert not moved.any()
        assert (after[f"{stage}.conv.bias"] != before[f"{stage}.conv.bias"])[had].any()
    assert kept_size(width_groups(small_model())["md3.conv"], 0.5) == 2
