"""Addresses and ports for tests of brokers."""

from __future__ import annotations

import socket

import msgspec

from edgebed.link.connection import Address
from orchestrator.broker.open_broker import Broker


def tcp_address(broker: Broker, host: str = "127.0.0.1", device: str = "") -> Address:
    """Of a broker over TCP. Without `device` with the orchestrator's user, as no product code has it: for tests that
    stand between, or that look at the socket."""
    if device:
        access = broker.access(host, device)
        return Address(access.host, access.port, access.username, access.password)
    return msgspec.structs.replace(broker.address, host=host, port=broker.port)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.create_server((host, 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
