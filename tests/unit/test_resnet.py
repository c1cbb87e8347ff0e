"""The networks of the DTFL paper: sizes exact, cut anywhere without changing a bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgebed.errors import PluginError, UsageError
from edgebed.models.staged import MODELS, StagedModel, head_name, seeded
from edgebed.wire.settings import LearningTask

NAMES = [f"md{i}" for i in range(1, 9)]


def make(
    name: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, seed: int = 0, **options: object
) -> StagedModel:
    plugin = MODELS.create({"name": name, **options})
    return seeded(lambda: plugin.build(LearningTask(shape, classes)), seed)


def parameters(model: StagedModel) -> int:
    """Without heads."""
    return sum(p.numel() for name in model.stage_names for p in model.get_submodule(name).parameters())


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [("resnet56", 10, 591_322), ("resnet56", 100, 591_322 + 90 * 257), ("resnet110", 10, 1_147_738)],
)
def test_parameters_are_those_of_the_paper(name: str, classes: int, expected: int) -> None:
    assert parameters(make(name, classes=classes)) == expected


def test_blocks_and_strides_are_those_of_the_tables() -> None:
    """3 and 6 bottlenecks per module, 56 and 110 layers deep: the stem, three per block, the fc."""
    for name, blocks in (("resnet56", 3), ("resnet110", 6)):
        model = make(name)
        depth = 2 + sum(3 * len(model.get_submodule(md)) for md in NAMES[1:7])  # type: ignore[arg-type]
        assert depth == 2 + 18 * blocks
        assert depth == int(name.removeprefix("resnet"))


@pytest.mark.parametrize("name", ["resnet56", "resnet110"])
def test_features_have_the_shapes_of_the_paper(name: str) -> None:
    model = make(name)
    sides = [(16, 32), (64, 32), (64, 32), (128, 16), (128, 16), (256, 8), (256, 8)]
    assert [model.feature_shape(cut) for cut in range(1, 8)] == [(c, s, s) for c, s in sides]
    assert model.cuts_with_head == list(range(1, 8))
    for cut, (channels, _) in enumerate(sides, 1):
        assert [tuple(p.shape) for p in model.head(cut).parameters()] == [(10, channels), (10,)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 64, 48), (4, 5, 7)])
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_any_input_size_and_number_of_channels(shape: tuple[int, ...], block: str) -> None:
    model = make("resnet-tiny", shape, 7, block=block)
    x = torch.randn(2, *shape)
    assert model(x).shape == (2, 7)
    for cut in model.cuts_with_head:
        assert model.head(cut)(model.lower(cut)(x)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet56", "resnet-tiny"])
@pytest.mark.parametrize("training", [True, False])
def test_any_cut_composes_to_the_whole_to_the_bit(name: str, training: bool) -> None:
    """Training and evaluation; tests/contract checks the gradients."""
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for cut in range(9):
        whole, halves = make(name, (3, 8, 8)).train(training), make(name, (3, 8, 8)).train(training)
        assert torch.equal(whole(x), halves.upper(cut)(halves.lower(cut)(x)))
        assert all(torch.equal(a, b) for a, b in zip(whole.weights().values(), halves.weights().values(), strict=True))


def test_weights_are_named_by_stage_and_head_and_every_half_finds_its_own() -> None:
    model = make("resnet-tiny")
    state = set(model.state_dict())
    assert {name.split(".")[0] for name in state} == {*NAMES, *(head_name(cut) for cut in range(1, 8))}
    heads = {name for name in state if name.startswith("head")}
    for cut in range(9):
        below, above = set(model.names_below(cut, head=False)), set(model.upper(cut).state_dict())
        assert not below & above
        assert below | above | heads == state
        assert set(model.lower(cut).state_dict()) == below
    assert set(model.names_below(2, head=True)) - set(model.names_below(2, head=False)) == {
        "head2.fc.weight",
        "head2.fc.bias",
    }


def test_halves_of_two_models_merge_by_name() -> None:
    """The device half of one and the server half of another give the model that consists of both."""
    x = torch.randn(2, 3, 8, 8)
    a, b, c = (make("resnet-tiny", (3, 8, 8), seed=seed).eval() for seed in (1, 2, 3))
    c.load({name: a.weights()[name] for name in a.names_below(4, head=True)})
    c.load({name: b.weights()[name] for name in b.upper(4).state_dict()})
    assert torch.equal(c(x), b.upper(4)(a.lower(4)(x)))
    assert torch.equal(c.head(4)(c.lower(4)(x)), a.head(4)(a.lower(4)(x)))
    assert not torch.equal(c.weights()["head3.fc.weight"], a.weights()["head3.fc.weight"])


def test_foreign_weights_are_refused_by_name() -> None:
    model = make("resnet-tiny")
    with pytest.raises(UsageError, match=r"no weight 'md9\.x'"):
        model.load({"md9.x": torch.zeros(1)})
    with pytest.raises(UsageError, match=r"head1\.fc\.bias.*\(3,\)"):
        model.load({"head1.fc.bias": torch.zeros(3)})


def test_the_seed_decides_the_weights_and_leaves_the_callers_random_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = make("resnet-tiny", seed=1), make("resnet-tiny", seed=1), make("resnet-tiny", seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.weights().values(), b.weights().values(), strict=True))
    assert not torch.equal(a.weights()["md2.0.layers.0.conv.weight"], c.weights()["md2.0.layers.0.conv.weight"])


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"widths": [4, 8]}, "widths is [4, 8]; it must be a list of 3", "a list of 3, such as ["),
        ({"widths": [0, 8, 8]}, "widths[0] is 0", "a whole number of at least 1"),
        ({"blocks": 0}, "blocks is 0", "a whole number of at least 1, such as 1"),
        ({"block": "dense"}, "block is 'dense'", "one of: basic, bottleneck"),
        ({"depth": 3}, "there is no key 'depth'", "widths, blocks, block"),
    ],
)
def test_wrong_options_are_refused_with_what_to_write(options: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(PluginError) as caught:
        make("resnet-tiny", **options)
    assert said in str(caught.value)
    assert hint in caught.value.hint
