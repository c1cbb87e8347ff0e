"""Every error Edgebed raises on purpose, as one tree.

    EdgebedError
    ├── UsageError            what the user wrote cannot be done: file, place, cure
    │   └── PluginError       an unknown plugin name or option
    ├── WireError             bytes that are not a valid message, frame or chunk
    ├── LinkError             the broker cannot be reached or refuses us
    │   └── TransferError     one transfer cannot be finished
    │       └── TransferRefused   the receiver said no; carries its reason
    ├── FleetError            a device or backend cannot be started, limited or stopped
    │   ├── LimitError        a limit could not be set, or does not read back
    │   └── CapacityError     the fleet wants more than the host has
    ├── CalibrationError      the measured limits are not the requested ones
    └── RunError              a run cannot go on
        └── DivergedError     training gave a loss or weight that is not finite

`exit_code` is what the command line returns for the error (docs/cli.md has the table).
"""

from __future__ import annotations


class EdgebedError(Exception):
    """Base of all. `cure` says what the reader can do; it is printed below the message."""

    exit_code = 1

    def __init__(self, message: str, *, cure: str = "") -> None:
        super().__init__(message)
        self.cure = cure


class UsageError(EdgebedError):
    exit_code = 2


class PluginError(UsageError):
    pass


class WireError(EdgebedError):
    pass


class LinkError(EdgebedError):
    exit_code = 4


class TransferError(LinkError):
    pass


class TransferRefused(TransferError):
    pass


class FleetError(EdgebedError):
    exit_code = 3


class LimitError(FleetError):
    pass


class CapacityError(FleetError):
    pass


class CalibrationError(EdgebedError):
    exit_code = 1


class RunError(EdgebedError):
    exit_code = 5


class DivergedError(RunError):
    pass
