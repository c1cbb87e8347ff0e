"""The sender's side of all transfers to one peer: which chunk to send when. Pure: no bytes, no clock, no I/O.

`edgebed.link.receiver` is the receiver's side. The rules of both:

- Chunks are accepted in order only; every accepted chunk is credited (`received` is cumulative). A missing chunk is
  sent again together with those behind it (go-back-N).
- The sender keeps at most `window` chunks on the way to a peer over all its transfers, and never more of one transfer
  than its receiver granted. The next transfer starts while the last one still waits for its `done`, so a stream of
  transfers has no gaps.
- Transfers of one peer are delivered in the order they were added: chunk 0 and marks name the transfer before (`after`)
  that the sender still holds, and the receiver takes no transfer if it has not seen the one before it. So nothing is
  sent while chunks of a transfer may be lost: it was asked for them, and nothing was credited since.
- Slow is not lost. Silence, a credit that moves nothing, or a reconnect make the sender send a Query (control: is
  anybody there?) and a Mark (data: it arrives behind the chunks sent before it). Only the credit that echoes the newest
  mark can prove a loss, and then the sender goes back at once. A slow link (0.1 Mbit/s) therefore carries a few bytes
  more, but no chunk twice.
- Every send ends, because both sides can tell "not yet" from "never". The receiver turns a chunk 0 away if it does not
  know the transfer before it. So the sender also asks for the transfers before, even if all their chunks were credited;
  otherwise it would ask for ever. Marks and Queries carry how many chunks were credited. A receiver that knows of fewer
  has forgotten the transfer (it was told to, or it started anew) and refuses it; it is not sent again, because the
  receiver may have delivered it. One whose chunks were never credited begins anew.
- A send fails once a chunk was sent `TRIES` times and proved lost each time, so that a faulty receiver cannot make the
  sender send for ever.
- Time enters as `now` in seconds of any clock. Silence is judged by the measured time from chunk to credit, doubled
  each time nothing comes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from edgebed.wire.messages import Credit

TRIES = 50
"""Times in a row that chunks are proved lost before their transfer is given up."""

FIRST_TIMEOUT_S = 1.0
MIN_TIMEOUT_S = 0.5
MAX_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class SendChunk:
    """Send chunk `index`; `again` if it was sent before."""

    transfer: str
    index: int
    again: bool


@dataclass(frozen=True)
class Ask:
    """Send a Query on the control connection and Mark `number` on the data connection."""

    transfer: str
    number: int
    credited: int


@dataclass(frozen=True)
class GiveUp:
    """End the transfer, and tell the receiver: its chunks never arrive."""

    transfer: str
    why: str


Send = SendChunk | Ask | GiveUp


@dataclass
class Outgoing:
    """One transfer of `count` chunks on the sender's side. Chunks below `acked` have arrived, those below `next` were
    sent, those below `limit` may be sent; `highest` is the greatest `next` there was."""

    transfer: str
    count: int
    limit: int
    acked: int = 0
    next: int = 0
    highest: int = 0
    mark: int = 0
    marked_from: int = 0  # `acked` when the newest mark was sent
    marked_at: int = 0  # `next` when the newest mark was sent
    mark_open: bool = False
    tries: int = 0  # losses proved since a chunk was credited
    sent_at: dict[int, float] = field(default_factory=dict)  # first sending of chunks not yet credited

    @property
    def in_doubt(self) -> bool:
        """Whether chunks may be lost: it was asked for them, and nothing was credited since."""
        return self.mark_open and self.acked == self.marked_from < self.marked_at

    def go_back(self, received: int, window: int) -> None:
        """Never falls below what was credited: a receiver that knows of less has forgotten the transfer, and refuses it
        when asked."""
        self.acked = self.next = max(self.acked, received)
        self.limit = self.acked + window
        self.tries += 1
        self.sent_at.clear()  # what is sent again tells no time


class Timer:
    """Seconds of silence after which to ask: smoothed round trip + 4 deviations (RFC 6298), doubled while no answer
    comes."""

    def __init__(self) -> None:
        self._smooth: float | None = None
        self._deviation = 0.0
        self._factor = 1.0
        self._heard = 0.0

    def restart(self, now: float) -> None:
        self._heard, self._factor = now, 1.0

    def sample(self, seconds: float) -> None:
        if self._smooth is None:
            self._smooth, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(seconds - self._smooth) - self._deviation) / 4
            self._smooth += (seconds - self._smooth) / 8

    def back_off(self, now: float) -> None:
        self._heard, self._factor = now, min(self._factor * 2, 64.0)

    @property
    def due(self) -> float:
        base = FIRST_TIMEOUT_S if self._smooth is None else self._smooth + 4 * self._deviation
        return self._heard + min(max(base, MIN_TIMEOUT_S) * self._factor, max(MAX_TIMEOUT_S, base))


class TransferSender:
    """All transfers to one peer, in the order they were added. Every method that can free the way for chunks returns
    what to send, in order.

    Args:
        window: chunks on the way to the peer at once.
        transfers: transfers begun and not yet done at once.
    """

    def __init__(self, window: int, transfers: int) -> None:
        self._window, self._transfers = window, transfers
        self._all: OrderedDict[str, Outgoing] = OrderedDict()
        self._timer = Timer()

    def __contains__(self, transfer: str) -> bool:
        return transfer in self._all

    def __len__(self) -> int:
        return len(self._all)

    def add(self, transfer: str, count: int, now: float) -> list[Send]:
        if not self._all:
            self._timer.restart(now)
        self._all[transfer] = Outgoing(transfer, count, limit=self._window)
        return self._fill(now)

    def remove(self, transfer: str, now: float) -> list[Send]:
        """A transfer is done, refused or given up."""
        self._all.pop(transfer, None)
        self._timer.restart(now)
        return self._fill(now)

    @property
    def on_the_way(self) -> int:
        """Chunks that were sent and are not credited; at most the window."""
        return sum(out.next - out.acked for out in self._active())

    def begun(self) -> list[str]:
        """Transfers of which the receiver may have heard, in their order."""
        return [out.transfer for out in self._all.values() if out.highest]

    def before(self, transfer: str) -> str:
        """The transfer just before this one that is still held; "" if it is the first."""
        last = ""
        for name in self._all:
            if name == transfer:
                break
            last = name
        return last

    def credit(self, credit: Credit, now: float) -> tuple[bool, list[Send]]:
        """Returns whether the transfer moved, and what to send. A `done` credit is the caller's: call `remove`."""
        out = self._all.get(credit.transfer)
        if out is None or not 0 <= credit.received <= out.count:
            return False, []
        if out.mark_open and credit.seen == out.mark:
            return self._echo(out, credit, now)
        if credit.received > out.acked or credit.received + credit.window > out.limit:
            return self._advance(out, credit, now), self._fill(now)
        suspicious = credit.received < out.next and not out.mark_open and credit.window > 0
        return False, self._ask_upto(out) if suspicious else []

    def silence(self, now: float) -> list[Send]:
        """Call when `due` has come."""
        if now < self.due:
            return []
        self._timer.back_off(now)
        return self._ask_all()

    def reconnected(self, now: float) -> list[Send]:
        self._timer.restart(now)
        return self._ask_all()

    def _ask_upto(self, out: Outgoing) -> list[Send]:
        """Ask for a transfer, and first for those before it: the receiver takes nothing of it while it does not know
        one of them. It may have forgotten one whose chunks were all credited."""
        asked = (*self._before(out), out)
        return [self._ask(each) for each in asked if (each.acked < each.next or each is not out) and not each.mark_open]

    def _before(self, out: Outgoing) -> list[Outgoing]:
        names = list(self._all)
        return [self._all[name] for name in names[: names.index(out.transfer)]]

    def _ask_all(self) -> list[Send]:
        return [self._ask(out) for out in self._active() if out.highest]

    @property
    def due(self) -> float:
        """When to call `silence`, on the clock of `now`."""
        return self._timer.due

    def _echo(self, out: Outgoing, credit: Credit, now: float) -> tuple[bool, list[Send]]:
        """The newest mark has arrived: of the chunks sent before it, those the credit does not count are lost. So are
        marks of transfers before it that are still open: they were sent earlier. Only progress restarts the timer, so
        that losses of one transfer never keep the others from being asked for."""
        out.mark_open = False
        moved = self._advance(out, credit, now)
        if credit.received < out.marked_at:
            out.go_back(credit.received, credit.window)
            for each in self._before(out):
                each.mark_open = False
        if out.tries >= TRIES:
            return moved, [GiveUp(out.transfer, f"chunk {out.acked} was sent {TRIES} times and lost each time")]
        return moved, self._fill(now)

    def _advance(self, out: Outgoing, credit: Credit, now: float) -> bool:
        if credit.received <= out.acked and credit.received + credit.window <= out.limit:
            return False
        self._timer.restart(now)
        out.limit = max(out.limit, credit.received + credit.window)
        if credit.received <= out.acked:
            return False
        started = out.sent_at.get(credit.received - 1)
        if started is not None:
            self._timer.sample(now - started)
        for index in range(out.acked, credit.received):
            out.sent_at.pop(index, None)
        out.acked, out.tries = credit.received, 0
        out.next = max(out.next, out.acked)
        return True

    def _active(self) -> list[Outgoing]:
        return [out for out, _ in zip(self._all.values(), range(self._transfers), strict=False)]

    def _fill(self, now: float) -> list[Send]:
        free = self._window - self.on_the_way
        sends: list[Send] = []
        for out in self._active():
            if out.in_doubt:
                break
            while free > 0 and out.next < min(out.count, out.limit):
                again = out.next < out.highest
                sends.append(SendChunk(out.transfer, out.next, again))
                if not again:
                    out.sent_at[out.next] = now
                out.next += 1
                out.highest = max(out.highest, out.next)
                free -= 1
        return sends

    def _ask(self, out: Outgoing) -> Ask:
        out.mark += 1
        out.marked_from, out.marked_at, out.mark_open = out.acked, out.next, True
        return Ask(out.transfer, out.mark, out.acked)
