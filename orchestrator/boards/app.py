"""The HTTPS side of the boards service, as an ASGI application: the CA, joining, renewing, leaving, shards."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from edgebed.errors import FileError, FleetError, WireError
from edgebed.wire.boards import MOST_BODY, SHA256, Enrolled, Join, Refusal, Renew, decode_json
from orchestrator.boards.enrolment import Enrolment, Refused, unknown_token
from orchestrator.boards.https import PEER

BODY_S = 10.0
"""A request's body must be complete after so long."""

FREE_MISSES, MISS_S = 20, 60.0
"""So many wrong tokens and keys in a minute from one address are answered at once, later ones after `DELAY_S`. A
right one never waits: it is looked up first."""

DELAY_S = 1.0
MOST_ADDRESSES = 1024

T = TypeVar("T")
Answer = Callable[[Request], Awaitable[Response]]


class Misses:
    """Counts wrong tokens by address. Forgets the addresses that were quiet longest."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, address: str, now: float) -> int:
        """The number of misses of this address within the current minute, this one included."""
        begin, count = self._seen.pop(address, (now, 0))
        if now - begin > MISS_S:
            begin, count = now, 0
        self._seen[address] = (begin, count + 1)
        if len(self._seen) > MOST_ADDRESSES:
            self._seen.popitem(last=False)
        return count + 1


class BoardsApp:
    """Answers the requests of boards.

    Args:
        shards: the folder with `<SHA-256>.safetensors`.
        notify: told what a person should know, a line each.
        in_force: returns when the broker lets in who has joined.
    """

    def __init__(
        self,
        enrolment: Enrolment,
        shards: Path,
        notify: Callable[[str], None],
        in_force: Callable[[], Awaitable[None]],
    ) -> None:
        self._enrolment, self._shards, self._notify = enrolment, shards, notify
        self._in_force = in_force
        self._misses = Misses()
        self._told: dict[str, str] = {}  # the certificate of each board that was told of
        self.asgi = Starlette(
            routes=[
                Route("/ca", self.ca),
                Route("/join", self.answered(self.join), methods=["POST"]),
                Route("/renew", self.answered(self.renew), methods=["POST"]),
                Route("/leave", self.answered(self.leave), methods=["POST"]),
                Route("/me", self.answered(self.me)),
                Route("/shards/{sha256}", self.answered(self.shard)),
            ]
        )

    async def ca(self, request: Request) -> Response:
        return Response(self._enrolment.ca, media_type="application/x-pem-file")

    async def join(self, request: Request) -> Response:
        wanted = await _message(request, Join)
        if not self._enrolment.knows(wanted.secret):
            await self._miss(_address(request))
            raise unknown_token()
        enrolled = await asyncio.to_thread(self._enrolment.join, wanted, time.time(), _address(request))
        self._tell(enrolled, f"{enrolled.name} joined from {_address(request)} (id {enrolled.board})")
        await self._in_force()
        return _json(enrolled)

    async def renew(self, request: Request) -> Response:
        wanted = await _message(request, Renew)
        try:
            enrolled = await asyncio.to_thread(self._enrolment.renew, wanted, time.time(), _address(request))
        except Refused:
            await self._miss(_address(request))
            raise
        self._tell(enrolled, f"{enrolled.name} renewed its certificate")
        return _json(enrolled)

    async def leave(self, request: Request) -> Response:
        board = self._enrolment.member(_peer(request))
        await asyncio.to_thread(self._enrolment.leave, _peer(request), time.time(), _address(request))
        self._notify(f"{board.name} left")
        return Response(b"{}")

    async def me(self, request: Request) -> Response:
        self._enrolment.member(_peer(request))
        return Response(b"{}")

    async def shard(self, request: Request) -> Response:
        self._enrolment.member(_peer(request))
        sha256 = request.path_params["sha256"]
        path = self._shards / f"{sha256}.safetensors"
        if not SHA256.fullmatch(sha256) or not path.is_file():
            raise Refused(404, "there is no such shard", "the run that needs it puts it here")
        return FileResponse(path)

    def answered(self, handler: Answer) -> Answer:
        """Turns a refusal into its answer. Why the service failed itself is told here, not to the board."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as refused:
                return _json(Refusal(refused.error, refused.hint), refused.status)
            except ClientDisconnect:
                return Response(status_code=400)
            except (FileError, FleetError) as error:  # the latter: another process holds the registry
                self._notify(f"{request.url.path} of {_address(request)} failed: {error}; {error.hint}")
                return _json(Refusal("the service failed; its own output says why", "try again later"), 503)

        return answer

    def _tell(self, enrolled: Enrolled, line: str) -> None:
        """Once for each certificate: who asks again gets the same one."""
        if self._told.get(enrolled.board) != enrolled.certificate:
            self._told[enrolled.board] = enrolled.certificate
            self._notify(line)

    async def _miss(self, address: str) -> None:
        count = self._misses.add(address, time.monotonic())
        if count in (1, FREE_MISSES) or (count > FREE_MISSES and count % 1000 == 0):
            self._notify(f"refused: {count} wrong token(s) or unknown key(s) from {address} within a minute")
        if count > FREE_MISSES:
            await asyncio.sleep(DELAY_S)


async def _message(request: Request, kind: type[T]) -> T:
    """The body, decoded. Raises Refused for one that is too large, too slow, or something else."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MOST_BODY:
                    raise Refused(413, f"the request is larger than {MOST_BODY} bytes")
        return decode_json(bytes(data), kind)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {BODY_S:.0f} s") from None
    except WireError:
        raise Refused(400, f"the request is no {kind.__name__}") from None


def _json(message: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(message), status, media_type="application/json")


def _peer(request: Request) -> int | None:
    serial: int | None = request.scope["state"][PEER]
    return serial


def _address(request: Request) -> str:
    return request.client.host if request.client else "?"
