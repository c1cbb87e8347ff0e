"""Who answers in the place of the boards service, with a CA of its own."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from edge_agent.board.client import Service
from edgebed.link.tls import with_pem
from orchestrator.boards.authority import Authority
from tests.component._boards import HOST, made


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
