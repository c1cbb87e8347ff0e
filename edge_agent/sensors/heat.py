"""Temperatures (Linux thermal zones and hwmon)."""

from __future__ import annotations

from pathlib import Path

from edge_agent.sensors.source import number_of, text_of

SLOWS = ("passive", "hot")
"""Types of trip points from which a board slows itself down. `active` starts a fan, `critical` switches off."""

PLAUSIBLE = (-50_000, 200_000)
"""Millidegrees Celsius. A sensor without power or without a driver tells values beyond, such as -274,000."""


class Temperatures:
    """/sys/class/thermal/thermal_zone*/temp and /sys/class/hwmon/hwmon*/temp*_input, in millidegrees Celsius. A board
    usually has its zones in both; the hottest counts, so reading twice changes nothing, but costs: hwmon is read only
    where there are no zones."""

    def __init__(self, root: Path) -> None:
        zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
        self._sensors: list[tuple[Path, int | None]] = [(zone / "temp", _slows_at(zone)) for zone in zones]
        if not self._sensors:
            inputs = sorted((root / "sys/class/hwmon").glob("hwmon*/temp*_input"))
            self._sensors = [(path, None) for path in inputs]

    def read(self) -> tuple[float | None, bool | None]:
        """Degrees Celsius of the hottest sensor, and whether some sensor is so hot that its board slows itself down;
        None where no sensor tells from when on it does."""
        hottest: int | None = None
        hot: bool | None = None
        for path, trip in self._sensors:
            value = number_of(path)
            if value is None or not PLAUSIBLE[0] < value < PLAUSIBLE[1]:
                continue
            hottest = value if hottest is None else max(hottest, value)
            if trip is not None:
                hot = bool(hot) or value >= trip
        return None if hottest is None else hottest / 1000, hot

    def facts(self) -> dict[str, str]:
        trips = [trip for _, trip in self._sensors if trip is not None]
        return {"slows_at_celsius": f"{min(trips) / 1000:g}"} if trips else {}


def _slows_at(zone: Path) -> int | None:
    """The lowest trip point of a zone from which it slows the board down, in millidegrees; None where it has none.
    One of 0 or less is switched off."""
    temps = []
    for kind in zone.glob("trip_point_*_type"):
        if text_of(kind) in SLOWS:
            temps.append(number_of(kind.with_name(kind.name.replace("_type", "_temp"))))
    return min((temp for temp in temps if temp is not None and temp > 0), default=None)
