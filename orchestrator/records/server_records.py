"""The records of what the server computed in a round: steps of server halves, and the work beside them. Pure."""

from __future__ import annotations

import msgspec


class Spent(msgspec.Struct, frozen=True, gc=False):
    """What a paced server spent on a piece of its work: CPU seconds of this host, the samples that it trained on, CPU
    seconds on the reference to which it is held, by the origin of their costs ({}: to none), and by how many seconds
    the piece ended late."""

    cpu_s: float
    samples: int = 0
    reference_s: dict[str, float] = {}
    late_s: float = 0.0


class ServerStep(msgspec.Struct, frozen=True, gc=False, tag="server_step"):
    """One step of a server half, with the batch it used. `ready_ns`: the half had all that it needed, so what follows
    is the wait for a slot; 0: an older version wrote it. `spent`: None where the server has no CPUs of its own."""

    start_ns: int
    end_ns: int
    round: int
    devices: tuple[str, ...]
    batch: int
    ready_ns: int = 0
    spent: Spent | None = None


class HalfWork(msgspec.Struct, frozen=True, gc=False, tag="half_work"):
    """What the server did for the halves of these devices beside their steps: `make` all halves of a round, or `read`
    the weights of one that has made its steps, with the wait for a slot."""

    start_ns: int
    end_ns: int
    round: int
    what: str
    devices: tuple[str, ...]
    spent: Spent | None = None  # None: the server has no CPUs of its own
