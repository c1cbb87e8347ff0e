"""Networks of people's own, cut by themselves: equal to the uncut network to the bit, and what is said where none can
be cut."""

from __future__ import annotations

import builtins
import copy
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from edgebed.errors import UsageError
from edgebed.methods.base import METHODS, Context
from edgebed.models.cutting import cut
from edgebed.models.learning import blank_x, loss_of
from edgebed.models.network import head_for
from edgebed.models.staged import MODELS, ModelPlugin, StagedModel
from edgebed.plugin_code import forget, read_plugin, use
from edgebed.wire.settings import LearningTask
from tests.contract.models import CHECKS, TASKS, batch, make

FILE = Path(__file__).parents[1] / "networks.py"
KINDS = {
    "Residual": "pictures",
    "Dense": "pictures",
    "MobileNetV3": "pictures",
    "Inception": "pictures",
    "Vit": "pictures",
    "ChannelsLast": "pictures",
    "Branched": "pictures",
    "Text": "sequences of tokens",
    "Mlp": "rows of a table",
}
(TO_THE_BIT,) = [check for check in CHECKS if check.__name__.startswith("any_cut")]
UNCUT = {"BranchOnData": "branch", "Trains": "it trains", "InPlace": "changed later"}
"""Words in the line that is named."""


@pytest.fixture(autouse=True)
def plugged() -> Iterator[None]:
    use([read_plugin(str(FILE))])
    yield
    forget("networks")


def network(cls: str, **options: Any) -> ModelPlugin:
    return MODELS.create({"file": FILE.name, "class": cls, **options})


def uncut(plugin: ModelPlugin, task: LearningTask) -> nn.Module:
    """The network as it is, with the same weights."""
    (stage,) = (model := make(network(plugin.options.class_, stages=1), task)).stage_names
    assert not model.uncut
    return model.get_submodule(stage).train()


def learned(net: nn.Module, task: LearningTask, *, staged: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What two steps and a test give: results, and gradients and buffers by name, without that of the stage."""
    x, y = batch(task)
    torch.manual_seed(5)
    outs = []
    for _ in range(2):
        outs.append(net(x))
        loss_of(outs[-1], y).backward()
    outs.append(net.eval()(x))
    found = {name: parameter.grad for name, parameter in net.named_parameters()} | dict(net.named_buffers())
    if staged:
        own = {name: value for name, value in found.items() if not re.match(r"head\d", name)}
        found = {name.partition(".")[2]: value for name, value in own.items()}
    assert all(value is not None for value in found.values())
    return outs, {name: value for name, value in found.items() if not name.endswith((".value", "ids"))}  # no weights


def assert_equal(net: nn.Module, cut: nn.Module, task: LearningTask) -> None:
    (outs, values), (outs2, values2) = learned(net, task, staged=False), learned(cut, task, staged=True)
    assert all(torch.equal(a, b) for a, b in zip(outs, outs2, strict=True))
    assert values.keys() == values2.keys()
    assert [name for name in values if not torch.equal(values[name], values2[name])] == []


@pytest.mark.parametrize(("cls", "kind"), KINDS.items())
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_the_stages_learn_what_the_network_learns_to_the_bit(cls: str, kind: str, stages: int) -> None:
    plugin, task = network(cls, stages=stages), TASKS[kind]
    whole, model = uncut(plugin, task), make(plugin, task).train()
    assert 2 <= len(model) <= stages
    ours = {name.partition(".")[2]: v for name, v in model.state_dict().items() if name.partition(".")[0][0].isdigit()}
    tied = {f"6.{name}" for name in ("weight", "bias")} if cls == "Mlp" else set()  # the names of 4 stand for them
    assert ours.keys() == whole.state_dict().keys() - tied
    assert_equal(whole, model, task)


@pytest.mark.parametrize(
    ("cls", "check"), [(c, k) for c in KINDS for k in CHECKS if (c, k) != ("ChannelsLast", TO_THE_BIT)]
)
def test_it_does_what_every_model_does(cls: str, check: Callable[[ModelPlugin, LearningTask], None]) -> None:
    still = {"with": {"dropout": 0.0}} if cls in ("Vit", "MobileNetV3", "ChannelsLast") else {}
    check(network(cls, **still), TASKS[KINDS[cls]])


def test_features_in_another_order_of_memory_give_gradients_equal_but_for_rounding() -> None:
    plugin, task = network("ChannelsLast", **{"with": {"dropout": 0.0}}), TASKS["pictures"]
    x, y = batch(task)
    whole = make(plugin, task).train()
    loss_of(whole(x), y).backward()
    for place in range(1, len(whole)):
        halves = make(plugin, task).train()
        z = halves.lower(place)(x)
        received = z.detach().clone().requires_grad_()
        loss_of(halves.upper(place)(received), y).backward()
        z.backward(received.grad)
        for name, parameter in halves.named_parameters():
            if not name.startswith("head"):
                torch.testing.assert_close(parameter.grad, whole.get_parameter(name).grad)


@pytest.mark.parametrize("name", [name for name, cls in MODELS.classes().items() if "pictures" in cls.takes])
def test_our_own_models_are_cut_and_stay_equal(name: str) -> None:
    task, cls = TASKS["pictures"], MODELS.classes()[name]
    model = make(MODELS.create({"name": name, **cls.small}), task)
    whole = model.stages(0, len(model)).train()
    pieces = cut(copy.deepcopy(whole), blank_x(task, 3), 5)
    assert 1 < len(pieces) <= 5
    assert_equal(whole, nn.Sequential(*(piece.module for piece in pieces)).train(), task)


@pytest.mark.parametrize(("cls", "kind"), KINDS.items())
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_copies_are_equal(cls: str, kind: str, copied: Callable[[StagedModel], StagedModel]) -> None:
    model, task = make(network(cls), TASKS[kind]), TASKS[kind]
    other = copied(copied(model))
    assert list(other.state_dict()) == list(model.state_dict())
    for mode in (True, False):
        torch.manual_seed(1)
        expected = model.train(mode)(batch(task)[0])
        torch.manual_seed(1)
        assert torch.equal(other.train(mode)(batch(task)[0]), expected)


def test_places_are_ends_of_modules_and_their_costs_are_balanced() -> None:
    model = make(network("Residual", stages=4), TASKS["pictures"])
    assert model.stage_names == ["1-layer1-0", "2-layer1", "3-layer2-0", "4-end"]
    vit = make(network("Vit", stages=5), TASKS["pictures"])
    assert vit.feature_shape(1) == (17, 16)


@pytest.mark.parametrize(("cls", "words"), UNCUT.items())
def test_one_that_cannot_be_cut_says_the_line_and_trains_whole(cls: str, words: str) -> None:
    model = make(network(cls), TASKS["rows of a table"])
    assert model.stage_names == ["network"]
    assert model.cuts_with_head == []
    (number,) = re.findall(r"line (\d+) of networks.py", model.uncut)
    assert words in FILE.read_text().splitlines()[int(number) - 1]
    x, y = batch(TASKS["rows of a table"])
    loss_of(model.train()(x), y).backward()
    METHODS.create({"name": "fedavg"}).setup(Context({}, model, {}, server_slots=1, devices=("a",)))


def test_weights_that_are_tied_across_all_places_are_named() -> None:
    model = make(network("NextToken"), TASKS["the next token of sequences"])
    assert model.stage_names == ["network"]
    assert "embed.weight is used before and behind line" in model.uncut


def test_a_result_that_is_no_tensor_is_refused_with_the_line() -> None:
    with pytest.raises(UsageError, match=r"gives a tuple .* line \d+ of networks.py") as error:
        network("TwoResults").build(TASKS["rows of a table"])
    number = int(re.findall(r"line (\d+)", str(error.value))[0])
    assert "# two" in FILE.read_text().splitlines()[number - 1]


def test_mistakes_of_the_choice_are_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'Residual'"):
        network("Residul").build(TASKS["pictures"])
    with pytest.raises(UsageError, match=r"cannot take an input of 5.*line \d+ of networks.py"):
        network("Mlp").build(LearningTask((5, 2, 2), 3)) if False else network("ChannelsLast").build(
            LearningTask((5,), 3)
        )
    with pytest.raises(UsageError, match="wide"):
        network("MobileNetV3", **{"with": {"wide": 3}}).build(TASKS["pictures"])


def test_heads_by_the_shape_of_the_features() -> None:
    for features, task in (
        ((7,), TASKS["pictures"]),
        ((4, 6), TASKS["pictures"]),
        ((5, 4, 4), TASKS["pictures"]),
        ((4, 4, 5), TASKS["pictures"]),
        ((2, 3, 4, 5), TASKS["pictures"]),
        ((6, 8), TASKS["the next token of sequences"]),
    ):
        head = head_for(features, task)
        assert head is not None
        assert head(torch.randn(2, *features)).shape == (2, *task.answer_shape, task.classes)
    assert head_for((8,), TASKS["the next token of sequences"]) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"file": "os.py", "class": "system", "with": {"command": "true"}},
        {"file": "networks.py", "class": "Tensor"},
        {"file": "networks.py", "class": "nn.Linear"},
    ],
)
def test_code_that_is_none_of_the_plug_in_is_never_called(spec: dict[str, Any]) -> None:
    """A board that takes no code would run it, were the orchestrator's word enough."""
    with pytest.raises(UsageError, match="has no"):
        MODELS.create(spec).build(TASKS["pictures"])


def test_a_class_that_is_no_network_is_never_made() -> None:
    """A task could make any object of a plug-in that is installed on a board."""
    with pytest.raises(UsageError, match=r"NoNetwork of networks\.py makes no torch\.nn\.Module"):
        network("NoNetwork", **{"with": {"command": "true"}}).build(TASKS["pictures"])
    assert sys.modules["networks"].NoNetwork.made == []


CODE = 'x", setattr(__import__("builtins"), "planted", True) or (lambda x: x) or "'


@pytest.mark.parametrize("name", [CODE, "a\\", "a\n", "lambda"])
def test_the_name_of_a_layer_becomes_no_code(name: str) -> None:
    """torch.fx writes names into the code of a piece, between quotes: what `with` says of them came to be run."""
    task = TASKS["rows of a table"]
    model = make(network("Named", **{"with": {"names": ["a", name, "b"]}}), task)
    model(batch(task)[0])
    assert not hasattr(builtins, "planted")
    assert model.stage_names == ["network"]
    assert "a layer is called" in model.uncut
    assert len(make(network("Named", **{"with": {"names": ["a-1", "b 2"]}}), task)) > 1
