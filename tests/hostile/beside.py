"""What a hostile device tries with what goes beside weights and dense features: sparse uploads (topk-split), control
variates (SCAFFOLD), statistics (FjORD). Each attack with what the records say of it, in part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import msgspec
import torch
from torch import Tensor

from edgebed.models.staged import EXTRA
from tests.hostile.agent import Attack, Hostile, Work, changed, first_upload, lie

Tried = Mapping[str, tuple[Attack, str]]

# ---- sparse uploads ----


def places(change: Callable[[Tensor], Tensor]) -> Attack:
    return first_upload(lambda upload: {**upload, "places": change(upload["places"])})


def values(change: Callable[[Tensor], Tensor]) -> Attack:
    return first_upload(lambda upload: {**upload, "values": change(upload["values"])})


def repeated(upload: Tensor) -> Tensor:
    return torch.cat([upload[:, :1], upload[:, :-1]], 1)


async def loud(agent: Hostile, work: Work) -> None:
    """Features that are finite, and spoil the statistics of their server half."""
    uploads = [{**each, "values": torch.full_like(each["values"], 1e18)} for each in work.uploads]
    await agent.update(dataclasses.replace(work, uploads=uploads))


WRONG = "places of features are not increasing numbers"

SPARSE: Tried = {
    "none, the first round": (lie(), ""),
    "places out of range": (places(lambda p: p + 10**6), WRONG),
    "places below 0": (places(lambda p: p - 10**6), WRONG),
    "the same place twice": (places(repeated), WRONG),
    "places backwards": (places(lambda p: p.flip(1)), WRONG),
    "places of another dtype": (places(lambda p: p.short()), "places is torch.int16"),
    "fewer places than values": (places(lambda p: p[:, :-1]), "places is torch.int32"),
    "more entries than asked for": (first_upload(lambda u: {**u, "values": u["values"].repeat(1, 30)}), "has at most"),
    "no places": (first_upload(lambda u: {"values": u["values"], "labels": u["labels"]}), "instead of labels, places"),
    "no entries": (
        first_upload(lambda u: {**u, "values": u["values"][:, :0], "places": u["places"][:, :0]}),
        "is torch",
    ),
    "values not a number": (values(lambda v: v * math.nan), "not finite"),
    "values infinite": (values(lambda v: v + math.inf), "not finite"),
    "values 1e18": (loud, "above 1e+18"),
    "its device state in the update": (
        changed(lambda update: {**update, f"{EXTRA}left_out": torch.zeros(4)}),
        "it holds left_out instead of nothing",
    ),
}

# ---- control variates ----


def control(change: Callable[[Tensor], Tensor]) -> Attack:
    """All that goes beside the weights changed, the weights as they are."""
    return changed(lambda update: {n: change(v) if n.startswith(EXTRA) else v for n, v in update.items()})


def of_batches(batches: int) -> Attack:
    """Control variates as if the weights had moved so far within so many batches, and a report that says so: the fewer,
    the larger they are."""

    async def attack(agent: Hostile, work: Work) -> None:
        trained, lr = work.trained, work.task.assignment.optimizer.lr
        more = (1 / max(1, batches) - 1 / trained.batches) / lr
        extra = {n: v + more * (work.sent[n] - trained.weights[n]) for n, v in trained.extra.items()}
        lied = dataclasses.replace(work, trained=msgspec.structs.replace(trained, extra=extra))
        await agent.update(lied, batches=batches)

    return attack


FALSE = "does not follow from the weights"

CONTROL: Tried = {
    "none, the first round": (lie(), ""),
    "zeros": (control(torch.zeros_like), FALSE),
    "the opposite": (control(torch.neg), FALSE),
    "1e17": (control(lambda c: c * 0 + 1e17), FALSE),
    "1e30": (control(lambda c: c * 0 + 1e30), "above 1e+18"),
    "not a number": (control(lambda c: c * math.nan), "not finite"),
    "infinite": (control(lambda c: c + math.inf), "not finite"),
    "of another dtype": (control(torch.Tensor.half), "is torch.float16"),
    "of another shape": (control(lambda c: c.flatten()), "instead of torch.float32"),
    "none": (changed(lambda u: {n: v for n, v in u.items() if not n.startswith(EXTRA)}), "it holds nothing instead"),
    "one more": (changed(lambda u: {**u, f"{EXTRA}a": torch.zeros(1)}), "it holds a, "),
    "one without a gap": (changed(lambda u: {**u, f"{EXTRA}{EXTRA}x": torch.zeros(1)}), "extra.x"),
    "as if of one batch": (of_batches(1), FALSE),
    "as if of none": (of_batches(0), FALSE),
}

# ---- statistics of batch norms ----

STATISTICS: Tried = {
    "none, the first round": (lie(), ""),
    "1e30": (control(lambda s: s * 0 + 1e30), "above 1e+18"),
    "negative variances": (control(lambda s: s * 0 - 1), "a variance of -1"),
    "not a number": (control(lambda s: s * math.nan), "not finite"),
    "none": (changed(lambda u: {n: v for n, v in u.items() if not n.startswith(EXTRA)}), "it holds nothing instead"),
}
