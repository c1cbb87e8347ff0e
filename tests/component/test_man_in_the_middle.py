"""Somebody between a board and its service, who answers in the service's place."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_agent.board.client import Service
from edge_agent.board.join import join
from edge_agent.board.standby import Standby
from edgebed.errors import LinkError, UsageError
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import with_pem
from orchestrator.boards.authority import Authority
from tests.component._boards import HOST, Lab, made, running

pytestmark = pytest.mark.mosquitto


def padded_ca(folder: Path) -> Path:
    """The folder of a new CA whose certificate ends with `=` in base64, as that of half of all CAs does. Python's
    decoder stops there; OpenSSL reads on."""
    for number in range(100):
        place = made(folder / str(number))
        if b"=" in Authority(place).pem:
            return place
    raise AssertionError("no CA of 100 has padding")


class Between:
    """Answers with `told` to /ca; notes what is posted.

    Args:
        own: the CA that has signed the certificate shown here.
    """

    def __init__(self, own: Authority, told: str) -> None:
        posted = self.posted = list[bytes]()

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(told.encode())

            def do_POST(self) -> None:
                posted.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_error(500)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Answers)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the board breaks the handshake off
        key, certificate = own.server_pair([HOST], dt.datetime.now(dt.UTC))
        context = with_pem(
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), own.pem.decode(), certificate.decode(), key.decode()
        )
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.service = Service(HOST, self._server.server_address[1])

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


@pytest.mark.parametrize("told", ["{right}{own}", "{right}\nand {own}", "{own}{right}", "{own}"])
async def test_who_adds_a_ca_to_the_right_one_gets_nothing(told: str, tmp_path: Path) -> None:
    place, own = padded_ca(made(tmp_path / "right")), Authority(made(tmp_path / "own"))
    right = Authority(place).pem.decode()
    between = Between(own, told.format(right=right, own=own.pem.decode()))
    async with running(made(tmp_path / "lab"), place) as lab:
        token, keys = lab.token("kitchen-pi"), lab.keys("kitchen-pi")
        with between.listening(), pytest.raises(LinkError, match=r"do not trust each other|another fingerprint"):
            await asyncio.to_thread(join, between.service, str(token), keys, print)
        assert not between.posted
        assert not keys.joined
        await asyncio.to_thread(join, lab.service, str(token), keys, print)  # the token still works
        assert keys.identity.ca.read_text() == right


async def test_a_board_that_stored_a_second_ca_shows_nothing_to_it(lab: Lab, tmp_path: Path) -> None:
    keys, own = await lab.board("pi"), Authority(made(tmp_path / "own"))
    between = Between(own, "")
    keys.identity.ca.write_text(keys.identity.ca.read_text() + own.pem.decode())
    with between.listening():
        for attempt in (
            lambda: asyncio.run(asyncio.wait_for(Standby(keys, print).run(), 10)),
            lambda: between.service.check(keys.identity),
            lambda: between.service.shard("0" * 64, tmp_path, keys.identity),
            lambda: asyncio.run(MqttLink(Address(HOST, between.service.port, identity=keys.identity), "pi").open()),
        ):
            with pytest.raises(UsageError, match=r"ca\.pem does not hold exactly one certificate") as caught:
                await asyncio.to_thread(attempt)
            assert "leave, then join again" in caught.value.hint
