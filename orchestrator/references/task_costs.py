"""What the pieces of a task cost on a reference: recorded, or else by the task's layers and bytes."""

from __future__ import annotations

from edgebed.device.pieces import BATCH, BY_BYTES, BY_LAYERS, FIRST, RECORDED
from edgebed.errors import EdgebedError
from edgebed.methods.base import real_work
from edgebed.wire.messages import Assignment, Cost
from orchestrator.references.reference import Reference, task_key
from orchestrator.references.unseen import layer_law, size_kind
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
