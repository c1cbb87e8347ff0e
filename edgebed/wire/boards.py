"""What a board and the boards service say to each other: the token, requests and answers over HTTPS, orders over MQTT.
Pure. docs/boards.md has the sequence of these messages."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Literal, TypeVar

import msgspec

from edgebed.errors import UsageError, WireError, printable
from edgebed.guarded import Guarded
from edgebed.limits.spec import Held, Limits
from edgebed.wire.texts import MOST_TEXT
from edgebed.wire.topics import Topics, check_name

HTTPS_PORT, MQTT_PORT = 7443, 8883
"""Ports of the boards service, unless it is told others."""

MOST_BODY = 16 << 10
"""Bytes of the largest request that a board sends to the service."""

MOST_JSON = 64 << 10
"""Bytes of any message here. A state of 8 MiB took a second to decode, in the service and in each run."""

MOST_CLOCK_ERROR_S = 3600.0
"""Seconds by which the clocks of a host and of its boards or nodes may differ: certificates are valid from twice as
long before they were made on."""

WAITING = Topics("boards")
"""Topics of a board without a fleet: its state, and its order on `control_to`. The device is the board's id."""

FORM = "eb1"
"""First part of a token; another form of token gets another one."""

ID = re.compile(r"b[0-9a-f]{31}")
"""The id of a board: the common name of its certificate and its user name at the broker. It is random."""

SHA256 = re.compile(r"[0-9a-f]{64}")

Accelerator = Literal["auto", "cpu", "cuda"]
"""Where a board trains. `auto`: CUDA where the board has it and its torch can use it, else the CPU."""

T = TypeVar("T")


class Token(Guarded, frozen=True):
    """What `edgebed boards invite` prints: `eb1.FINGERPRINT.SECRET.NAME`."""

    fingerprint: bytes  # SHA-256 of the CA's certificate (DER), 32 bytes
    secret: str  # lets one board join, once
    name: str  # what people call the board

    def __str__(self) -> str:
        fingerprint = base64.urlsafe_b64encode(self.fingerprint).decode().rstrip("=")
        return f"{FORM}.{fingerprint}.{self.secret}.{self.name}"


def parse_token(text: str) -> Token:
    """Raises UsageError; the message does not repeat the text, which may be a secret."""
    parts = text.strip().split(".", 3)
    hint = "copy the whole command that `edgebed boards invite` printed"
    if len(parts) != 4 or parts[0] != FORM:
        raise UsageError("this is no token of `edgebed boards invite`", hint=hint)
    try:
        fingerprint = base64.urlsafe_b64decode(parts[1] + "=")
    except (binascii.Error, ValueError):
        fingerprint = b""
    if len(fingerprint) != 32 or not re.fullmatch(r"[A-Za-z0-9_-]{16,64}", parts[2]):
        raise UsageError("this token is damaged", hint=hint)
    return Token(fingerprint, parts[2], check_name(parts[3], "board"))


class Join(Guarded, frozen=True):
    """POST /join. `csr` is PEM; only its public key counts. `facts`: what the board says about itself, for people."""

    secret: str
    csr: str
    facts: dict[str, str] = msgspec.field(default_factory=dict)


class Renew(msgspec.Struct, frozen=True):
    """POST /renew. The CSR is signed with the board's key, which is what proves who asks."""

    csr: str


class Enrolled(msgspec.Struct, frozen=True):
    """The answer to Join and Renew. `certificate` is PEM."""

    board: str
    name: str
    certificate: str
    mqtt_port: int


class Refusal(msgspec.Struct, frozen=True):
    """The answer to what was refused."""

    error: str
    hint: str = ""


class BoardOrder(msgspec.Struct, frozen=True):
    """Retained on `WAITING.control_to(id)`: the fleet in which the board shall be a device. An empty payload: none."""

    fleet: str
    shard: str  # SHA-256 of the device's shard, which the board gets over HTTPS
    alone_s: float = 1800.0  # as of the agent's option `--alone-s`
    device: str = ""  # what the fleet calls it; "": its id
    start: int = 0  # grows when the agent shall be started again
    accelerator: Accelerator | None = None  # where it shall train; None: the board chooses
    limits: Limits | None = None  # to be put on the agent that runs, each time that `limited` grows; None: it has none
    limited: int = 0
    # names of those that the agent shall use; `code`: SHA-256 of an archive (zip) of their copies, which a board that
    # takes code gets over HTTPS as it gets a shard. Other boards use what is installed on them
    plugins: tuple[str, ...] = ()
    code: str = ""


class BoardState(msgspec.Struct, frozen=True):
    """Retained on `WAITING.state(id)`; with `online=False` it is the last will."""

    online: bool
    version: str = ""
    fleet: str = ""  # that of the order in hand; "" without one
    # why the order cannot be carried out; "" where it can. With `online=False`: why the board has ended its connection;
    # "" where it broke, and may come back
    error: str = ""
    final: bool = False  # it is not tried again
    protocol: int = 0  # that its agent speaks; 0: an older version, which did not say
    failures: int = 0  # of this order so far
    # of the order whose limits are put on; `held`: what the kernel then holds; `unheld`: why it does not
    limited: int = 0
    held: Held | None = None
    unheld: str = ""
    life: str = ""  # random; another one when `edgebed-agent run` was started again. Its agent has ended then

    def __post_init__(self) -> None:
        for name in ("version", "fleet", "error", "unheld", "life"):
            msgspec.structs.force_setattr(self, name, printable(getattr(self, name), MOST_TEXT))
        if self.held is not None:
            details = {printable(key): printable(text, MOST_JSON) for key, text in self.held.details.items()}
            msgspec.structs.force_setattr(self, "held", msgspec.structs.replace(self.held, details=details))


def decode_json(data: bytes, kind: type[T]) -> T:
    """Raises WireError."""
    if len(data) > MOST_JSON:
        raise WireError(f"a {kind.__name__} has at most {MOST_JSON} bytes, not {len(data)}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{printable(repr(data[:80]))} is no {kind.__name__}: {error}") from None


def decode_order(data: bytes) -> BoardOrder | None:
    """None for an empty payload. Raises WireError for what is none, or names no fleet or shard."""
    if not data:
        return None
    wanted = decode_json(data, BoardOrder)
    try:
        check_name(wanted.fleet, "fleet")
        check_name(wanted.device or "d")
    except UsageError as error:
        raise WireError(str(error)) from None
    if not SHA256.fullmatch(wanted.shard) or not (wanted.code == "" or SHA256.fullmatch(wanted.code)):
        raise WireError(f"{printable(wanted.shard)!r} is no SHA-256 of a shard")
    return wanted


def plain_facts(facts: dict[str, Any]) -> dict[str, str]:
    """At most 32 facts of at most 200 printable characters, as they may be shown and kept."""
    kept = list(facts.items())[:32]
    return {printable(str(key)[:40]): printable(str(value)[:200]) for key, value in kept}
