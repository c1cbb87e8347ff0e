"""What the sensors of a board read at one moment. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edgebed.errors import printable
from edgebed.wire.texts import take_over

Celsius = Annotated[float, msgspec.Meta(ge=-100, le=300)]
Watts = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Mhz = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
Cores = Annotated[tuple[Mhz | None, ...], msgspec.Meta(max_length=4096)]
MOST_SETTING = 100
Setting = Annotated[str, msgspec.Meta(max_length=MOST_SETTING)]
Bits = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class BoardReading(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One reading. None: not known, because there is no such sensor or tool, or it was not asked this time."""

    at_ns: int  # on the device's monotonic clock
    mhz: Cores = ()  # current frequency by core; empty: not known for any
    # of all cores the lowest frequency that is allowed now ÷ the highest that the core can do; 1: no cap
    cap: Share | None = None
    celsius: Celsius | None = None  # of the hottest sensor
    hot: bool | None = None  # some sensor is at or above the temperature from which its board slows itself down
    # the bits of the Raspberry Pi's `get_throttled`: 0 to 3 for now, 16 to 19 for since boot
    throttled: Bits | None = None
    watts: Watts | None = None  # power of what the board's sensors cover (host fact `power_rails`)
    # `governor`, `power_mode`: where it is no more what it was when the agent started; else None
    governor: Setting | None = None
    power_mode: Setting | None = None

    def __post_init__(self) -> None:
        take_over(self, governor=_shown(self.governor), power_mode=_shown(self.power_mode))


def _shown(setting: str | None) -> str | None:
    return None if setting is None else printable(setting)


Readings = Annotated[tuple[BoardReading, ...], msgspec.Meta(max_length=120)]
"""Of one heartbeat."""
