"""What the pieces of a task cost on a reference: recorded, or else by the task's layers and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgebed.device.pieces import BATCH, BY_BYTES, BY_LAYERS, FIRST, JOINED, RECORDED, STEP
from edgebed.errors import EdgebedError, UsageError
from edgebed.methods.base import real_work
from edgebed.wire.messages import Assignment, Cost
from orchestrator.references.reference import PieceStats, Reference, half_key, task_key
from orchestrator.references.unseen import half_law, layer_law, size_kind, upper_bytes
from orchestrator.references.work_laws import LEAST, SizeLaw

LEAST_SEEN = 10
"""Pieces of a kind that tell how it varies."""

LARGE = 1 << 20
"""Bytes at which a line through two points is drawn."""


class TaskCosts:
    """The costs on one reference, worked out once for each kind of task.

    Args:
        spread: recorded pieces vary as they did on the reference. The others cost the same each time.
    """

    def __init__(self, reference: Reference, *, spread: bool = False) -> None:
        self.reference, self._spread = reference, spread
        self._known: dict[str, dict[str, Cost]] = {}

    def of(self, assignment: Assignment) -> dict[str, Cost]:
        """By kind of piece. A kind that is missing is known neither by a recording nor by layers. `assignment`: with
        the device's CPUs, by which a half may choose its work."""
        work = real_work(assignment)
        key = task_key(work)
        if key not in self._known:
            recorded = self._recorded(key)
            whole = "batch" in recorded or {"forward", "rest"} <= set(recorded)
            self._known[key] = ({} if whole else self._by_layers(work)) | self._by_bytes(work) | recorded
        return self._known[key]

    def of_half(self, method: str, assignment: Assignment) -> dict[str, Cost]:
        """By kind of piece, the costs of a device's half on the server that `method` makes."""
        key = half_key(method, assignment)
        if key not in self._known:
            recorded = self._recorded(key)
            known = recorded if STEP in recorded else self._half_by_layers(assignment) | recorded
            for when in ("", FIRST):  # a further batch that was not recorded takes what a step does
                if (alone := known.get(f"{when}{STEP}")) is not None:
                    known.setdefault(f"{when}{JOINED}", msgspec.structs.replace(alone, origin=BY_LAYERS))
            self._known[key] = known
            sizes = self.reference.unseen.sizes
            for kind in sorted({"make", "read"} & set(sizes)):
                cost_s = sizes[kind].seconds(upper_bytes(assignment))
                known[kind] = Cost(((1, cost_s),), RECORDED)
        return self._known[key]

    def _half_by_layers(self, assignment: Assignment) -> dict[str, Cost]:
        unseen = self.reference.unseen
        if not self.reference.layers:
            return {}
        law = half_law(assignment, self.reference.layers)
        points = tuple((n, unseen.batch_s + unseen.factor * law.seconds(n)) for n in (LEAST, assignment.batch_size))
        return {
            STEP: Cost(points, BY_LAYERS),
            f"{FIRST}{STEP}": Cost(tuple((n, unseen.first * cost_s) for n, cost_s in points), BY_LAYERS),
        }

    def _recorded(self, key: str) -> dict[str, Cost]:
        kinds = self.reference.work.get(key, {})
        return {
            kind: Cost(tuple((each.size, each.mean_s) for each in sizes), RECORDED, *self._varying(sizes))
            for kind, sizes in kinds.items()
        }

    def _varying(self, sizes: Sequence[PieceStats]) -> tuple[tuple[float, ...], float]:
        """Spread and lag of the size that was seen most."""
        known = max(sizes, key=lambda each: each.count)
        if not (self._spread and known.count >= LEAST_SEEN and known.mean_s > 0 and known.quantiles_s):
            return (), 0.0
        return spread_of(known), known.lag

    def _by_bytes(self, work: Assignment) -> dict[str, Cost]:
        laws = self.reference.unseen.sizes
        names = {kind: size_kind(kind, work) for kind in (*BY_BYTES, "finish", "receive", "send")}
        return {
            kind: _line(laws[name], RECORDED if kind in ("receive", "send") else BY_LAYERS)
            for kind, name in names.items()
            if name in laws
        }

    def _by_layers(self, work: Assignment) -> dict[str, Cost]:
        unseen = self.reference.unseen
        if not self.reference.layers:
            return {}
        try:
            law = layer_law(work, self.reference.layers)
        except (EdgebedError, RuntimeError, ValueError, IndexError, TypeError):
            return {}  # a half that cannot be tried out here: its own CPU time is scaled by the index
        own_s = unseen.batch_s + (unseen.features_s if "features" in work.uploads else 0.0)

        def cost(share: float) -> Cost:
            sizes = sorted({LEAST, work.batch_size})
            return Cost(tuple((size, share * (own_s + unseen.factor * law.seconds(size))) for size in sizes), BY_LAYERS)

        shares = dict(zip(BATCH, (1.0, law.forward, 1.0 - law.forward), strict=True)) | {"more": law.forward}
        costs = {kind: cost(share) for kind, share in shares.items()}
        return costs | {f"{FIRST}{kind}": cost(share * unseen.first) for kind, share in shares.items()}


def check_spread(spread: bool, reference: Reference | None) -> None:
    """Raises UsageError where there is nothing that could vary."""
    if spread and reference is None:
        raise UsageError("spread: true plays how the pieces of a reference vary", hint="set speed: reference NAME")


def spread_of(stats: PieceStats) -> tuple[float, ...]:
    """Factors of the mean at `SHARES`. The least one is not recorded: it is where the mean is kept, not below 0."""
    middle, high, most = stats.quantiles_s
    above_s = 0.2 * (middle + high) + 0.045 * (high + most) + 0.01 * most  # the mean's part above the median
    least = min(middle, max(0.0, 4 * (stats.mean_s - above_s) - middle))
    mean_s = above_s + 0.25 * (least + middle)
    return tuple(value / mean_s for value in (least, middle, high, most, most))


def _line(law: SizeLaw, origin: str) -> Cost:
    return Cost(((0.0, law.seconds(0)), (LARGE, law.seconds(LARGE))), origin)
