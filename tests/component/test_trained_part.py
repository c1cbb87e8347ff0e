"""A trained part of the weights on real agents, and simulated: what goes over the links, and what stays as it was."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edgebed
from edgebed.methods.base import METHODS, trains_head
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.wire.codecs import LOSSLESS, encode_tensors
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import LearningTask
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceOut, Record, RoundStarted, TaskDelivered, TaskSent, UpdateReceived
from tests.component import _fleet
from tests.component._fleet import fleet, model, start_weights, training

PARTS = [name for name, cls in METHODS.classes().items() if cls.trains_part]
NEXT = LearningTask((6,), 7, vocabulary=7, per_token=True)
SMALL = {"name": "transformer", "width": 8, "blocks": 3, "attention_heads": 2}
LORA = {**SMALL, "lora": {"rank": 2, "on": ["*.mix", "*.out"]}, "trainable": ["top"]}
SEED = 1


# ---- simulated ----


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences that count upwards."""
    path = tmp_path_factory.mktemp("text") / "next.npz"
    tokens = (np.arange(60)[:, None] * 3 + np.arange(6)) % 7
    np.savez(path, x=tokens, y=(tokens + 1) % 7)
    return path


def simulated(text: Path, runs: Path, spec: dict[str, Any], method: dict[str, Any], **more: Any) -> Path:
    [run] = edgebed.simulate(
        {
            "name": "part",
            "fleet": "dtfl-5",
            "data": {"name": "npz", "path": str(text), "vocabulary": 7},
            "model": spec,
            "methods": [method],
            "training": {"rounds": 3, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01}, "seed": SEED},
            "simulation": {"cost": "flops", "device_flops": 1e7, **more},
        },
        runs=runs,
    )
    return Path(run.path)


def final(run: Path) -> Weights:
    saved = load_file(run / "checkpoint.safetensors")
    return {name.removeprefix("weights/"): value for name, value in saved.items() if name.startswith("weights/")}


def sizes(records: Iterable[Record], kind: type[TaskDelivered] | type[UpdateReceived]) -> dict[str, list[int]]:
    """Bytes of the transfers of a kind, by device, in the order of rounds."""
    found: dict[str, list[int]] = {}
    for record in records:
        if isinstance(record, kind):
            found.setdefault(record.device, []).append(record.bytes)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_a_method_trains_its_part_and_nothing_else(text: Path, tmp_path: Path, name: str) -> None:
    """The frozen weights stay to the bit, through every merge, and each device gets them once."""
    options: dict[str, dict[str, Any]] = {"dtfl": {"tier": 1}, "s2fl": {"cuts": [2, 3]}, "fedbuff": {"buffer": 2}}
    run = simulated(text, tmp_path, LORA, {"name": name, **options.get(name, {})})
    trained, start = final(run), seeded(lambda: MODELS.create(LORA).build(NEXT), SEED)
    assert trained.keys() == start.weights().keys()
    assert all(torch.equal(trained[name], start.weights()[name]) for name in start.frozen)
    assert not torch.equal(trained["block1.mix.lora_b"], start.weights()["block1.mix.lora_b"])
    assert_base_once(read(run / "records.jsonl"), start)


def assert_base_once(records: Iterable[Record], start: StagedModel) -> None:
    """The body of every task has the frozen weights that its device has not had yet, and all trained ones."""
    works: dict[tuple[int, str], Assignment] = {}
    had: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, RoundStarted):
            works |= {(record.round, device): work for device, work in record.assignments.items()}
        elif isinstance(record, TaskSent):
            work, has = works[record.round, record.device], had.setdefault(record.device, set())
            names = start.names_below(work.stages, head=trains_head(work))
            body = encode_tensors({name: start.weights()[name] for name in names if name not in has}, LOSSLESS)
            assert record.bytes == len(body), (record.round, record.device)
            has |= start.frozen & set(names)
    assert had


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "splitfed"}, {"name": "dtfl", "tier": 2}])
def test_naming_all_is_training_all_to_the_bit(text: Path, tmp_path: Path, method: dict[str, Any]) -> None:
    whole, named = (simulated(text, tmp_path, spec, method) for spec in (SMALL, {**LORA, "trainable": ["*"]}))
    assert final(whole).keys() == final(named).keys()
    assert all(torch.equal(final(whole)[name], final(named)[name]) for name in final(whole))
    for kind in (TaskDelivered, UpdateReceived):
        spent = [sum(map(sum, sizes(read(run / "records.jsonl"), kind).values())) for run in (whole, named)]
        assert abs(spent[0] - spent[1]) < 0.05 * spent[0], "only the names in the messages' heads differ"


def test_stacked_devices_learn_what_they_learn_alone(text: Path, tmp_path: Path) -> None:
    stacked, alone = (
        simulated(text, tmp_path, LORA, {"name": "dtfl", "tier": 2}, batched=batched) for batched in (True, False)
    )
    for name, value in final(alone).items():
        torch.testing.assert_close(final(stacked)[name], value, rtol=1e-3, atol=1e-4)


# ---- real agents ----

PART = {**_fleet.MODEL, "trainable": ["md7", "md8"]}


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fleet, "MODEL", PART)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("name", ["fedavg", "splitfed", "dtfl"])
async def test_agents_get_the_base_once(tmp_path: Path, name: str) -> None:
    options = {"splitfed": {"cut": 7}, "dtfl": {"tier": 1}}.get(name, {})
    async with fleet(tmp_path, {"a": 16, "b": 24}) as made:
        weights = await made.play({"name": name, **options}, training(rounds=3))
    assert all(torch.equal(weights[each], start_weights()[each]) for each in model().frozen)
    assert_base_once(made.records, model())


@pytest.mark.usefixtures("part")
async def test_an_agent_that_uploads_the_base_is_refused_by_name(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"a": 16, "b": 24}) as made:
        made.trainers["a"].change = lambda weights: {
            **weights,
            "md1.0.conv.weight": start_weights()["md1.0.conv.weight"],
        }
        await made.play({"name": "fedavg"}, training(rounds=1))
        out = await made.expect(DeviceOut)
    assert (out.device, out.how) == ("a", "refused")
    assert "1 weights were not asked for, the first 'md1.0.conv.weight'" in out.why


@pytest.mark.usefixtures("part")
async def test_an_agent_that_has_lost_the_base_gets_it_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"a": 16, "b": 24}) as made:
        made.trainers["a"].forget_before = 1
        await made.play({"name": "fedavg"}, training(rounds=4))
    (out,) = made.of(DeviceOut)
    assert (out.device, out.round, out.how) == ("a", 1, "failed")
    assert "frozen weights never came" in out.why
    first, lost, again, last = sizes(made.records, TaskDelivered)["a"]
    assert first == pytest.approx(again, rel=0.01)
    assert lost == pytest.approx(last, rel=0.01)
    assert lost < first / 2
