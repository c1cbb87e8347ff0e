"""A broker of the user's own: its address, its CA, and the users that devices and orchestrator have there."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from edgebed.errors import FileError, UsageError
from edgebed.link.connection import Address, hide_user, parse_url
from edgebed.wire.topics import ORCHESTRATOR

USER, PASSWORD = "EDGEBED_BROKER_USER", "EDGEBED_BROKER_PASSWORD"
"""Environment variables with the one user that all use where there is no file of users."""


class OwnBroker(msgspec.Struct, frozen=True):
    """What the user says of a broker of his own."""

    url: str  # `mqtts://host:port`, or `mqtt://host:port` where the broker is on this host
    ca: str = ""  # path of the certificate (PEM) that has signed the broker's; "": those that this host believes
    # path of a file with a line `user:password` for the orchestrator and for each device; "": the user of the
    # environment, or of the url, for all of them
    users: str = ""

    def __repr__(self) -> str:
        return f"OwnBroker({hide_user(self.url)!r}, {self.ca!r}, {self.users!r})"

    @property
    def secure(self) -> bool:
        return self.url.lower().startswith("mqtts:")  # as `parse_url` reads it

    @property
    def name(self) -> str:
        """The url without user and password."""
        return f"{'mqtts' if self.secure else 'mqtt'}://{parse_url(self.url)}"

    def address(self) -> Address:
        """Where it is, with the user of the orchestrator. Raises FileError, UsageError."""
        address = parse_url(self.url)
        if not self.secure and not is_this_host(address.host):
            raise UsageError(
                f"{address} is not on this host, and mqtt:// would send passwords and weights unprotected",
                hint="use mqtts:// with --broker-ca; boards of your own join with `edgebed boards invite`",
            )
        user, password = os.environ.get(USER, ""), os.environ.get(PASSWORD, "")
        if self.users:
            users = self.passwords()
            if ORCHESTRATOR not in users:
                raise UsageError(f"{self.users} has no line for {ORCHESTRATOR}", hint="edgebed broker users writes one")
            user, password = ORCHESTRATOR, users[ORCHESTRATOR]
        return msgspec.structs.replace(address, username=user, password=password) if user else address

    def passwords(self) -> dict[str, str]:
        """By user, from the file of users. Raises FileError, UsageError."""
        path = Path(self.users)
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UsageError(f"{path} holds passwords that others can read", hint=f"chmod 600 {path}")
            lines = path.read_text().splitlines()
        except OSError as error:
            raise FileError.of(error, path) from None
        pairs = [line.partition(":") for line in lines if line.strip()]
        if not all(user and colon and password for user, colon, password in pairs):
            raise UsageError(
                f"{path} has a line that is not user:password", hint="edgebed broker users writes such a file"
            )
        return {user: password for user, _, password in pairs}

    def passwords_of(self, devices: Sequence[str]) -> dict[str, str]:
        """The users that these devices have; {} where all use that of the orchestrator. Raises FileError,
        UsageError."""
        users = self.passwords() if self.users else {}
        missing = [name for name in devices if users and name not in users]
        if missing:
            hint = "edgebed broker users FLEET writes a line for each device"
            raise UsageError(f"{self.users} has no line for {', '.join(missing)}", hint=hint)
        return users

    def authority(self) -> str:
        """The CA's certificate (PEM); "": those that this host believes. Raises FileError."""
        try:
            return Path(self.ca).read_text() if self.ca else ""
        except OSError as error:
            raise FileError.of(error, Path(self.ca)) from None


def is_this_host(host: str) -> bool:
    """Whether this is loopback, or an address of this host."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    rows = [row.address.split("%")[0] for rows in psutil.net_if_addrs().values() for row in rows]
    return address.is_loopback or str(address) in rows
