"""Width groups: what belongs together, narrow networks that equal masked ones, merges per coordinate."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from edgebed.errors import UsageError
from edgebed.methods.parts.aggregation import average
from edgebed.models.staged import MODELS, StagedModel, Weights, flat_head, pooled_head, seeded
from edgebed.models.width import (
    Group,
    Keep,
    Member,
    logits_group,
    narrow_model,
    ordered_keep,
    random_keep,
    scatter_mean,
    slice_weights,
    width_groups,
)
from edgebed.wire.settings import LearningTask

SHAPE, CLASSES = (2, 16, 16), 3
PICTURES = [name for name, plugin in MODELS.classes().items() if "pictures" in plugin.takes]
NAMES = [name for name in PICTURES if name != "resnet110"]  # resnet56, longer


def make(name: str, seed: int = 0, shape: tuple[int, ...] = SHAPE, **options: object) -> StagedModel:
    plugin = MODELS.create({"name": name, **MODELS.classes()[name].small, **options})
    return seeded(lambda: plugin.build(LearningTask(shape, CLASSES)), seed)


def lived_in(model: StagedModel) -> StagedModel:
    """With running statistics, scales and shifts that are not those of a new batch norm."""
    generator = torch.Generator().manual_seed(9)
    for name, value in model.weights().items():
        if value.is_floating_point() and value.dim() == 1:
            value.copy_(torch.rand(value.shape, generator=generator) + (0.5 if "running_var" in name else 0.0))
    return model


def pictures(count: int = 3, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


def masked(model: StagedModel, keep: Keep) -> StagedModel:
    """The full network with zeros wherever the narrow one has no weight."""
    groups, weights = width_groups(model), model.weights()
    zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
    model.load(scatter_mean(zeros, groups, [(1.0, slice_weights(weights, groups, keep), keep)]))
    return model


def some_of(model: StagedModel, fraction: float = 0.5) -> Keep:
    return random_keep(width_groups(model), fraction, torch.Generator().manual_seed(4))


# ---- groups ----


def test_a_plain_network_has_a_group_per_hidden_layer() -> None:
    groups = width_groups(make("cnn-mnist", shape=(1, 28, 28)))
    assert {name: group.size for name, group in groups.items()} == {"conv1.conv": 8, "conv2.conv": 16, "fc1.fc": 128}
    assert set(groups["conv2.conv"].members) == {
        Member("conv2.conv.weight", 0),
        Member("conv2.conv.bias", 0),
        Member("fc1.fc.weight", 1, repeat=16),  # 4x4 pixels per channel
        Member("head2.fc.weight", 1),
    }


def test_what_a_residual_block_adds_up_is_one_group() -> None:
    groups = width_groups(make("resnet8", shape=(3, 32, 32)))
    assert {name: group.size for name, group in groups.items()} == {
        "stem.0.conv": 16,
        "block1.layers.0.conv": 16,
        "block2.layers.0.conv": 32,
        "block2.layers.2.conv": 32,
        "block3.layers.0.conv": 64,
        "block3.layers.2.conv": 64,
    }
    joined = {member.tensor for member in groups["stem.0.conv"].members if member.dim == 0}
    assert {"stem.0.conv.weight", "block1.layers.2.conv.weight", "block1.layers.2.bn.running_var"} <= joined
    assert "block1.layers.0.conv.weight" not in joined


def test_a_depthwise_convolution_belongs_to_the_channels_it_works_on() -> None:
    stem = width_groups(make("mobilenet"))["stem.0.conv"]
    assert Member("pair1.0.conv.weight", 0) in stem.members
    assert Member("pair1.2.conv.weight", 1) in stem.members


class Odd(nn.Module):
    """A module the walk does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1)


@pytest.mark.parametrize("between", [Odd(), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1, groups=2)])
def test_channels_at_a_module_that_is_not_known_keep_their_width(between: nn.Module) -> None:
    stages: list[tuple[str, nn.Module]] = [
        ("a", nn.Sequential(nn.Conv2d(2, 4, 3), between, nn.Conv2d(4, 6, 3))),
        ("b", pooled_head(6, CLASSES)),
    ]
    model = StagedModel(stages, {1: pooled_head(6, CLASSES)}, LearningTask(SHAPE, CLASSES))
    assert list(width_groups(model)) == ["a.2"]
    keep = {"a.2": (1, 4)}
    assert torch.allclose(narrow_model(model, keep)(pictures()), masked(model, keep)(pictures()), atol=1e-6)


def test_a_layer_that_reads_the_columns_of_a_map_is_no_reader_of_channels() -> None:
    stages: list[tuple[str, nn.Module]] = [
        ("a", nn.Conv2d(2, 16, 3, padding=1)),
        ("b", nn.Sequential(OrderedDict(columns=nn.Linear(16, 5), out=flat_head(16 * 16 * 5, CLASSES)))),
    ]
    assert "a" not in width_groups(StagedModel(stages, {}, LearningTask(SHAPE, CLASSES)))


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_but_the_last_and_the_input_can_be_narrowed(name: str) -> None:
    """Nothing of the networks here is unknown to the walk: each axis of channels is in one group or at an end."""
    model = make(name)
    grouped = {(member.tensor, member.dim) for group in width_groups(model).values() for member in group.members}
    ends = {(f"{path}.weight", 0) for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    first = next(name for name in model.state_dict() if name.endswith("weight"))
    depthwise = {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.groups > 1
    }
    axes = {(name, dim) for name, value in model.state_dict().items() for dim in range(min(2, value.dim()))}
    logits = {axis for axis in ends if model.state_dict()[axis[0]].shape[0] == CLASSES}
    biases = {(axis[0].replace("weight", "bias"), 0) for axis in logits}
    assert axes - grouped == logits | biases | {(first, 1)} | {(name, 1) for name in depthwise}


# ---- narrow networks ----


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_network_equals_the_full_one_with_the_dropped_channels_at_zero(name: str) -> None:
    """In evaluation at every cut and head, and in training, batch statistics included."""
    model, x = lived_in(make(name)), pictures(5)
    keep = some_of(model)
    narrow, full = narrow_model(model, keep), masked(lived_in(make(name)), keep)
    assert sum(p.numel() for p in narrow.parameters()) < 0.8 * sum(p.numel() for p in model.parameters())
    for training in (False, True):
        narrow.train(training), full.train(training)
        assert torch.allclose(narrow(x), full(x), rtol=1e-3, atol=1e-4)
    narrow.eval(), full.eval()
    for cut in model.cuts_with_head:
        assert torch.allclose(narrow.head(cut)(narrow.lower(cut)(x)), full.head(cut)(full.lower(cut)(x)), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_network_computes_less_and_remembers_its_sizes(name: str) -> None:
    model = make(name)
    narrow = narrow_model(model, some_of(model))
    assert 0 < operations(narrow) < 0.8 * operations(model)
    for module in narrow.modules():
        if isinstance(module, nn.Conv2d):
            assert tuple(module.weight.shape[:2]) == (module.out_channels, module.in_channels // module.groups)
        if isinstance(module, nn.Linear):
            assert tuple(module.weight.shape) == (module.out_features, module.in_features)
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_mean.shape == (module.num_features,)


def operations(model: StagedModel) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        model(pictures()).sum().backward()
    total: int = counter.get_total_flops()
    return total


def test_the_full_model_stays_as_it_was_and_shares_nothing() -> None:
    model = make("resnet8")
    before = {name: value.clone() for name, value in model.weights().items()}
    narrow = narrow_model(model, some_of(model))
    optimizer = torch.optim.SGD(narrow.parameters(), lr=0.1)
    narrow.train()(pictures()).sum().backward()
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.weights().items())


def test_a_narrow_network_loads_sliced_weights_and_splits_like_any_other() -> None:
    model, other, x = make("resnet-tiny"), lived_in(make("resnet-tiny", seed=5)), pictures()
    keep = some_of(model)
    narrow = narrow_model(model, keep)
    narrow.load(slice_weights(other.weights(), width_groups(model), keep))
    narrow.eval()
    assert torch.equal(narrow(x), narrow_model(other, keep).eval()(x))
    assert torch.equal(narrow(x), narrow.upper(4)(narrow.lower(4)(x)))


@pytest.mark.parametrize("fraction", [0.01, 1.0])
def test_one_channel_of_each_group_is_still_a_network(fraction: float) -> None:
    for name in ("mobilenet", "resnet8", "fcnn"):
        model = make(name)
        keep = ordered_keep(width_groups(model), fraction)
        x = pictures()
        narrow = narrow_model(model, keep).eval()
        assert narrow(x).shape == (3, CLASSES)
        if fraction == 1.0:
            assert torch.equal(narrow(x), model.eval()(x))


@pytest.mark.parametrize(
    ("keep", "what"),
    [
        ({"fc9": (0,)}, "no width group 'fc9'"),
        ({"fc1.fc": ()}, "cannot keep"),
        ({"fc1.fc": (3, 1)}, "cannot keep"),
        ({"fc1.fc": (1, 1)}, "cannot keep"),
        ({"fc1.fc": (0, 400)}, "of 400 cannot keep"),
        ({"fc1.fc": (-1, 2)}, "cannot keep"),
    ],
)
def test_a_wrong_keep_is_refused(keep: Keep, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        narrow_model(make("fcnn"), keep)
    assert caught.value.hint


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5])
def test_a_wrong_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="a width of"):
        ordered_keep(width_groups(make("fcnn")), fraction)


def test_choices_of_width() -> None:
    groups = {"a": Group(10, ()), "b": Group(3, ())}
    assert ordered_keep(groups, 0.5) == {"a": (0, 1, 2, 3, 4), "b": (0, 1)}
    drawn = [random_keep(groups, 0.5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(kept) for kept in drawn[0].values()] == [5, 2]


# ---- slicing and putting back ----


@pytest.mark.parametrize("name", NAMES)
def test_slicing_and_putting_back_is_the_identity_to_the_bit(name: str) -> None:
    """With full widths everything, with narrow ones what they had; the rest stays."""
    model, other = make(name), make(name, seed=3)
    groups, weights = width_groups(model), model.weights()
    for keep in ({}, ordered_keep(groups, 1.0), some_of(model)):
        sliced = slice_weights(other.weights(), groups, keep)
        merged = scatter_mean(weights, groups, [(3.0, sliced, keep)])
        again = slice_weights(merged, groups, keep)
        assert all(torch.equal(again[key], value) for key, value in sliced.items())
    assert all(torch.equal(merged[key], value) for key, value in weights.items()) is False
    untouched = scatter_mean(weights, groups, [])
    assert all(torch.equal(untouched[key], value) for key, value in weights.items())


def test_with_full_widths_the_merge_is_the_mean_by_name_to_the_bit() -> None:
    models = [lived_in(make("resnet8", seed=seed)).weights() for seed in range(4)]
    groups, shares = width_groups(make("resnet8")), (3.0, 7.0, 0.3)
    ours = scatter_mean(models[0], groups, [(s, w, {}) for s, w in zip(shares, models[1:], strict=True)])
    plain = average(models[0], list(zip(shares, models[1:], strict=True)))
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_counters_take_the_maximum() -> None:
    merged = scatter_mean({"n": torch.tensor(1)}, {}, [(1.0, {"n": torch.tensor(v)}, {}) for v in (4, 6, 5)])
    assert merged["n"].item() == 6


def test_without_a_layer_that_is_known_the_logits_are_no_group() -> None:
    def group(*layers: nn.Module) -> set[str]:
        return set(logits_group(StagedModel([("only", nn.Sequential(*layers))], {}, LearningTask((3,), 3))))

    assert group(nn.Flatten()) == group(nn.Linear(3, 4), nn.Flatten()) == set()
    assert group(nn.Linear(3, 3)) == {"logits"}


SIZES = {"a": 3, "b": 2}
GROUPS = {
    "a": Group(3, (Member("one", 0), Member("bias", 0), Member("two", 1, repeat=2))),
    "b": Group(2, (Member("two", 0),)),
}
SHAPES = {"one": (3, 2, 2), "bias": (3,), "two": (2, 6), "free": (2,)}

numbers = st.floats(-8, 8, width=32)
shares = st.floats(0.125, 8, width=32)
kept = st.fixed_dictionaries(
    {},
    optional={
        name: st.sets(st.integers(0, size - 1), min_size=1).map(lambda some: tuple(sorted(some)))
        for name, size in SIZES.items()
    },
)


@st.composite
def full_weights(draw: st.DrawFn) -> Weights:
    return {
        name: torch.tensor(draw(st.lists(numbers, min_size=n, max_size=n))).reshape(shape)
        for name, shape in SHAPES.items()
        for n in [torch.Size(shape).numel()]
    }


@settings(max_examples=60, deadline=None)
@given(full_weights(), st.lists(st.tuples(shares, full_weights(), kept), max_size=4))
def test_every_coordinate_is_the_mean_over_the_devices_that_had_it(
    current: Weights, devices: list[tuple[float, Weights, Keep]]
) -> None:
    merged = scatter_mean(current, GROUPS, [(s, slice_weights(w, GROUPS, keep), keep) for s, w, keep in devices])
    for name, shape in SHAPES.items():
        for place in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist():
            had = [(s, float(w[name][tuple(place)])) for s, w, keep in devices if holds(keep, name, place)]
            total = sum(s for s, _ in had)
            want = sum(s * v for s, v in had) / total if had else float(current[name][tuple(place)])
            assert float(merged[name][tuple(place)]) == pytest.approx(want, rel=1e-6, abs=1e-6)
            if not had:
                assert merged[name][tuple(place)] == current[name][tuple(place)]


def holds(keep: Keep, name: str, place: list[int]) -> bool:
    """Whether a device that kept `keep` has this coordinate, from the members by definition."""
    return all(
        place[member.dim] // member.repeat in keep.get(group, range(SIZES[group]))
        for group, entry in GROUPS.items()
        for member in entry.members
        if member.tensor == name
    )
