"""Cut anywhere, one device: both halves equal, to the bit, the same layers trained by plain torch without Edgebed."""

from __future__ import annotations

import copy

import msgspec
import pytest
import torch
from torch import nn

from edgebed.methods.base import Batch, Method, find_half
from edgebed.methods.parts.local_training import Half, UpperHalf
from edgebed.models.staged import MODELS, StagedModel, Weights, seeded
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment
from edgebed.wire.settings import Codec, LearningTask, Optimizer
from orchestrator.testing.rounds import SCHEDULE, batches_of, make_method, play, shard, small_model, view

OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
}
SPECS = {"adam": Optimizer("adam", 0.01), "sgd": Optimizer("sgd", 0.05, momentum=0.9, weight_decay=1e-3)}


def the_batches(method: Method) -> list[Batch]:
    assignment = method.plan(0, [view("a")], SCHEDULE).assignments["a"]
    return list(batches_of(shard("a"), assignment))


def plain_split(model: StagedModel, cut: int, batches: list[Batch], optimizer: str) -> Weights:
    """Local-loss split training in plain torch: device stages with head, server stages on detached features."""
    names = model.stage_names
    lower = nn.ModuleDict({name: copy.deepcopy(getattr(model, name)) for name in names[:cut]}).train()
    upper = nn.ModuleDict({name: copy.deepcopy(getattr(model, name)) for name in names[cut:]}).train()
    head = copy.deepcopy(getattr(model, f"head{cut}")).train()
    device_optimizer = OPTIMIZERS[optimizer]([*lower.parameters(), *head.parameters()])
    server_optimizer = OPTIMIZERS[optimizer](list(upper.parameters()))
    for x, y in batches:
        z = x
        for stage in lower.values():
            z = stage(z)
        device_optimizer.zero_grad()
        nn.functional.cross_entropy(head(z), y).backward()
        device_optimizer.step()
        logits = z.detach()
        for stage in upper.values():
            logits = stage(logits)
        server_optimizer.zero_grad()
        nn.functional.cross_entropy(logits, y).backward()
        server_optimizer.step()
    head_weights = {f"head{cut}.{name}": value for name, value in head.state_dict().items()}
    return {**lower.state_dict(), **upper.state_dict(), **head_weights}


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_dtfl_equals_plain_torch_at_every_cut(cut: int, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "orchestrator.testing.rounds.SCHEDULE", msgspec.structs.replace(SCHEDULE, optimizer=SPECS[optimizer])
    )
    method = make_method("dtfl", tier=cut)
    before = small_model().weights()
    merged = await play(method, before, {"a": 10}, range(1))
    plain = plain_split(small_model(), cut, the_batches(method), optimizer)
    for name, value in plain.items():
        assert torch.equal(merged[name], value), name
    for name in set(before) - set(plain):  # heads of other tiers
        assert torch.equal(merged[name], before[name]), name


def stream(half: Half, upper: UpperHalf) -> Weights:
    """Run a device half to its end, every upload through the wire's lossless codec into the server half."""
    while True:
        try:
            out = next(half)
        except StopIteration as end:
            trained: Weights = end.value.weights
            return trained
        upper.step({"a": decode_tensors(encode_tensors(out.tensors, Codec()))})


@pytest.mark.parametrize("cut", range(1, 8))
@pytest.mark.parametrize("name", ["resnet-tiny", "resnet56"])
def test_both_halves_of_a_residual_network_equal_plain_torch_at_every_cut(name: str, cut: int) -> None:
    model = seeded(lambda: MODELS.create({"name": name}).build(LearningTask((1, 8, 8), 10)), 0)
    generator = torch.Generator().manual_seed(cut)
    batches = [(torch.randn(6, 1, 8, 8, generator=generator), torch.arange(6) + i) for i in range(2)]
    plain = plain_split(model, cut, batches, "adam")
    assignment = Assignment(
        device="a",
        model={"name": name},
        classes=10,
        input_shape=(1, 8, 8),
        stages=cut,
        objective="head",
        uploads=("features", "weights"),
        optimizer=SPECS["adam"],
    )
    upper = UpperHalf(model, model.weights(), assignment, torch.device("cpu"))
    half = find_half("head")(copy.deepcopy(model), assignment, batches)
    trained = stream(half, upper)
    ours = {**upper.weights(), **trained}
    assert set(ours) == set(plain)
    for key, value in plain.items():
        assert torch.equal(ours[key], value), key


async def test_fedavg_of_one_device_equals_plain_torch() -> None:
    method = make_method("fedavg")
    merged = await play(method, small_model().weights(), {"a": 10}, range(1))
    model = small_model()
    model.train()
    optimizer = torch.optim.Adam([p for n, p in model.named_parameters() if not n.startswith("head")], lr=0.01)
    for x, y in the_batches(method):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(merged[name], value), name


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_splitfed_of_one_device_equals_centralised_training(
    cut: int, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "orchestrator.testing.rounds.SCHEDULE", msgspec.structs.replace(SCHEDULE, optimizer=SPECS[optimizer])
    )
    method = make_method("splitfed", cut=cut)
    merged = await play(method, small_model().weights(), {"a": 10}, range(1))
    model = small_model()
    model.train()
    chosen = OPTIMIZERS[optimizer]([p for n, p in model.named_parameters() if not n.startswith("head")])
    for x, y in the_batches(method):
        chosen.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        chosen.step()
    for name, value in model.state_dict().items():
        assert torch.equal(merged[name], value), name
