"""A trained part of the weights: adapters, what is frozen, and what goes over the link."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from edge_agent.training import DeviceTrainer, TaskIO
from edgebed.datasets.shard import VERSION, About, Shard
from edgebed.device.phases import PhaseLog
from edgebed.errors import PluginError, UsageError
from edgebed.methods.base import METHODS, Context, Method, trained_names
from edgebed.methods.parts.aggregation import fault
from edgebed.methods.parts.local_training import DevicePart, UpperHalf
from edgebed.models.costs import model_costs
from edgebed.models.learning import blank_x, loss_of, task_at
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.models.trained_part import LoraLinear
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Task, encode
from edgebed.wire.settings import Codec, LearningTask
from orchestrator.rounds.frozen_base import FrozenBase
from orchestrator.runs.feasibility import check_methods
from orchestrator.testing.rounds import SCHEDULE, view
from tests.unit._experiments import PATH, experiment

CPU = torch.device("cpu")
NEXT = LearningTask((6,), 7, vocabulary=7, per_token=True)
SMALL = {"name": "transformer", "width": 8, "blocks": 2, "attention_heads": 2}
LORA = {**SMALL, "lora": {"rank": 2, "alpha": 4, "on": ["*.mix", "*.out"]}, "trainable": ["top"]}
PICTURES = LearningTask((1, 8, 8), 4)


def built(spec: dict[str, Any], task: LearningTask = NEXT) -> StagedModel:
    return seeded(lambda: MODELS.create(spec).build(task), 1)


def tokens(samples: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    x = blank_x(NEXT, samples, torch.Generator().manual_seed(0))
    return x, (x + 1) % 7


def assignment(stages: int, objective: str, spec: dict[str, Any] = LORA, **more: Any) -> Assignment:
    return task_at("a", spec, NEXT, stages, objective, batch_size=2, **more)


# ---- adapters ----


def test_a_network_with_new_adapters_is_the_one_without_to_the_bit() -> None:
    plain, adapted = built(SMALL), built(LORA)
    x, y = tokens()
    assert torch.equal(plain(x), adapted(x))
    for name, value in plain.weights().items():
        assert torch.equal(value, adapted.weights()[name]), name
    loss_of(plain(x), y).backward()
    loss_of(adapted(x), y).backward()
    with_, without = (dict(each.named_parameters())["top.fc.weight"].grad for each in (adapted, plain))
    assert with_ is not None
    assert without is not None
    assert torch.equal(with_, without)


def test_an_adapter_is_a_change_of_the_weight() -> None:
    layer = LoraLinear(nn.Linear(5, 3), rank=2, scale=0.5)
    nn.init.normal_(layer.lora_b)
    x = torch.randn(4, 5)
    merged = layer.weight + 0.5 * layer.lora_b @ layer.lora_a
    torch.testing.assert_close(layer(x), nn.functional.linear(x, merged, layer.bias))
    assert not torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_adapters_are_scaled_by_alpha_over_rank() -> None:
    """Here 4 / 2."""
    adapted, merged = built(LORA), built(SMALL)
    with torch.no_grad():
        for name, layer in adapted.named_modules():
            if isinstance(layer, LoraLinear):
                layer.lora_b.normal_()
                merged.get_parameter(f"{name}.weight").add_(2 * layer.lora_b @ layer.lora_a)
    x, _ = tokens()
    torch.testing.assert_close(adapted(x), merged(x), rtol=1e-4, atol=1e-5)
    assert not torch.equal(adapted(x), built(SMALL)(x))


def test_adapters_are_on_the_layers_that_are_named() -> None:
    layers = {name for name, each in built(LORA).named_modules() if isinstance(each, LoraLinear)}
    assert layers == {"block1.mix", "block1.out", "block2.mix", "block2.out"}
    whole = built({**SMALL, "lora": {}, "trainable": ["block1", "top"]})
    assert {name for name, each in whole.named_modules() if isinstance(each, LoraLinear)} == {
        f"block2.{name}" for name in ("mix", "out", "feed.wide", "feed.narrow")
    }
    assert whole.get_parameter("block2.mix.lora_a").shape == (8, 8)


def test_what_is_trained_of_a_half() -> None:
    adapters = [f"block1.{layer}.lora_{part}" for layer in ("mix", "out") for part in "ab"]
    heads = [f"head2.{name}" for name in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")]
    model = built(LORA)
    assert model.trained_below(2) == adapters + heads
    assert trained_names(model, assignment(2, "server")) == adapters
    names = set(model.names_below(len(model), head=False))
    assert model.frozen == names - {name for name in names if "lora" in name or name.startswith("top.")}


def test_all_that_is_named_is_all_that_there_is() -> None:
    """Naming everything is training without the setting, to the bit."""
    plain, named = built(SMALL), built({**LORA, "trainable": ["*"]})
    assert not named.frozen
    assert list(plain.weights()) == list(named.weights())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"trainable": ["top", "tpo"]}, "trainable: nothing is called 'tpo'"),
        ({"lora": {"on": ["*.q_proj"]}}, "lora.on: nothing is called '*.q_proj'"),
        ({"trainable": []}, "nothing of the model is trained"),
        ({"lora": {"rank": 0}}, "lora.rank is 0"),
        ({"lora": {"rang": 4}}, "rang"),
    ],
)
def test_a_part_that_is_none_is_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, PluginError)) as caught:
        built({**SMALL, **part})
    assert message in str(caught.value)
    assert caught.value.hint


def test_all_mistakes_of_a_part_are_told_at_once() -> None:
    spec = {**SMALL, "widht": 3, "trainable": "top", "lora": {"rank": 0, "rang": 1}}
    told = " ".join(str(each) for each in MODELS.mistakes(spec, lambda key: key, "model"))
    assert all(key in told for key in ("widht", "model.trainable", "model.lora.rank", "rang"))


def test_costs_count_only_what_is_trained_going_back() -> None:
    plain, adapted = (model_costs(MODELS.create(spec), NEXT, 4) for spec in (SMALL, {**SMALL, "trainable": ["top"]}))
    assert plain.cuts[-1].forward_flops == adapted.cuts[-1].forward_flops
    assert adapted.cuts[-1].training_flops < plain.cuts[-1].training_flops


# ---- the halves ----


def test_optimizers_hold_only_what_is_trained() -> None:
    model = built(LORA)
    device = DevicePart(copy.deepcopy(model), assignment(2, "head"))
    server = UpperHalf(model, model.weights(), assignment(2, "head"), CPU)
    for optimizer, names in (
        (device.optimizer, model.trained_below(2)),
        (server.optimizer, [name for name in server.upper.state_dict() if name not in model.frozen]),
    ):
        held = [tuple(each.shape) for group in optimizer.param_groups for each in group["params"]]
        assert held == [tuple(model.weights()[name].shape) for name in names]


def test_a_server_half_trains_and_gives_its_part_only() -> None:
    model = built(LORA)
    server = UpperHalf(model, model.weights(), assignment(2, "server"), CPU, gradient=True)
    x, y = tokens()
    replies = server.step({"a": {"features": model.lower(2)(x).detach(), "labels": y}})
    assert torch.count_nonzero(replies["a"]["gradient"])  # type: ignore[index]
    given = server.weights()
    assert set(given) == {name for name in model.upper(2).state_dict() if name not in model.frozen}
    assert not torch.equal(given["top.fc.weight"], model.weights()["top.fc.weight"])
    assert all(
        torch.equal(server.upper.state_dict()[name], model.weights()[name])
        for name in model.frozen & {*server.upper.state_dict()}
    )


@pytest.mark.parametrize(
    ("trainable", "with_statistics"), [(["md8", "md3.*.bn"], True), (["*.bn.weight", "*.bn.bias"], False)]
)
def test_frozen_batch_norm_keeps_its_statistics(trainable: list[str], with_statistics: bool) -> None:
    model = built({"name": "resnet-tiny", "trainable": trainable}, PICTURES)
    before = {name: value.clone() for name, value in model.weights().items()}
    part = DevicePart(model, task_at("a", {}, PICTURES, len(model), "output"))
    x = torch.randn(8, 1, 8, 8)
    part.step(loss_of(part.forward(x), torch.arange(8) % 4), 8)
    moved = {name for name, value in model.weights().items() if not torch.equal(value, before[name])}
    assert moved == set(trained_names(model, part.assignment))
    assert any(name.endswith("running_mean") for name in moved) == with_statistics


def test_dropout_behind_frozen_layers_goes_on() -> None:
    """That none of 64 features is dropped has a probability of 2^-64."""
    first = nn.Sequential(OrderedDict(fc=nn.Linear(6, 64), drop=nn.Dropout(0.5)))
    model = StagedModel([("a", first), ("b", nn.Linear(64, 4))], {}, LearningTask((6,), 4))
    model.freeze(["a.fc.weight", "a.fc.bias"])
    part = DevicePart(model, task_at("a", {}, model.task, 2, "output"))
    assert (part.stages[0](torch.ones(1, 6)) == 0).any()


# ---- methods ----

PARTS = [name for name, cls in METHODS.classes().items() if cls.trains_part]


def test_these_methods_train_a_part() -> None:
    assert {"fedavg", "splitfed", "dtfl", "s2fl", "sfl"} <= set(PARTS)
    assert not {"scaffold", "fedgkt", "heterofl", "feddrop", "early-exit"} & set(PARTS)


@pytest.mark.parametrize("name", [name for name in METHODS.names() if name not in PARTS])
def test_other_methods_are_refused_before_a_fleet_starts(name: str) -> None:
    wanted = {"methods": [{"name": name}], "model": {"name": "resnet-tiny", "trainable": ["md8"]}}
    with pytest.raises(UsageError) as caught:
        check_methods(experiment(**wanted), ["d0", "d1"], PICTURES, PATH)
    assert "it trains all of a model's weights, or chooses them itself" in str(caught.value)
    assert "fedavg" in caught.value.hint


def test_a_half_without_anything_to_train_is_refused() -> None:
    wanted = {"methods": [{"name": "splitfed", "cut": 2}], "model": {**SMALL, "lora": {"on": ["block2.mix"]}}}
    with pytest.raises(UsageError, match="nothing of the device's half is trained at cut 2"):
        check_methods(experiment(**wanted), ["d0"], NEXT, PATH)
    wanted = {"methods": [{"name": "dtfl"}], "model": {**SMALL, "lora": {"on": ["block1.mix"]}}}
    with pytest.raises(UsageError, match="nothing of the server's half is trained at cut 2"):
        check_methods(experiment(**wanted), ["d0"], NEXT, PATH)


def test_a_surrogate_counts_no_part() -> None:
    wanted = {"model": LORA, "simulation": {"as_if": {"model": SMALL}}}
    with pytest.raises(UsageError, match=r"simulation\.as_if counts all weights"):
        check_methods(experiment(**wanted), ["d0"], NEXT, PATH)


def set_up(name: str, model: StagedModel, **options: Any) -> Method:
    method = METHODS.create({"name": name, **options})
    method.setup(Context(LORA, model, {}, server_slots=1))
    return method


def test_an_update_with_the_base_is_refused() -> None:
    """What a device would send that trains adapters and uploads all that it holds."""
    model = built(LORA)
    method = set_up("fedavg", model)
    work = method.plan(0, [view("a")], SCHEDULE).assignments["a"]
    sent = method.task_weights(model.weights(), work)
    names = method.update_names(work, {})
    assert not fault(sent, {name: sent[name] for name in names}, names)
    why = fault(sent, sent, names)
    assert why == f"{len(model.frozen)} weights were not asked for, the first {min(model.frozen)!r}"


# ---- the base, once ----


def test_the_base_goes_down_once_and_again_after_a_loss() -> None:
    model = built(LORA)
    base = FrozenBase(model)
    below = {stages: set(model.names_below(stages, head=False)) for stages in range(len(model) + 1)}
    part = {stages: names - model.frozen for stages, names in below.items()}

    def task(stages: int, agent: str = "a/1", *, how: str = "", delivered: bool = True) -> set[str]:
        whole = {name: model.weights()[name] for name in below[stages]}
        names = set(base.to_send("a", agent, whole))
        base.ended("a", how, delivered=delivered)
        return names

    assert task(2, how="cancelled", delivered=False) == below[2]
    assert task(2) == below[2]
    assert task(2) == part[2]
    assert task(3) == part[3] | (below[3] - below[2]), "a deeper cut brings only what is new"
    assert task(2, how="lost", delivered=False) == part[2]
    assert task(3) == part[3], "a link that was cut takes nothing from the device"
    assert [task(1), task(3)] == [part[1], part[3]], "nor does a shallower cut"
    assert task(1, how="failed") == part[1]
    assert task(1) == below[1], "a device that failed may have lost it"
    assert task(1, "a/2") == below[1], "another agent has nothing"
    assert task(1, "a/2") == part[1]


def test_the_base_is_told_apart_by_its_content() -> None:
    def sha256(spec: dict[str, Any], seed: int) -> str:
        return FrozenBase(seeded(lambda: MODELS.create(spec).build(NEXT), seed)).sha256 or ""

    assert sha256(LORA, 1) == sha256(LORA, 1) != sha256(LORA, 2)
    assert len(sha256(LORA, 1)) == 64
    assert sha256(SMALL, 1) == "", "nothing is frozen"
    bare = Task("t", "run", 0, assignment(2, "server"))
    assert encode(bare) == encode(msgspec.structs.replace(bare, base=FrozenBase(built(SMALL)).sha256))


def trainer() -> DeviceTrainer:
    x, y = tokens()
    about = About(VERSION, (), (), 7, vocabulary=7)
    return DeviceTrainer(Shard(x, y, about, "", CPU), PhaseLog(time.monotonic_ns))


def done(device: DeviceTrainer, weights: Weights, base: str) -> Weights:
    task = Task("t", "run", 0, assignment(len(built(LORA)), "output"), base=base)
    return decode_tensors(device.run(task, encode_tensors(weights, Codec()), TaskIO(), threads=1).body)


def test_an_agent_keeps_the_base_between_tasks_and_never_sends_it() -> None:
    model, device = built(LORA), trainer()
    whole = {name: model.weights()[name] for name in model.names_below(len(model), head=False)}
    part = {name: value for name, value in whole.items() if name not in model.frozen}
    first, again = done(device, whole, "b1"), done(device, part, "b1")
    assert first.keys() == part.keys()
    assert all(torch.equal(first[name], again[name]) for name in part)
    with pytest.raises(UsageError, match=f"{len(model.frozen)} frozen weights never came"):
        done(device, part, "b2")
    with pytest.raises(UsageError, match="frozen weights never came"):
        done(trainer(), part, "b1")


def test_an_agent_lets_go_of_what_a_task_brought_beside_weights() -> None:
    model, device = built(LORA), trainer()
    whole = {name: model.weights()[name] for name in model.names_below(len(model), head=False)}
    done(device, {**whole, "given.c": torch.ones(3), "kept.left_out": torch.ones(3)}, "b1")
    _, kept = vars(device)["_built"]
    assert (kept.given, kept.kept) == ({}, {})


# ---- channels last ----


@pytest.mark.parametrize("spec", [{"name": "resnet-tiny"}, {"name": "cnn-small", "trainable": ["fc*"]}])
def test_a_network_with_the_channels_last_computes_the_same(spec: dict[str, Any]) -> None:
    plain, last = built(spec, PICTURES).train(), built({**spec, "channels_last": True}, PICTURES).train()
    x = blank_x(PICTURES, 4, torch.Generator().manual_seed(0))
    assert all(torch.equal(value, last.weights()[name]) for name, value in plain.weights().items())
    ys = [each(x) for each in (plain, last)]
    torch.testing.assert_close(*ys)
    for y in ys:
        y.sum().backward()
    for (name, one), other in zip(plain.named_parameters(), last.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4, msg=name)
    (kernel,) = [each for each in last.parameters() if each.dim() == 4][1:2]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    sent = decode_tensors(encode_tensors(last.weights(), Codec()))
    assert all(torch.equal(sent[name], value) for name, value in last.weights().items())
