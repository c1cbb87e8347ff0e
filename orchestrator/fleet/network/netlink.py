"""Changes the rate of a link, or takes it down, by netlink and ioctl. This takes about 0.1 ms, where a program such as
tc takes several. So a trace with a rate per second can be replayed on hundreds of devices."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edgebed.errors import LimitError
from edgebed.limits.throttle import QUEUE_BYTES, burst_bytes
from orchestrator.fleet.spec.profile import Limits

T = TypeVar("T")

DEVICE_END = "eth0"
"""The name of a device's interface, in its own namespace."""

CLONE_NEWNET = 0x40000000
RTM_NEWQDISC, RTM_GETQDISC, NLMSG_ERROR = 36, 38, 2
REQUEST, ACK, ECHO = 1, 4, 8
TC_H_ROOT, HANDLE = 0xFFFFFFFF, 0x10000  # the handle `1:` that `throttle.shape_commands` gives the tbf
TCA_KIND, TCA_OPTIONS = 1, 2
TBF_PARMS, TBF_RATE64, TBF_BURST = 1, 4, 6
NLA_TYPE = 0x3FFF
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
HEADER, TCMSG, RATESPEC = struct.Struct("=IHHII"), struct.Struct("=BBHiIII"), struct.Struct("=BBHhHI")
TIMEOUT_S = 10.0
ANSWER_BYTES = 65_536


def set_rates(netns: Path, inner: str, outer: str, limits: Limits) -> tuple[int, int]:
    """Change the rates of a device's link.

    Args:
        inner: the interface in the device's namespace, whose egress is the uplink.
        outer: the interface of the host, whose egress is the downlink.

    Returns:
        Uplink and downlink in bit/s as the kernel then reports them.

    Raises:
        LimitError: the kernel refuses.
    """
    return in_netns(netns, lambda: set_rate(inner, limits.uplink_bit_s)), set_rate(outer, limits.downlink_bit_s)


def set_link(netns: Path, interface: str, up: bool) -> str:
    """Bring an interface of a namespace up, or take it down. Returns what it then is, in words. Raises LimitError."""
    return told(in_netns(netns, lambda: _set_up(interface, up)))


def told(flags: int) -> str:
    """What the flags of an interface say of its link."""
    return f"link {'up' if flags & IFF_UP else 'down'}"


def in_netns(path: Path, call: Callable[[], T]) -> T:
    """Call in a network namespace, in a thread that ends with the call, so that no other code stays in there. Raises
    LimitError: there is no such namespace, or whatever `call` raises."""
    results: list[T] = []
    errors: list[Exception] = []

    def enter() -> None:
        try:
            with path.open("rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=enter, name="edgebed-netns")
    thread.start()
    thread.join()
    if not errors:
        return results[0]
    if isinstance(errors[0], OSError):
        raise LimitError(f"{path}: {errors[0].strerror}", hint="run as root; has the device ended?") from errors[0]
    raise errors[0]


def set_rate(interface: str, rate_bit_s: int) -> int:
    """Change the rate of the tbf that is on the interface's egress; its queue stays. Returns the rate in bit/s that the
    kernel then reports. Raises LimitError."""
    try:
        message = TCMSG.pack(socket.AF_UNSPEC, 0, 0, socket.if_nametoindex(interface), HANDLE, TC_H_ROOT, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
            link.settimeout(TIMEOUT_S)
            _ask(link, RTM_NEWQDISC, ACK, message + _attribute(TCA_KIND, b"tbf\0") + _options(rate_bit_s))
            return _rate_in(_ask(link, RTM_GETQDISC, ECHO, message))
    except OSError as error:
        raise LimitError(
            f"the rate of {interface} cannot be changed to {rate_bit_s} bit/s: {error.strerror or error}",
            hint="its limits were not set before, or another program has removed them",
        ) from None


def _set_up(interface: str, up: bool) -> int:
    """Bring an interface up, or take it down. Returns the flags that the kernel then reports. Raises OSError."""
    request = struct.Struct("16sh14x")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:

        def flags() -> int:
            answer = fcntl.ioctl(link, SIOCGIFFLAGS, request.pack(interface.encode(), 0))
            return int(request.unpack(answer)[1])

        wanted = flags() | IFF_UP if up else flags() & ~IFF_UP
        fcntl.ioctl(link, SIOCSIFFLAGS, request.pack(interface.encode(), wanted))
        return flags()


def _ask(link: socket.socket, kind: int, flags: int, message: bytes) -> bytes:
    """The body of the answer. Raises OSError if the kernel refuses."""
    link.send(HEADER.pack(HEADER.size + len(message), kind, REQUEST | flags, 1, 0) + message)
    answer = link.recv(ANSWER_BYTES)
    length, what, *_ = HEADER.unpack_from(answer)
    if what == NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, HEADER.size)
        if code:
            raise OSError(-code, os.strerror(-code))
    return answer[HEADER.size : length]


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def _options(rate_bit_s: int) -> bytes:
    """tbf's options, as tc sends them for `rate … burst … limit …`."""
    rate = rate_bit_s // 8
    spec = RATESPEC.pack(0, 1, 0, -1, 0, min(rate, 2**32 - 1))  # 1: Ethernet
    parms = spec + bytes(RATESPEC.size) + struct.pack("=III", QUEUE_BYTES, 0, 0)
    wide = _attribute(TBF_RATE64, struct.pack("=Q", rate)) if rate >= 2**32 else b""
    burst = _attribute(TBF_BURST, struct.pack("=I", burst_bytes(rate_bit_s)))
    return _attribute(TCA_OPTIONS, _attribute(TBF_PARMS, parms) + wide + burst)


def _rate_in(answer: bytes) -> int:
    """The rate of the tbf that the kernel describes. Raises OSError if it describes something else."""
    described = _attributes(answer[TCMSG.size :])
    options = _attributes(described.get(TCA_OPTIONS, b""))
    if not described.get(TCA_KIND, b"").startswith(b"tbf") or TBF_PARMS not in options:
        raise OSError(errno.ENOENT, "there is no tbf")
    if TBF_RATE64 in options:
        return int(struct.unpack("=Q", options[TBF_RATE64])[0]) * 8
    return int(RATESPEC.unpack_from(options[TBF_PARMS])[-1]) * 8


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            break
        found[kind & NLA_TYPE] = data[4:size]
        data = data[size + (-size % 4) :]
    return found
