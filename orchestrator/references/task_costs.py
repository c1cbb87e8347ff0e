"""What the pieces of a task cost on a reference: recorded, or else by the task's layers and bytes."""

from __future__ import annotations

from edgebed.device.pieces import BATCH, BY_BYTES, BY_LAYERS, FIRST, RECORDED
from edgebed.errors import EdgebedError
from edgebed.methods.base import real_work
from edgebed.wire.messages import Assignment, Cost
from orchestrator.references.reference import Reference, half_key, task_key
from orchestrator.references.unseen import half_law, layer_law, size_kind, upper_bytes
from orchestrator.references.work_laws import LEAST, SizeLaw

LARGE = 1 << 20
"""Bytes at which a line through two points is drawn."""


class TaskCosts:
    """The costs on one reference, worked out once for each kind of task."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._known: dict[str, dict[str, Cost]] = {}

    def of(self, assignment: Assignment) -> dict[str, Cost]:
        """By kind of piece. A kind that is missing is known neither by a recording nor by layers.

        Args:
            assignment: with the device's CPUs, by which a half may choose its work.
        """
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
            self._known[key] = ({} if "step" in recorded else self._half_by_layers(assignment)) | recorded
            sizes = self.reference.unseen.sizes
            for kind in sorted({"make", "read"} & set(sizes)):
                cost_s = sizes[kind].seconds(upper_bytes(assignment))
                self._known[key][kind] = Cost(((1, cost_s),), RECORDED)
        return self._known[key]

    def _half_by_layers(self, assignment: Assignment) -> dict[str, Cost]:
        unseen = self.reference.unseen
        if not self.reference.layers:
            return {}
        law = half_law(assignment, self.reference.layers)
        points = tuple((n, unseen.batch_s + unseen.factor * law.seconds(n)) for n in (LEAST, assignment.batch_size))
        return {
            "step": Cost(points, BY_LAYERS),
            "first step": Cost(tuple((n, unseen.first * cost_s) for n, cost_s in points), BY_LAYERS),
        }

    def _recorded(self, key: str) -> dict[str, Cost]:
        kinds = self.reference.work.get(key, {})
        return {
            kind: Cost(tuple((each.size, each.mean_s) for each in sizes), RECORDED) for kind, sizes in kinds.items()
        }

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


def _line(law: SizeLaw, origin: str) -> Cost:
    return Cost(((0.0, law.seconds(0)), (LARGE, law.seconds(LARGE))), origin)
