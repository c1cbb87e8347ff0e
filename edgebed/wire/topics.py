"""The names of the MQTT topics, built and taken apart in one place. Pure.

    edgebed/<fleet>/state/<device>        retained Presence, and the last will
    edgebed/<fleet>/to/<device>           control, orchestrator -> device
    edgebed/<fleet>/from/<device>         control, device -> orchestrator
    edgebed/<fleet>/data/to/<device>      chunks, orchestrator -> device
    edgebed/<fleet>/data/from/<device>    chunks, device -> orchestrator

`<fleet>` is the unique id of a standing fleet, so two fleets on one broker never hear each other. On the broker of the
boards service the last level is the id of the board that is the device.
"""

from __future__ import annotations

import re

import msgspec

from edgebed.errors import UsageError

ORCHESTRATOR = "orchestrator"
"""The peer name of the orchestrator in Credit, Refuse and Query; the common name of the only certificate that may
command a node's helper."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def check_name(name: str, what: str = "device") -> str:
    """The name itself; raises UsageError where MQTT, Docker or a file system could not carry it."""
    if not NAME.fullmatch(name) or name == ORCHESTRATOR:
        raise UsageError(
            f"{name!r} is no name for a {what}",
            hint="use 1 to 63 letters, digits, '_', '.' or '-', a letter or digit first; 'orchestrator' is taken",
        )
    return name


class Topics(msgspec.Struct, frozen=True):
    """`board`: id of the board that this device is; "" where the last level is the device's name."""

    fleet: str
    board: str = ""

    def state(self, device: str) -> str:
        return f"edgebed/{self.fleet}/state/{self.board or device}"

    def control_to(self, device: str) -> str:
        return f"edgebed/{self.fleet}/to/{self.board or device}"

    def control_from(self, device: str) -> str:
        return f"edgebed/{self.fleet}/from/{self.board or device}"

    def data_to(self, device: str) -> str:
        return f"edgebed/{self.fleet}/data/to/{self.board or device}"

    def data_from(self, device: str) -> str:
        return f"edgebed/{self.fleet}/data/from/{self.board or device}"

    def device_of(self, topic: str) -> str:
        """The device a topic speaks of: its last level."""
        return topic.rsplit("/", 1)[-1]
