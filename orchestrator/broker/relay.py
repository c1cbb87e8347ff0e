"""Passes connections on to a broker of the user's own, in a process of its own: `python -m` this file.

Devices of this host reach it over their shaped links without TLS, which would take CPU time from the quotas that are
measured, and they have no route to other hosts. The helpers of other hosts reach it over TLS and show a certificate of
the run. What is passed on is not looked at: each connection logs in with its own user. The options come as JSON on
standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Sequence

import msgspec

from edgebed.errors import LinkError
from edgebed.link.connection import Address
from edgebed.link.sockets import tune
from edgebed.link.tls import client_context, reason_of, server_context
from edgebed.link.tls_acceptor import TlsAcceptor, streams
from edgebed.module_process import module_command
from orchestrator.broker.runner import BACKLOG, Listen
from orchestrator.fleet.many_hosts import TlsListener

PIECE = 1 << 16
CONNECT_S = 20.0


class Options(msgspec.Struct, frozen=True):
    """Of a relay. It inherits `sockets`, which listen; with `tls` the last one is for those who speak TLS."""

    sockets: Sequence[int]
    # `host`, `port`: of the user's broker
    host: str
    port: int
    ca: str | None  # as for `context_for`; None where that broker speaks no TLS
    tls: TlsListener | None = None


def command(listen: Listen, far: Address, ca: str | None) -> tuple[list[str], bytes]:
    """Command and standard input of a relay to this broker."""
    options = Options(listen.sockets, far.host, far.port, ca, listen.tls)
    return module_command("orchestrator.broker.relay"), msgspec.json.encode(options)


async def try_handshake(far: Address, ca: str) -> None:
    """Raises LinkError with the cause where the broker cannot be reached, or is not believed."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(far.host, far.port, ssl=context_for(ca))
    except ssl.SSLError as error:
        hint = "--broker-ca names the certificate that has signed the broker's, which must have this host's name in it"
        raise LinkError(f"the broker at {far} is not believed: {reason_of(error)}", hint=hint) from None
    except (OSError, TimeoutError) as error:
        hint = "check that the broker runs, speaks TLS on this port, and that no firewall stands between"
        raise LinkError(f"the broker at {far} cannot be reached: {error or 'no answer'}", hint=hint) from None
    writer.transport.abort()


def context_for(ca: str) -> ssl.SSLContext:
    """Believes this CA and no other; without one, those that this host believes. Checks the broker's name. Raises
    LinkError."""
    return client_context(ca) if ca else ssl.create_default_context()


async def serve(options: Options) -> None:
    """Serve those who connect until the process ends."""
    context = None if options.ca is None else context_for(options.ca)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(options.host, options.port, ssl=context)
            for each in (writer, far_writer):
                tune(each.get_extra_info("socket"))
            passing = [asyncio.create_task(_pass(reader, far_writer)), asyncio.create_task(_pass(far_reader, writer))]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for task in passing:
                task.cancel()
            far_writer.close()
        writer.close()  # what was written before still leaves

    sockets = [socket.socket(fileno=each) for each in options.sockets]
    if tls := options.tls:
        pem = [data.decode() for data in (tls.ca, tls.certificate, tls.key)]
        TlsAcceptor(sockets.pop(), server_context(*pem), streams(accept))
    for each in sockets:
        await asyncio.start_server(accept, sock=each, backlog=BACKLOG)
    await asyncio.Event().wait()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends. Waits while the other takes no more."""
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.stdin.buffer.read(), type=Options)))
