"""The networks of S²FL, FedPMT and the early-exit paper: sizes exact, inputs they take, options they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from edgebed.errors import EdgebedError, PluginError, UsageError
from edgebed.models.staged import MODELS, StagedModel
from edgebed.wire.settings import LearningTask


def make(name: str, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, **options: object) -> StagedModel:
    return MODELS.create({"name": name, **options}).build(LearningTask(shape, classes))


def parameters(model: StagedModel) -> int:
    """Without heads."""
    return sum(p.numel() for name in model.stage_names for p in model.get_submodule(name).parameters())


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("resnet8", (3, 32, 32), 78_042),  # 432+32 · 4672 · 14528 with projection · 57728 with projection · 650
        ("resnet18", (3, 32, 32), 11_173_962),
        ("vgg16", (3, 32, 32), 15_119_690),  # S²FL: x 20 x the rounds of table 3 (`edgebed reproduce s2fl-eq1`)
        ("mobilenet", (3, 32, 32), 3_217_226),
        ("fcnn", (1, 28, 28), 784 * 400 + 400 * 300 + 300 * 200 + 200 * 100 + 100 * 10 + 1010),
        ("cnn-mnist", (1, 28, 28), 25 * 8 + 25 * 8 * 16 + 256 * 128 + 128 * 10 + 162),
        ("cnn-cifar10", (3, 32, 32), 75 * 16 + 25 * 16 * 32 + 800 * 500 + 500 * 300 + 300 * 10 + 858),
    ],
)
def test_parameters_are_those_of_the_published_networks(name: str, shape: tuple[int, ...], expected: int) -> None:
    with torch.device("meta"):
        assert parameters(make(name, shape)) == expected


@pytest.mark.parametrize(
    ("name", "depth"), [("resnet8", 8), ("resnet18", 18), ("vgg16", 16), ("mobilenet", 28), ("fcnn", 5)]
)
def test_depth(name: str, depth: int) -> None:
    """Layers with weights along the longest way."""
    with torch.device("meta"):
        model = make(name)
    layers = [
        path
        for path, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "project" not in path and not path.startswith("head")
    ]
    assert len(layers) == depth


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("resnet8", [(16, 32, 32), (16, 32, 32), (32, 16, 16)]),
        ("vgg16", [(128, 8, 8), (256, 4, 4), (512, 2, 2)]),
        ("mobilenet", [(128, 16, 16), (256, 8, 8), (512, 4, 4)]),
    ],
)
def test_s2fl_has_three_cuts_with_ever_more_of_the_network_on_the_device(
    name: str, features: list[tuple[int, ...]]
) -> None:
    with torch.device("meta"):
        model = make(name)
        sizes = [sum(p.numel() for p in model.lower(cut).parameters()) for cut in model.split_points]
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes))
    assert [make(name).feature_shape(cut) for cut in model.split_points] == features


def test_a_model_that_names_no_split_points_offers_every_cut() -> None:
    assert make("fcnn", (1, 8, 8)).split_points == (1, 2, 3, 4)


@pytest.mark.parametrize(("exits", "cuts"), [([2, 5], [3, 6]), ([5, 7], [6, 8]), ([], []), ([8], [9])])
def test_resnet18_has_its_exits_behind_the_blocks_asked_for(exits: list[int], cuts: list[int]) -> None:
    model = make("resnet18", (1, 8, 8), 7, exits=exits, width=4)
    assert model.cuts_with_head == cuts
    assert [model.stage_names[cut - 1] for cut in cuts] == [f"block{block}" for block in exits]
    for cut in cuts:
        assert model.head(cut)(model.lower(cut)(torch.zeros(2, 1, 8, 8))).shape == (2, 7)


def test_resnet18_halves_the_map_at_blocks_3_5_and_7() -> None:
    with torch.device("meta"):
        model = make("resnet18")
        shapes = [model.feature_shape(cut) for cut in (1, 3, 5, 7, 9)]
    assert shapes == [(64, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_vgg16_without_batch_norm_has_biases() -> None:
    model = make("vgg16", (1, 8, 8), width=2, batch_norm=False)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert all(f"conv{i}.conv.bias" in model.state_dict() for i in range(1, 14))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 20, 33)])
@pytest.mark.parametrize("name", ["resnet8", "resnet18", "vgg16", "mobilenet", "fcnn", "cnn-small"])
def test_any_picture_from_8x8(name: str, shape: tuple[int, ...]) -> None:
    model = make(name, shape, 7, **MODELS.classes()[name].small)
    assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "side", "least"), [("cnn-mnist", 8, 16), ("cnn-cifar10", 15, 16), ("cnn-small", 3, 4)]
)
def test_a_picture_too_small_is_refused_with_the_least_side(name: str, side: int, least: int) -> None:
    with pytest.raises(UsageError, match=rf"{name} .* 1x{side}x{side}") as caught:
        make(name, (1, side, side))
    assert f"{least}x{least}" in caught.value.hint
    assert make(name, (1, least, least))(torch.zeros(2, 1, least, least)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"exits": [5, 2]}),
        ("resnet18", {"exits": [2, 2]}),
        ("resnet18", {"exits": [0]}),
        ("resnet18", {"exits": [9]}),
        ("resnet8", {"width": 0}),
        ("vgg16", {"batch_norm": "no"}),
        ("fcnn", {"hidden": [10, 0]}),
        ("cnn-mnist", {"hidden": [10]}),
    ],
)
def test_wrong_options_name_the_hint(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(EdgebedError) as caught:
        make(name, (1, 28, 28), **options)
    assert isinstance(caught.value, (PluginError, UsageError))
    assert caught.value.hint


def test_every_stage_of_fedpmts_networks_has_weights_to_train() -> None:
    for name, stages in (
        ("fcnn", ["fc1", "fc2", "fc3", "fc4", "fc5"]),
        ("cnn-mnist", ["conv1", "conv2", "fc1", "fc2"]),
        ("cnn-cifar10", ["conv1", "conv2", "fc1", "fc2", "fc3"]),
    ):
        model = make(name)
        assert model.stage_names == stages
        assert all(len(list(model.get_submodule(stage).parameters())) == 2 for stage in stages)
