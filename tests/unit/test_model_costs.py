"""`edgebed models`: figures per cut, against the paper and against counting by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from edgebed.errors import EdgebedError, UsageError
from edgebed.models.costs import model_costs, stage_flops
from edgebed.models.staged import MODELS, ModelPlugin, StagedModel, pooled_head
from edgebed.wire.settings import LearningTask
from orchestrator.cli import build


class Hand(ModelPlugin):
    """One convolution and a classifier: small enough to count."""

    name = "hand"

    def build(self, task: LearningTask) -> StagedModel:
        conv = nn.Sequential(OrderedDict(conv=nn.Conv2d(2, 4, 3, padding=1, bias=False), bn=nn.BatchNorm2d(4)))
        return StagedModel([("a", conv), ("b", pooled_head(4, task.classes))], {1: pooled_head(4, task.classes)}, task)


def test_figures_equal_a_count_by_hand() -> None:
    costs = model_costs(Hand(), LearningTask((2, 6, 5), 3), batch=7)
    convolution = 2 * 7 * (4 * 6 * 5) * (2 * 3 * 3)  # a multiply-add is two
    head = 2 * 7 * 4 * 3
    cut, whole = costs.cuts
    assert (cut.after, cut.feature_shape, cut.feature_bytes) == ("a", (4, 6, 5), 7 * 4 * 6 * 5 * 4)
    assert cut.forward_flops == whole.forward_flops == convolution + head
    # The convolution is first: it needs the gradient of its weights only, the head also that of its input.
    assert cut.training_flops == whole.training_flops == 2 * convolution + 3 * head
    assert (cut.server_flops, whole.server_flops) == (3 * head, 0)
    assert costs.training_flops(2) == costs.training_flops(1, head=True) == 2 * convolution + 3 * head
    assert costs.training_flops(2, train_from=1) == convolution + 2 * head
    stage = costs.stages[0]
    counted = (stage.forward_flops, stage.backward_flops, stage.last_backward_flops)
    assert counted == (convolution, 2 * convolution, convolution)
    assert cut.device_parameters == whole.device_parameters == 72 + 8 + 15
    assert cut.device_bytes == 4 * (72 + 8 + 8 + 15) + 8  # and running statistics, and a counter of 8 bytes
    assert (whole.feature_shape, whole.feature_bytes) == ((), 0)
    assert (costs.parameters, costs.head_parameters) == (95, 15)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_grouped_convolution_costs_its_own_products_in_every_pass(groups: int) -> None:
    class Grouped(Hand):
        def build(self, task: LearningTask) -> StagedModel:
            conv = nn.Conv2d(4, 8, 3, padding=1, groups=groups)
            return StagedModel([("a", conv), ("b", pooled_head(8, task.classes))], {}, task)

    stage = model_costs(Grouped(), LearningTask((4, 6, 5), 3), batch=7).stages[0]
    forward = 2 * 7 * (8 * 6 * 5) * (4 // groups * 9)
    counted = (stage.forward_flops, stage.backward_flops, stage.last_backward_flops)
    assert counted == (forward, 2 * forward, forward)


def test_resnet56_sends_what_the_paper_says() -> None:
    costs = model_costs(MODELS.create({"name": "resnet56"}), LearningTask((3, 32, 32), 10), batch=100)
    assert costs.parameters == 591_322
    megabytes = [round(cut.feature_bytes / 1e6, 1) for cut in costs.cuts]
    assert megabytes == [6.6, 26.2, 26.2, 13.1, 13.1, 6.6, 6.6, 0.0]
    assert [cut.after for cut in costs.cuts] == [f"md{i}" for i in range(1, 9)]


@pytest.mark.parametrize("name", [name for name, plugin in MODELS.classes().items() if "pictures" in plugin.takes])
def test_figures_equal_those_of_the_real_model(name: str) -> None:
    plugin = MODELS.create({"name": name})
    model = plugin.build(LearningTask((1, 16, 16), 5))
    costs = model_costs(plugin, LearningTask((1, 16, 16), 5), batch=4)
    for cut in costs.cuts[:-1]:
        assert cut.feature_shape == model.feature_shape(cut.cut)
        state = model.state_dict()
        names = model.names_below(cut.cut, head=cut.cut in model.cuts_with_head)
        assert cut.device_bytes == sum(state[n].numel() * state[n].element_size() for n in names)
    growing = [cut.training_flops for cut in costs.cuts]
    assert growing == sorted(growing)
    assert all(cut.forward_flops < cut.training_flops <= 3 * cut.forward_flops for cut in costs.cuts)


def test_an_input_that_does_not_fit_is_refused() -> None:
    class Picky(Hand):
        def build(self, task: LearningTask) -> StagedModel:
            return StagedModel([("a", nn.Conv2d(3, 4, 9)), ("b", pooled_head(4, task.classes))], {}, task)

    with pytest.raises(UsageError, match="3x4x4"):
        model_costs(Picky(), LearningTask((3, 4, 4), 3), batch=2)


def test_a_model_that_cannot_take_the_shape_is_left_out_of_the_list_and_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MODELS, "names", lambda: ["cnn-mnist", "cnn-small"])
    listed = CliRunner().invoke(build(), ["models", "--json", "--shape", "1x8x8", "--batch", "2"])
    names = {one["name"] for one in json.loads(listed.stdout)}
    assert names == {"cnn-small"}
    named = CliRunner().invoke(build(), ["models", "--model", "cnn-mnist", "--shape", "1x8x8"])
    assert isinstance(named.exception, UsageError)
    assert "16x16" in named.exception.hint


def test_counting_leaves_no_trace() -> None:
    """The default device and the random state are as before: nothing real was built."""
    before = torch.get_rng_state()
    model_costs(MODELS.create({"name": "resnet-tiny"}), LearningTask((1, 8, 8), 10), batch=2)
    assert torch.get_default_device().type == "cpu"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_command_prints_the_figures_as_a_table_and_as_json() -> None:
    arguments = ["models", "--model", "resnet56", "--set", "x"]
    result = CliRunner().invoke(build(), arguments[:3])
    assert result.exit_code == 0
    assert "591,322" in result.stdout
    assert "26.2" in result.stdout
    (one,) = json.loads(CliRunner().invoke(build(), [*arguments[:3], "--json", "--shape", "1x8x8"]).stdout)
    assert (one["name"], one["input_shape"], len(one["cuts"])) == ("resnet56", [1, 8, 8], 8)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "vgg"],
        ["--shape", "32x32"],
        ["--shape", "3x32x0"],
        ["--shape", "3xAx2"],
        ["--data-shape", "3xAx2"],
        ["--set", "widths=[1,2,3]"],
        ["--model", "resnet-tiny", "--set", "widths"],
        ["--model", "resnet-tiny", "--set", "name=resnet56"],
        ["--model", "resnet-tiny", "--set", "widths=[4"],
    ],
)
def test_wrong_arguments_name_the_hint(arguments: list[str]) -> None:
    result = CliRunner().invoke(build(), ["models", *arguments])
    assert isinstance(result.exception, EdgebedError)
    assert result.exception.exit_code == 2
    assert result.exception.hint


def test_methods_plan_with_the_same_count_and_a_device_never_loads_torchs_counter() -> None:
    plugin = MODELS.create({"name": "mobilenet"})
    stages = model_costs(plugin, LearningTask((3, 32, 32), 10), 1).stages
    assert stage_flops(plugin.build(LearningTask((3, 32, 32), 10))) == [max(1, stage.forward_flops) for stage in stages]
    asked = (
        "import sys, edgebed.methods.base as b; b.METHODS.classes(); print('torch.utils.flop_counter' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
