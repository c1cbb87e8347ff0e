"""Asks the kernels of nodes for their clocks, without anything that runs there: ICMP timestamp request and reply
(RFC 792), milliseconds since midnight UTC. So a clock that is wrong by whole days looks right. Calls block."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Mapping

from orchestrator.fleet.swarm.clocks import Clock, clock_of

REQUEST, REPLY = 13, 14
MESSAGE = struct.Struct("!BBHHHIII")
"""Type, code, checksum, identifier, sequence number; when it was sent, received and answered, in ms."""

TIMES, ANSWER_S = 3, 1.0
"""Questions to each node, of which the quickest counts, and seconds for the answers to one."""

STEP_S, DAY_S = 0.001, 86400.0
NOT_UTC = 1 << 31
"""A kernel that cannot tell UTC sets this bit."""


def ask_clocks(nodes: Mapping[str, str]) -> list[Clock]:
    """The clocks of nodes that answer. `nodes`: IPv4 addresses by name; others are left out. Raises PermissionError:
    this process may not open raw sockets."""
    found: dict[str, Clock] = {}
    asked = {name: address for name, address in nodes.items() if _is_ipv4(address)}
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as icmp:
        for number in range(TIMES):
            for name, clock in _ask(icmp, asked, number).items():
                if name not in found or clock.error_s < found[name].error_s:
                    found[name] = clock
            asked = {name: asked[name] for name in found}
    return list(found.values())


def _ask(icmp: socket.socket, nodes: Mapping[str, str], number: int) -> dict[str, Clock]:
    """Ask each node once."""
    names, sent = {address: name for name, address in nodes.items()}, {}
    found: dict[str, Clock] = {}
    identifier, deadline = os.getpid() & 0xFFFF, time.monotonic() + ANSWER_S
    for address in names:
        sent[address] = time.time()
        with contextlib.suppress(OSError):  # no route: it does not answer
            icmp.sendto(request(identifier, number, sent[address]), (address, 0))
    while len(found) < len(names) and (left := deadline - time.monotonic()) > 0:
        icmp.settimeout(left)
        try:
            packet, (address, _) = icmp.recvfrom(1024)
        except TimeoutError:
            break
        heard, told = time.time(), parse_reply(packet, identifier, number)
        if told is not None and address in names:
            told = sent[address] + (told - sent[address] + DAY_S / 2) % DAY_S - DAY_S / 2
            found[names[address]] = clock_of(names[address], sent[address], told, heard, STEP_S)
    return found


def request(identifier: int, number: int, now_s: float) -> bytes:
    fields = (identifier, number, int(now_s % DAY_S * 1000), 0, 0)
    return MESSAGE.pack(REQUEST, 0, checksum(MESSAGE.pack(REQUEST, 0, 0, *fields)), *fields)


def parse_reply(packet: bytes, identifier: int, number: int) -> float | None:
    """Seconds since midnight UTC at which the request came, from an IP packet; None if it is no answer to it."""
    message = packet[(packet[0] & 15) * 4 :] if packet else b""
    if len(message) < MESSAGE.size:
        return None
    kind, _, _, its, its_number, _, received_ms, _ = MESSAGE.unpack_from(message)
    if (kind, its, its_number) != (REPLY, identifier, number) or received_ms & NOT_UTC:
        return None
    return float(received_ms) / 1000


def checksum(data: bytes) -> int:
    """Of the Internet (RFC 1071), of an even number of bytes."""
    total: int = sum(word for (word,) in struct.iter_unpack("!H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _is_ipv4(address: str) -> bool:
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return True
