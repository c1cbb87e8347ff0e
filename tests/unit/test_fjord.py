"""FjORD: widths drawn for each batch, ordered dropout against plain torch, and the average worked by hand."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgebed.errors import UsageError
from edgebed.methods.base import Contribution, real_work
from edgebed.methods.fjord import Fjord, Local, drawn_place, worth
from edgebed.wire.messages import Assignment
from orchestrator.testing.rounds import PLAIN, batches_of, make_method, play, shard, small_model, view
from tests.unit._halves import trained

QUARTERS = [0.25, 0.5, 1.0]
SIZES = ((1, 1, 1), (2, 2, 2), (3, 4, 5))
"""Channels of the small model's three convolutions at these widths (rounded to even)."""


def ready(**options: object) -> Fjord:
    method = make_method("fjord", widths=QUARTERS, levels=[0.1, 0.2, 1.0], **options)
    assert isinstance(method, Fjord)
    return method


def planned(method: Fjord, epochs: int = 1) -> dict[str, Assignment]:
    """p_max of `whole` is 1, of `half` 0.5, of `least` 0.25."""
    devices = [view("whole", 10, 4.0), view("half", 10, 1.0), view("least", 10, 0.5)]
    return method.plan(0, devices, msgspec.structs.replace(PLAIN, epochs=epochs)).assignments


# ---- the draw ----


def test_widths_are_drawn_evenly_up_to_p_max_and_follow_from_the_seed() -> None:
    work = planned(ready())["whole"]
    drawn = [drawn_place(work, number, 3) for number in range(600)]
    assert drawn == [drawn_place(work, number, 3) for number in range(600)]
    assert all(150 < drawn.count(place) < 250 for place in range(3))
    other = msgspec.structs.replace(work, seed=work.seed + 1)
    assert drawn != [drawn_place(other, number, 3) for number in range(600)]
    assert {drawn_place(work, number, 2) for number in range(20)} == {0, 1}


def test_a_device_is_told_the_widths_up_to_its_own() -> None:
    assignments = planned(ready())
    told = {name: msgspec.convert(work.options, Local) for name, work in assignments.items()}
    assert [tuple(sizes.values()) for sizes in told["whole"].sizes] == list(SIZES)
    assert told["half"].sizes == told["whole"].sizes[:2]
    assert told["least"].costs == (1.0,)
    assert assignments["whole"].keep == {}
    assert [len(kept) for kept in assignments["half"].keep.values()] == [2, 2, 2]


def test_a_batch_is_charged_by_the_width_drawn() -> None:
    """Of p_max, whose plain training tells what a sample costs; a teacher costs one batch of p_max more."""
    work = planned(ready(), epochs=20)["whole"]
    costs = msgspec.convert(work.options, Local).costs
    assert costs[-1] == 1.0
    assert costs[0] < 0.2 < costs[1] < 0.5
    result, charged = trained(ready(), small_model().weights(), work)
    assert result.batches == len(charged) == 60  # of 4, 4 and 2 samples
    sizes = [(4, 4, 2)[number % 3] for number in range(60)]
    places = [drawn_place(work, number, 3) for number in range(60)]
    expected = [max(1, round(size * costs[place])) for size, place in zip(sizes, places, strict=True)]
    assert charged == expected
    assert set(charged) == {1, 2, 4}
    distils = planned(ready(distil=True))["whole"]
    number = places.index(0)
    assert worth(distils, number, 1000) == 1000 + worth(work, number, 1000)
    assert worth(distils, places.index(2), 1000) == 1000
    assert (real_work(work).objective, real_work(work).options) == ("output", {})


# ---- ordered dropout ----


class ByHand:
    """The small model at all widths: the first rows and columns of its weights, statistics for each width."""

    def __init__(self, sizes: tuple[tuple[int, int, int], ...]) -> None:
        self.sizes = sizes
        names = dict(small_model().stages(0, 4).named_parameters())
        self.weights = {name: value.detach().clone().requires_grad_() for name, value in names.items()}
        self.statistics = [[(torch.zeros(size), torch.ones(size)) for size in row] for row in sizes]

    def logits(self, place: int, x: Tensor) -> Tensor:
        before = 1
        for number, size in enumerate(self.sizes[place], 1):
            own = {name: self.weights[f"md{number}.{name}"] for name in ("conv.weight", "conv.bias")}
            x = functional.conv2d(x, own["conv.weight"][:size, :before], own["conv.bias"][:size], padding=1)
            scale, shift = (self.weights[f"md{number}.norm.{name}"][:size] for name in ("weight", "bias"))
            x = functional.batch_norm(x, *self.statistics[place][number - 1], scale, shift, training=True).relu()
            before = size
        return functional.linear(x.mean((2, 3)), self.weights["md4.fc.weight"][:, :before], self.weights["md4.fc.bias"])


@pytest.mark.parametrize("distil", [False, True])
def test_a_half_is_plain_torch(distil: bool) -> None:
    method, weights = ready(distil=distil), small_model().weights()
    work = planned(method, epochs=4)["whole"]
    found, _ = trained(method, weights, work)
    hand = ByHand(SIZES)
    optimizer = torch.optim.SGD(hand.weights.values(), lr=PLAIN.optimizer.lr)
    for number, (x, y) in enumerate(batches_of(shard("whole"), work)):
        place = drawn_place(work, number, 3)
        logits = hand.logits(place, x)
        loss = functional.cross_entropy(logits, y)
        if distil and place < 2:
            widest = hand.logits(2, x)
            known = widest.detach().softmax(1)
            kl = (known * (known.log() - logits.log_softmax(1))).sum(1).mean()
            loss = functional.cross_entropy(widest, y) + kl
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    for name, value in hand.weights.items():
        torch.testing.assert_close(found.weights[name], value.detach(), rtol=1e-4, atol=1e-6)
    for place, rows in enumerate(hand.statistics):
        for number, (mean, variance) in enumerate(rows, 1):
            torch.testing.assert_close(found.extra[f"{place}.md{number}.norm.running_mean"], mean)
            torch.testing.assert_close(found.extra[f"{place}.md{number}.norm.running_var"], variance)


def test_a_narrow_device_has_the_first_rows_and_columns() -> None:
    method, weights = ready(), small_model().weights()
    work = planned(method)["half"]
    sent = method.task_weights(weights, work)
    assert torch.equal(sent["md2.conv.weight"], weights["md2.conv.weight"][:2, :2])
    assert {name.split(".")[1] for name in sent if name.startswith("given.")} == {"0", "1"}
    result, _ = trained(method, weights, work)
    assert result.weights.keys() == set(method.update_names(work, {}))
    assert {n: tuple(t.shape) for n, t in result.extra.items()} == {n: s.shape for n, s in method.extra(work).items()}
    assert result.extra["1.md3.norm.running_var"].shape == (2,)


# ---- the average ----


@pytest.mark.parametrize(("aggregate", "both"), [("samples", 4.0), ("uniform", 3.0)])
def test_the_average_by_hand(aggregate: str, both: float) -> None:
    """a (p_max 1, 10 samples) gave 1 everywhere, b (p_max 1/2, 30 samples) gave 5: where both are 4, or with equal
    shares 3; elsewhere 1."""
    method, before = ready(aggregate=aggregate), small_model().weights()
    assignments = planned(method)
    parts = []
    for name, samples, value in (("whole", 10, 1.0), ("half", 30, 5.0)):
        work = assignments[name]
        sent = method.task_weights(before, work)
        update = {n: torch.full_like(sent[n], value) for n in method.update_names(work, {})}
        extra = {n: torch.full(each.shape, value) for n, each in method.extra(work).items()}
        parts.append(Contribution(name, samples, work, update, {}, extra))
    merged = method.merge(before, parts)
    assert merged["md2.conv.bias"].tolist() == [both, both, 1.0, 1.0]
    assert merged["md2.conv.weight"][:, :, 0, 0].tolist() == [[both, both, 1.0]] * 2 + [[1.0] * 3] * 2
    assert merged["md4.fc.bias"].tolist() == [both] * 4
    assert method.by_width["0.md2.norm.running_mean"].tolist() == [both]
    assert method.by_width["1.md2.norm.running_mean"].tolist() == [both, both]
    assert method.by_width["2.md2.norm.running_mean"].tolist() == [1.0] * 4  # b never had this width
    assert merged["md2.norm.running_mean"].tolist() == [1.0] * 4


async def test_at_one_width_it_is_fedavg() -> None:
    before, sizes = small_model().weights(), {"a": 10, "b": 5}
    ours = await play(make_method("fjord", widths=[1.0]), before, sizes, range(2))
    plain = await play(make_method("fedavg"), before, sizes, range(2))
    for name, value in plain.items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(ours[name], value)


async def test_each_width_is_tested_with_its_own_statistics() -> None:
    method, sizes = ready(), {"a": 10, "b": 9, "c": 6}
    weights = await play(method, small_model().weights(), sizes, range(2))
    x, y = shard("test", 40)
    score = method.evaluate(weights, x, y, torch.device("cpu"))
    assert list(score.extra) == ["width0.25", "width0.5", "width1"]
    assert score.extra["width1"] == score.accuracy
    assert score == msgspec.structs.replace(
        make_method("fedavg").evaluate(weights, x, y, torch.device("cpu")), extra=score.extra
    )
    method.by_width = {name: value + 3 for name, value in method.by_width.items()}
    assert method.evaluate(weights, x, y, torch.device("cpu")) != score


def test_widths_must_end_with_the_whole_model() -> None:
    with pytest.raises(UsageError, match="widths"):
        make_method("fjord", widths=[0.2, 0.4])
