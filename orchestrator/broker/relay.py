"""Passes connections on to a broker of the user's own over TLS, in a process of its own: `python -m` this file.

Devices reach it over their shaped links without TLS, which would take CPU time from the quotas that are measured, and
they have no route to other hosts. What is passed on is not looked at: each connection logs in with its own user.
The options come as JSON on standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys

from edgebed.errors import LinkError
from edgebed.link.mqtt import Address
from edgebed.link.sockets import tune
from edgebed.link.tls import client_context, reason_of
from orchestrator.broker.seams import Listen

PIECE = 1 << 16
CONNECT_S = 20.0


def command(listen: Listen, far: Address, ca: str) -> tuple[list[str], bytes]:
    """Command and standard input of a relay to this broker."""
    options = {"addresses": listen.addresses, "port": listen.port, "host": far.host, "remote_port": far.port, "ca": ca}
    return [sys.executable, "-m", "orchestrator.broker.relay"], json.dumps(options).encode()


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


async def serve(addresses: list[str], port: int, host: str, remote_port: int, ca: str) -> None:
    """Listen on every address until the process ends."""
    context = context_for(ca)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(host, remote_port, ssl=context)
            for each in (writer, far_writer):
                tune(each.get_extra_info("socket"))
            passing = [asyncio.create_task(_pass(reader, far_writer)), asyncio.create_task(_pass(far_reader, writer))]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            for task in passing:
                task.cancel()
            far_writer.close()
        writer.close()  # what was written before still leaves

    for address in addresses:
        await asyncio.start_server(accept, address, port)
    await asyncio.Event().wait()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends. Waits while the other takes no more."""
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(serve(**json.load(sys.stdin)))
