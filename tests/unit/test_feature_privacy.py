"""Distance correlation and patch shuffling: right numbers, right slopes, back in order; and whose choice it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from edge_agent.training import DeviceTrainer
from edgebed.datasets.shard import read_shard, write_shard
from edgebed.device.core import Result
from edgebed.device.metrics import TaskMetrics
from edgebed.device.phases import PhaseLog
from edgebed.errors import DivergedError, UsageError
from edgebed.methods.base import HALVES, Trained
from edgebed.methods.parts.feature_privacy import distance_correlation, patch_order, patch_side, shuffle_patches
from edgebed.methods.parts.local_training import UpperHalf
from edgebed.models.staged import MODELS, Weights, seeded
from edgebed.wire.codecs import decode_tensors, encode_tensors
from edgebed.wire.messages import Assignment, Task, decode_header, encode
from edgebed.wire.settings import Codec, LearningTask, Optimizer, Privacy
from orchestrator.testing.rounds import CLASSES, CPU, SHAPE, batches_of, shard, small_model

SGD = Optimizer("sgd", 0.05, momentum=0.9)
HEAD = Assignment("a", {}, CLASSES, SHAPE, 2, "head", uploads=("features", "weights"), batch_size=4, optimizer=SGD)
SERVER = msgspec.structs.replace(HEAD, objective="server")
BATCHES = list(batches_of(shard("a"), HEAD))

# ---- distance correlation --------------------------------------------------------------------------------------------


def reference(x: Tensor, z: Tensor) -> float:
    """Székely's definition, straight from differences, in NumPy."""

    def centred(v: Tensor) -> np.ndarray:
        flat = v.detach().double().flatten(1).numpy()
        d = np.linalg.norm(flat[:, None] - flat[None], axis=2)
        return d - d.mean(0, keepdims=True) - d.mean(1, keepdims=True) + d.mean()

    a, b = centred(x), centred(z)
    return float(np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean())))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(samples=st.integers(2, 40), features=st.integers(1, 30), scale=st.floats(0.01, 100), seed=st.integers(0, 999))
def test_dcor_is_what_the_definition_says(samples: int, features: int, scale: float, seed: int) -> None:
    x = noise(samples, 3, 4, 4, seed=seed)
    z = scale * (x.flatten(1)[:, :1] ** 2 + noise(samples, features, seed=seed + 1)) + 7
    assert distance_correlation(x, z).item() == pytest.approx(reference(x, z), abs=1e-4)


def test_dcor_of_known_cases() -> None:
    x = noise(100, 2, 5, 5)
    turned = torch.linalg.qr(noise(50, 50, seed=1))[0]
    assert distance_correlation(x, x).item() == pytest.approx(1, abs=1e-5)
    assert distance_correlation(x, -3 * x + 5).item() == pytest.approx(1, abs=1e-5)
    assert distance_correlation(x, x.flatten(1) @ turned).item() == pytest.approx(1, abs=1e-4)
    u, v = noise(2000, 1), noise(2000, 1, seed=2)
    assert distance_correlation(u, v).item() < 0.06
    assert distance_correlation(u, u**2).item() > 0.4  # dependent, though not correlated


def test_a_decorrelated_copy_is_less_correlated_after_some_steps_down_its_slope() -> None:
    x = noise(50, 10)
    z = (x + 0.01 * noise(50, 10, seed=1)).requires_grad_()  # at x itself the slope is 0, but for rounding
    before = distance_correlation(x, z)
    optimizer = torch.optim.Adam([z], lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        loss = distance_correlation(x, z)
        loss.backward()
        optimizer.step()
    assert loss.item() < before.item() - 0.3


def test_the_slope_of_dcor_is_that_of_its_values() -> None:
    x = noise(7, 4).double()
    z = noise(7, 2, 3, 3, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: distance_correlation(x, v), (z,))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1.0, 1e6])
def test_equal_samples_have_no_infinite_slope(scale: float) -> None:
    """All equal, or some equal pairs: distances of 0, where a root's slope is infinite."""
    x = noise(8, 3)
    x[1] = x[0]
    for z in (torch.ones(8, 5) * scale, torch.cat((noise(4, 5), noise(4, 5))) * scale, noise(1, 5).expand(8, 5)):
        z = z.clone().requires_grad_()
        value = distance_correlation(x, z)
        value.backward()
        assert 0 <= value.item() <= 1.00001
        assert z.grad is not None
        assert bool(torch.isfinite(z.grad).all())
    z = noise(8, 5).requires_grad_()
    distance_correlation(torch.ones(8, 3), z).backward()
    assert not z.grad.any()


def test_a_single_sample_has_dcor_0() -> None:
    z = noise(1, 5).requires_grad_()
    value = distance_correlation(noise(1, 3), z)
    value.backward()
    assert value.item() == 0
    assert not z.grad.any()


# ---- patch shuffling -------------------------------------------------------------------------------------------------


@given(
    samples=st.integers(1, 4),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    side=st.integers(1, 3),
    secret=st.integers(0, 2**64 - 1),
    batch=st.integers(0, 99),
)
def test_shuffling_rearranges_whole_patches_of_a_sample_and_can_be_undone(
    samples: int, rows: int, columns: int, side: int, secret: int, batch: int
) -> None:
    z = noise(samples, 2, rows * side, columns * side)
    order = patch_order(samples, rows * columns, secret, 5, batch)
    assert torch.equal(order.sort(1).values, torch.arange(rows * columns).expand(samples, -1))
    moved = shuffle_patches(z, side, order)
    assert torch.equal(shuffle_patches(moved, side, order.argsort(1)), z)
    for before, after, places in zip(z, moved, order, strict=True):
        for place, source in enumerate(places.tolist()):
            r, c, s, t = place // columns * side, place % columns * side, source // columns * side, source % columns
            assert torch.equal(
                after[:, r : r + side, c : c + side], before[:, s : s + side, t * side : t * side + side]
            )


def test_the_order_hangs_on_secret_seed_batch_and_sample() -> None:
    base = patch_order(3, 16, 1, 2, 3)
    assert torch.equal(patch_order(3, 16, 1, 2, 3), base)
    assert base[0].tolist() != base[1].tolist()
    for other in ((9, 2, 3), (1, 9, 3), (1, 2, 9)):
        assert not torch.equal(patch_order(3, 16, *other), base)


def test_the_order_is_the_same_on_every_machine() -> None:
    assert patch_order(2, 6, secret=7, seed=8, batch=1).tolist() == PINNED


PINNED = [[3, 0, 2, 1, 5, 4], [4, 0, 3, 1, 2, 5]]


@pytest.mark.parametrize(
    ("shape", "wanted", "side"),
    [
        ((16, 32, 32), 4, 4),
        ((3, 8, 8), 8, 4),
        ((3, 6, 6), 4, 3),
        ((3, 7, 7), 4, 1),
        ((3, 4, 8), 4, 4),
        ((3, 2, 2), 9, 1),
    ],
)
def test_patches_fit_every_map(shape: tuple[int, ...], wanted: int, side: int) -> None:
    assert patch_side(shape, wanted) == side


@pytest.mark.parametrize("shape", [(64,), (3, 1, 1), (3, 8)])
def test_what_cannot_be_shuffled_does_not_leave(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="no patches") as caught:
        patch_side(shape, 4)
    assert "dcor_alpha" in caught.value.hint


# ---- the halves ------------------------------------------------------------------------------------------------------


def own(assignment: Assignment, **privacy: float) -> Assignment:
    return msgspec.structs.replace(assignment, privacy=msgspec.convert(privacy, Privacy))


def split(assignment: Assignment) -> tuple[list[Weights], Trained]:
    """A device half with its server half: what went up, and what was trained."""
    model = small_model()
    gradient = assignment.objective == "server"
    upper = UpperHalf(model, small_model().weights(), assignment, CPU, gradient=gradient)
    half = HALVES[assignment.objective](model, assignment, BATCHES)
    sent: list[Weights] = []
    reply = None
    while True:
        try:
            out = half.send(reply)
        except StopIteration as stop:
            return sent, stop.value
        sent.append(out.tensors)
        reply = dict(upper.step({"a": out.tensors})["a"]) if gradient else None


def same(left: Weights, right: Weights) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("assignment", [HEAD, SERVER], ids=lambda a: a.objective)
def test_nothing_chosen_changes_no_bit(assignment: Assignment) -> None:
    for other in (own(assignment), own(assignment, secret=9)):
        assert same(split(other)[1].weights, split(assignment)[1].weights)


def test_head_minimises_the_weighed_sum_of_both_losses() -> None:
    """Against plain torch, to the bit; the reported loss is the head's alone."""
    for alpha in (0.3, 1.0):
        _, trained = split(own(HEAD, dcor_alpha=alpha))
        model = small_model().train()
        lower, head = model.lower(2), model.head(2)
        optimizer = torch.optim.SGD([*lower.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
        losses = 0.0
        for x, y in BATCHES:
            z = lower(x)
            loss = nn.functional.cross_entropy(head(z), y)
            losses += loss.item() * len(y)
            optimizer.zero_grad()
            ((1 - alpha) * loss + alpha * distance_correlation(x, z)).backward()
            optimizer.step()
        assert same(trained.weights, model.state_dict())
        assert trained.loss == pytest.approx(losses / 10)


def test_server_gradients_are_weighed_and_dcors_added() -> None:
    """SplitFed with one device minimises (1 - α) loss + α DCor with its lower half."""
    alpha = 0.3
    _, trained = split(own(SERVER, dcor_alpha=alpha))
    model, server = small_model().train(), small_model().train()
    lower, upper = model.lower(2), server.upper(2)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in (lower, upper)]
    for x, y in BATCHES:
        z = lower(x)
        received = z.detach().requires_grad_()
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(upper(received), y).backward()
        (((1 - alpha) * received.grad * z).sum() + alpha * distance_correlation(x, z)).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, value in trained.weights.items():
        torch.testing.assert_close(value, model.state_dict()[name])
    assert not same(trained.weights, split(SERVER)[1].weights)


def test_a_device_that_sends_no_features_hides_nothing() -> None:
    silent = msgspec.structs.replace(HEAD, uploads=("weights",))
    assert same(split(own(silent, dcor_alpha=0.5))[1].weights, split(silent)[1].weights)


def test_head_sends_shuffled_features_and_trains_on_its_own() -> None:
    plain, untouched = split(HEAD)
    sent, trained = split(own(HEAD, patch_shuffle=2, secret=5))
    assert same(trained.weights, untouched.weights)
    for batch, (before, after) in enumerate(zip(plain, sent, strict=True)):
        order = patch_order(len(before["labels"]), 9, 5, HEAD.seed, batch)
        assert torch.equal(after["features"], shuffle_patches(before["features"], 2, order))
        assert torch.equal(after["labels"], before["labels"])
    assert not torch.equal(split(own(HEAD, patch_shuffle=2, secret=6))[0][0]["features"], sent[0]["features"])


def test_the_gradient_comes_back_in_the_devices_own_order() -> None:
    """A server that answers each place with a gradient of its features trains the device as if nothing was moved."""

    def trained(assignment: Assignment) -> Weights:
        half = HALVES["server"](small_model(), assignment, BATCHES)
        reply = None
        try:
            while True:
                features = half.send(reply).tensors["features"]
                reply = {"gradient": features.square() / 10}
        except StopIteration as stop:
            weights: Weights = stop.value.weights
            return weights

    assert same(trained(own(SERVER, patch_shuffle=3, secret=5)), trained(SERVER))


def test_a_dcor_that_is_not_finite_stops_the_device() -> None:
    part = msgspec.structs.replace(own(HEAD, dcor_alpha=0.5), device="b")
    huge = [(BATCHES[0][0] * 1e25, BATCHES[0][1])]
    with pytest.raises(DivergedError, match="device 'b'"):
        list(HALVES["head"](small_model(), part, huge))


# ---- whose choice it is ----------------------------------------------------------------------------------------------


class NoIO:
    """Takes uploads and never stops."""

    def __init__(self) -> None:
        self.sent: list[Weights] = []
        self.metrics = TaskMetrics()

    def upload(self, header: object, body: bytes | bytearray) -> None:
        self.sent.append(decode_tensors(body))

    def reply(self, batch: int) -> bytes:
        raise AssertionError("nobody waits")

    def check(self) -> None: ...

    def progress(self) -> None: ...

    def pace(self) -> None: ...

    def hold(self) -> None: ...

    def done(self, kind: str, size: int) -> None: ...


def train(folder: Path, chosen: Privacy, told: Privacy) -> tuple[Result, list[Weights]]:
    """An agent whose shard says `chosen` and whose assignment says `told`."""
    path = folder / "a.safetensors"
    x, y = noise(8, 1, 8, 8), torch.arange(8) % 2
    write_shard(path, x, y, [0.0], [1.0], 2, chosen)
    model = {"name": "resnet-tiny"}
    half = Assignment("a", model, 2, (1, 8, 8), 2, "head", uploads=("features", "weights"), batch_size=4, privacy=told)
    clock = iter(range(10_000))
    trainer, io = DeviceTrainer(read_shard(path), PhaseLog(lambda: next(clock))), NoIO()
    built = seeded(lambda: MODELS.create(model).build(LearningTask((1, 8, 8), 2)), 0)
    body = encode_tensors({n: built.weights()[n] for n in built.names_below(2, head=True)}, Codec())
    return trainer.run(Task("t", "r", 0, half), body, io, threads=1), io.sent


def test_the_shard_decides_and_not_the_assignment(tmp_path: Path) -> None:
    nothing, mine, other = Privacy(), Privacy(0.5, 2, 77), Privacy(0.9, 1, 3)
    plain, hidden = train(tmp_path, nothing, nothing), train(tmp_path, mine, nothing)
    for chosen, expected in ((nothing, plain), (mine, hidden)):
        result, sent = train(tmp_path, chosen, other)
        assert result.body == expected[0].body
        assert all(same(a, b) for a, b in zip(sent, expected[1], strict=True))
    assert plain[0].body != hidden[0].body
    assert not same(plain[1][0], hidden[1][0])


def test_what_is_chosen_stands_in_the_shard_and_is_checked(tmp_path: Path) -> None:
    x, y = noise(4, 1, 2, 2), torch.arange(4) % 2
    chosen = Privacy(0.25, 4, 2**56 - 1)
    write_shard(tmp_path / "a", x, y, [0.0], [1.0], 2, chosen)
    write_shard(tmp_path / "b", x, y, [0.0], [1.0], 2)
    assert read_shard(tmp_path / "a").privacy == chosen
    assert read_shard(tmp_path / "b").privacy == Privacy()
    write_shard(tmp_path / "c", x, y, [0.0], [1.0], 2, Privacy(1.5))
    with pytest.raises(UsageError, match="damaged or no shard"):
        read_shard(tmp_path / "c")


def test_a_task_on_the_wire_carries_the_default() -> None:
    task = decode_header(encode(Task("t", "r", 0, HEAD)))
    assert isinstance(task, Task)
    assert task.assignment.privacy == Privacy()
