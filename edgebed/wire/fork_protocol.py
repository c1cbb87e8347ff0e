"""Messages between the local backend and its fork server: lines of JSON over a socket on the same host. Pure."""

from __future__ import annotations

import msgspec

from edgebed.errors import WireError, printable
from edgebed.guarded import Guarded

HOST_PID = "EDGEBED_AGENT_PID"
"""The environment variable in which an agent with a PID namespace of its own finds its number on the host."""


class Fork(Guarded, frozen=True, tag="fork"):
    """Start an agent.

    `netns` and `cgroups` (cgroup.procs files) are empty where the agent limits itself. `uid`: whom it becomes; 0: it
    stays who it is. `root`: an empty folder over which its own file system is built, with `shard` in it; "": it keeps
    the host's file system and PID namespace, and reads `shard` there. `plugins`: folder of the plug-ins; "": none.
    """

    device: str
    argv: tuple[str, ...]
    broker: str
    log: str
    shard: str
    uid: int = 0
    root: str = ""
    netns: str = ""
    cgroups: tuple[str, ...] = ()
    plugins: str = ""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """torch is loaded; forks from here on are quick."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    device: str
    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    device: str
    pid: int
    why: str


Message = Fork | Ready | Forked | Exited

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """Raises WireError for anything else."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message of the fork server: {line[:200]!r}: {printable(str(error))}") from None
