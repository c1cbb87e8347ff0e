"""Who may ask: the Host header is checked (DNS rebinding), then the token.

A page of another site can make a browser send requests to this host under a name of its own that points here; such
requests carry that name. The token is needed once, in the address, and is then kept in a cookie; on the loopback too,
which every user of this host reaches.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The browser itself refuses every request to another place, and every script that is not one of our files."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Auth:
    """ASGI middleware. `host` is what the server listens on."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str) -> None:
        self._app, self._host, self._token = app, host, token
        self._cookie = f"edgebed-{port}"  # cookies of one host are shared between its ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._is_known(headers.get("host", "")):
            refusal = PlainTextResponse("This name is not one under which this page is served.\n", 421)
            await refusal(scope, receive, send)
            return
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if not self._has_cookie(headers):
            if not self._fits(query.pop("token", "") or _bearer(headers)):
                refusal = PlainTextResponse("A token is needed: open the address that `edgebed` printed.\n", 401)
                await refusal(scope, receive, send)
            elif "authorization" in headers:
                await self._app(scope, receive, _with_headers(send))
            else:
                await self._welcome(scope, receive, send, query)
            return
        await self._app(scope, receive, _with_headers(send))

    async def _welcome(self, scope: Scope, receive: Receive, send: Send, query: dict[str, str]) -> None:
        """Put the token into a cookie and remove it from the address."""
        target = scope["path"] + (f"?{urlencode(query)}" if query else "")
        response = RedirectResponse("/" + target.lstrip("/\\"), 303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        await response(scope, receive, _with_headers(send))

    def _is_known(self, header: str) -> bool:
        """Names that are allowed. On the loopback only its own; else also every IP address and this host's name,
        since the token is needed as well."""
        name = _host_of(header)
        if name in LOOPBACK or name == self._host.lower():
            return True
        if is_loopback(self._host):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return True

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return morsel is not None and self._fits(morsel.value)

    def _fits(self, given: str) -> bool:
        """Compared in a time that does not tell how much of it was right."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


def _bearer(headers: Headers) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value if kind.lower() == "bearer" else ""


def _host_of(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            own = headers.get("content-security-policy")
            headers.update(HEADERS)
            if own:  # of a report, which is shut off more strictly
                headers["content-security-policy"] = own
        await send(message)

    return wrapped
