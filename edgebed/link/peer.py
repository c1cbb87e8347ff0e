"""What a transfer endpoint keeps of each of its peers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from edgebed.link.allowance import Allowance
from edgebed.link.receiver import TransferReceiver
from edgebed.link.sender import TransferSender


class Sent(msgspec.Struct):
    """A finished send. From the first chunk handed to the link until the receiver's application had it, on this side's
    monotonic clock. `bytes` counts frames sent for the first time, `resent_bytes` those sent again."""

    first_ns: int
    done_ns: int
    bytes: int
    resent_bytes: int


@dataclass
class Sending:
    """A transfer that is being sent, and whoever waits for its end."""

    header: bytes
    body: memoryview
    done: asyncio.Future[Sent]
    sent: Sent


@dataclass
class Peer:
    """Everything that the endpoint keeps of one peer."""

    name: str
    outbox: TransferSender
    inbox: TransferReceiver
    messages: Allowance = field(default_factory=Allowance)
    frames: Allowance = field(default_factory=Allowance)
    sending: dict[str, Sending] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    delivery: asyncio.Task[None] | None = None
