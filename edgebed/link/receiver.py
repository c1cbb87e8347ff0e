"""The receiver's side of all transfers of one peer: what to keep, what to acknowledge, what to deliver next. Pure.

`edgebed.link.sender` has the rules. Memory is bounded, whatever the sender does:

- The transfer that is delivered next holds at most the size that it announced and that `admit` accepted.
- All others together hold at most `max_bytes` plus one window of the largest chunks. An honest sender may send so many
  before it hears that the window is closed.
- Chunks beyond the grant, or beyond this memory, are dropped.
- At most `PARTIALS` transfers are open, and `FINISHED` ended ones are remembered.
- A body grows as its chunks arrive, so the announcement of a large transfer costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from edgebed.errors import TransferRefused, WireError
from edgebed.wire.frames import Chunk, Mark, chunk_count
from edgebed.wire.messages import Credit, Header, Refuse, decode_header

FINISHED = 256
"""Finished transfers that are remembered per peer. A sender has begun only a few that are not done."""
PARTIALS = 8
"""Transfers of one peer that may have begun and not ended; an honest sender has two."""
MAX_CHUNK_BYTES = 4 << 20
MAX_HEADER_BYTES = 1 << 20
FORGOTTEN = "the receiver has forgotten this transfer"

Reply = Credit | Refuse


class ReceivedTransfer(msgspec.Struct):
    """A transfer that has arrived. Times are this side's monotonic clock at the first and last chunk; `bytes` is what
    its chunks took on the wire (frames, without MQTT's few bytes of topic), repetitions not counted."""

    peer: str
    header: Header
    body: memoryview
    first_ns: int
    last_ns: int
    bytes: int


@dataclass
class _Partial:
    """A transfer that is arriving, or has arrived and is not delivered."""

    header: Header
    count: int
    total: int
    chunk_bytes: int
    first_ns: int
    last_ns: int = 0
    received: int = 0
    wire_bytes: int = 0
    granted: int = 0  # chunks the sender may send in all
    taken: bool = False
    body: bytearray = field(default_factory=bytearray)

    @property
    def complete(self) -> bool:
        return self.received == self.count


class TransferReceiver:
    """All transfers that come from one peer.

    Args:
        me, peer: names, as they stand in Credit and Refuse.
        window: chunks granted beyond those received.
        max_bytes: bodies held before the window closes.
        max_chunk: the largest chunk that is taken, in bytes.
        admit: called with peer, header and total bytes at chunk 0; raises TransferRefused to turn a transfer away.
    """

    def __init__(
        self,
        me: str,
        peer: str,
        *,
        window: int,
        max_bytes: int,
        admit: Callable[[str, Header, int], None],
        max_chunk: int = MAX_CHUNK_BYTES,
    ) -> None:
        self._me, self._peer, self._window, self._max, self._admit = me, peer, window, max_bytes, admit
        self._max_chunk = max_chunk
        self._partials: OrderedDict[str, _Partial] = OrderedDict()
        self._finished: OrderedDict[str, str] = OrderedDict()  # transfer -> why it was refused, "" if delivered

    @property
    def held(self) -> list[int]:
        """Bytes held of each transfer that has begun and not ended, in the order of delivery."""
        return [len(partial.body) for partial in self._partials.values()]

    @property
    def held_bytes(self) -> int:
        return sum(self.held)

    def chunk(self, chunk: Chunk, now_ns: int, wire_bytes: int) -> tuple[bool, list[Reply]]:
        """A chunk has arrived. Returns whether it moved its transfer, and what to answer."""
        partial = self._partials.get(chunk.transfer)
        if partial is None and chunk.index == 0 and self._is_next(chunk):
            try:
                partial = self._begin(chunk, now_ns)
            except (TransferRefused, WireError) as error:
                return False, self.finish(chunk.transfer, str(error))
        if partial is None:
            return False, self.state(chunk.transfer)
        moved = chunk.index == partial.received and self._may_come(partial, chunk)
        if moved:
            why = _misfit(partial, chunk)
            if why:
                return False, self.finish(chunk.transfer, why)
            partial.body += chunk.payload
            partial.received += 1
            partial.last_ns = now_ns
            partial.wire_bytes += wire_bytes
        return moved, self.state(chunk.transfer)

    def mark(self, mark: Mark) -> list[Reply]:
        """A mark has arrived. What was sent before it has arrived by now, or is lost."""
        replies: list[Reply] = []
        for name in self._given_up(mark) if not mark.after else ():
            replies += self.withdraw(name)
        return replies + self.state(mark.transfer, mark.credited, seen=mark.number)

    def state(self, transfer: str, credited: int = 0, seen: int = 0) -> list[Reply]:
        """What to tell the sender about a transfer. An unknown one has 0 chunks here. Where we credited more chunks
        than we know of, we have forgotten the transfer, and refuse it."""
        if transfer in self._finished:
            return [self._finish_reply(transfer, seen)]
        partial = self._partials.get(transfer)
        if credited > (partial.received if partial is not None else 0):
            return self.finish(transfer, FORGOTTEN)
        if partial is None:
            return [self._credit(transfer, 0, self._window, seen=seen)]
        window = self._grant(transfer, partial)
        partial.granted = max(partial.granted, partial.received + window)
        return [self._credit(transfer, partial.received, window, seen=seen)]

    def states(self) -> list[Reply]:
        """What to tell the sender about all transfers that are under way (after a reconnect)."""
        return [reply for transfer in self._partials for reply in self.state(transfer)]

    def take(self) -> tuple[str, ReceivedTransfer] | None:
        """The next transfer to deliver, if it is whole and the one before it is finished."""
        for transfer, partial in self._partials.items():
            if partial.taken or not partial.complete:
                return None
            partial.taken = True
            first, last, size = partial.first_ns, partial.last_ns, partial.wire_bytes
            return transfer, ReceivedTransfer(self._peer, partial.header, memoryview(partial.body), first, last, size)
        return None

    def finish(self, transfer: str, refused: str = "") -> list[Reply]:
        """A transfer was delivered, or refused with a reason. If it had ended before, the first result stays.
        Returns the answer to it, and the credits that others can now have."""
        self._end(transfer, refused)
        return [self._finish_reply(transfer), *self._reopened()]

    def refuse_all(self, why: str) -> list[Reply]:
        """Give up every transfer that has begun, also one that is being delivered."""
        names = list(self._partials)
        for name in names:
            self._end(name, why)
        return [self._finish_reply(name) for name in names]

    def withdraw(self, transfer: str) -> list[Reply]:
        """The sender gave a transfer up; chunks of it that are still on the way are turned away. One that is being
        delivered stays until `finish`."""
        partial = self._partials.get(transfer)
        if partial is not None and partial.taken:
            return []
        self._end(transfer, "given up by the sender")
        return self._reopened()

    def _end(self, transfer: str, refused: str) -> None:
        self._partials.pop(transfer, None)
        self._finished.setdefault(transfer, refused)
        while len(self._finished) > FINISHED:
            self._finished.popitem(last=False)

    def _begin(self, chunk: Chunk, now_ns: int) -> _Partial:
        if why := self._unfit(chunk):
            raise TransferRefused(why)
        header = decode_header(bytes(chunk.header))
        self._admit(self._peer, header, chunk.total)
        size = max(1, len(chunk.payload))
        partial = _Partial(header, chunk.count, chunk.total, size, now_ns, granted=self._window)
        self._partials[chunk.transfer] = partial
        return partial

    def _unfit(self, chunk: Chunk) -> str:
        """Why a transfer may not begin with this chunk, whatever its purpose; "" if it may. Keeps nothing of it."""
        size = len(chunk.payload)
        if len(self._partials) >= PARTIALS:
            return f"{PARTIALS} transfers have begun and not ended; let one end first"
        if size > self._max_chunk or len(chunk.header) > MAX_HEADER_BYTES:
            return f"a chunk of {size} bytes with a header of {len(chunk.header)} is too large"
        if chunk.count != chunk_count(chunk.total, max(1, size)):
            return f"damaged: {chunk.total} bytes are not {chunk.count} chunks of {size}"
        return ""

    def _may_come(self, partial: _Partial, chunk: Chunk) -> bool:
        """Whether a chunk is within its transfer's grant and the memory of all."""
        if chunk.index >= partial.granted:
            return False
        first = next(iter(self._partials.values()))
        others = self.held_bytes - len(first.body)
        return partial is first or others + len(chunk.payload) <= self._max + self._window * self._max_chunk

    def _is_next(self, chunk: Chunk) -> bool:
        """Delivery keeps the sender's order: a transfer may begin only behind the one it comes after."""
        if chunk.transfer in self._finished:
            return False
        return not chunk.after or chunk.after in self._partials or chunk.after in self._finished

    def _given_up(self, mark: Mark) -> list[str]:
        """Incomplete transfers before the mark's, of which its sender no longer knows."""
        names: list[str] = []
        for name, partial in self._partials.items():
            if name == mark.transfer:
                return names
            if not partial.complete:
                names.append(name)
        return []

    def _grant(self, transfer: str, partial: _Partial) -> int:
        first = next(iter(self._partials)) == transfer
        room = self._window if first else (self._max - self.held_bytes) // partial.chunk_bytes
        return max(0, min(self._window, room))

    def _reopened(self) -> list[Reply]:
        return [
            reply
            for transfer, partial in self._partials.items()
            if not partial.complete and partial.received + self._grant(transfer, partial) > partial.granted
            for reply in self.state(transfer)
        ]

    def _finish_reply(self, transfer: str, seen: int = 0) -> Reply:
        why = self._finished[transfer]
        if why:
            return Refuse(self._peer, self._me, transfer, why)
        return self._credit(transfer, 0, 0, done=True, seen=seen)

    def _credit(self, transfer: str, received: int, window: int, *, done: bool = False, seen: int = 0) -> Credit:
        return Credit(self._peer, self._me, transfer, received, window, done, seen)


def _misfit(partial: _Partial, chunk: Chunk) -> str:
    """Why a chunk contradicts the ones before it; "" if it does not."""
    if (chunk.count, chunk.total) != (partial.count, partial.total):
        return f"damaged: chunk {chunk.index} speaks of {chunk.total} bytes, chunk 0 of {partial.total}"
    due = min(partial.chunk_bytes, partial.total - len(partial.body))
    if len(chunk.payload) != due:
        return f"damaged: chunk {chunk.index} of {chunk.count} has {len(chunk.payload)} bytes, not {due}"
    return ""
