"""What the kernel tells of a board in files: frequencies of the cores (cpufreq), temperatures (thermal zones, hwmon),
and the power of a Jetson (its INA3221 sensors, under hwmon with JetPack 5 and later, under iio with JetPack 4)."""

from __future__ import annotations

from pathlib import Path

from edge_agent.sensors.source import number_of, text_of

SLOWS = ("passive", "hot")
"""Types of trip points from which a board slows itself down. `active` starts a fan, `critical` switches off."""

PLAUSIBLE = (-50_000, 200_000)
"""Millidegrees Celsius. A sensor without power or without a driver tells values beyond, such as -274,000."""

INPUTS = ("VDD_IN", "VDD_MUX", "POM_5V_IN", "5V_IN")
"""Rails that feed the module (VDD_IN, 5V_IN, POM_5V_IN) and the carrier board beside it (VDD_MUX, on TX1 and TX2). The
other rails are behind them."""


class Frequencies:
    """/sys/devices/system/cpu/cpuN/cpufreq, in kHz: `scaling_cur_freq`, `scaling_max_freq` (what policy and heat allow
    now) and `cpuinfo_max_freq` (what the core can do). Cores that share one clock share one folder, which is read
    once."""

    def __init__(self, root: Path) -> None:
        cpus = root / "sys/devices/system/cpu"
        named = [cpu / "cpufreq" for cpu in sorted(cpus.glob("cpu[0-9]*"), key=lambda cpu: int(cpu.name[3:]))]
        self._of_core = [folder.resolve() if folder.is_dir() else None for folder in named]
        self._clocks = {folder: _Clock(folder) for folder in self._of_core if folder is not None}

    def read(self) -> tuple[tuple[int | None, ...], float | None]:
        """MHz by core, and the cap: of all cores the lowest frequency that is allowed ÷ the highest possible."""
        now = {folder: clock.mhz() for folder, clock in self._clocks.items()}
        caps = [cap for clock in self._clocks.values() if (cap := clock.cap()) is not None]
        mhz = tuple(None if folder is None else now[folder] for folder in self._of_core)
        return mhz if any(each is not None for each in mhz) else (), min(caps, default=None)

    def governor(self) -> str | None:
        """Of all cores now; several if they differ, each named once."""
        named = {governor for clock in self._clocks.values() if (governor := clock.governor())}
        return " ".join(sorted(named)) or None

    def facts(self) -> dict[str, str]:
        """Governors and highest frequencies, each named once."""
        highest = sorted({clock.highest // 1000 for clock in self._clocks.values() if clock.highest})
        facts = {"governor": self.governor() or "", "max_mhz": " ".join(map(str, highest))}
        return {name: value for name, value in facts.items() if value}


class _Clock:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.highest = number_of(folder / "cpuinfo_max_freq")

    def governor(self) -> str | None:
        return text_of(self._folder / "scaling_governor")

    def mhz(self) -> int | None:
        khz = number_of(self._folder / "scaling_cur_freq")
        return None if khz is None or khz < 0 else khz // 1000

    def cap(self) -> float | None:
        allowed = number_of(self._folder / "scaling_max_freq")
        return None if allowed is None or not self.highest else round(min(1.0, max(0, allowed) / self.highest), 4)


# ---- temperatures ----


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


# ---- power ----


class Ina3221:
    """The rails of all INA3221 of a board.

    Watts are those of the rails that feed the board. Where none of them is measured (AGX Xavier, AGX Orin) they are the
    sum over all rails, which counts a rail twice where one feeds another.
    """

    def __init__(self, root: Path) -> None:
        rails = _of_hwmon(root) or _of_iio(root)
        inputs = [name for name in rails if name in INPUTS]
        self._sum = not inputs
        self._rails = {name: rails[name] for name in inputs or rails}

    @property
    def present(self) -> bool:
        return bool(self._rails)

    def watts(self) -> float | None:
        """None where there is no sensor, or one of the rails has no value now: part of the sum is no power."""
        power = [rail.watts() for rail in self._rails.values()]
        known = [watts for watts in power if watts is not None]
        return sum(known) if power and len(known) == len(power) else None

    def facts(self) -> dict[str, str]:
        names = " + ".join(sorted(self._rails))
        return {"power_rails": f"sum of {names}" if self._sum else names} if names else {}


class _Rail:
    """Two files whose product is the power, in 1e-6 W (mV and mA); or one, in mW."""

    def __init__(self, *files: Path) -> None:
        self._files = files

    def watts(self) -> float | None:
        product = 1.0 if len(self._files) == 2 else 1e3
        for file in self._files:
            value = number_of(file)
            if value is None:
                return None
            product *= value
        return max(0.0, product / 1e6)  # a rail without load may read a little below 0


def _of_hwmon(root: Path) -> dict[str, _Rail]:
    """in1 to in3 with their labels, mV, and curr1 to curr3, mA. in4 to in7 are shunt voltages. A channel that is
    labelled NC is not connected."""
    rails: dict[str, _Rail] = {}
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if text_of(chip / "name") != "ina3221":
            continue
        for channel in "123":
            label = text_of(chip / f"in{channel}_label")
            if label and label != "NC" and text_of(chip / f"in{channel}_enable") != "0":
                rails[label] = _Rail(chip / f"in{channel}_input", chip / f"curr{channel}_input")
    return rails


def _of_iio(root: Path) -> dict[str, _Rail]:
    """/sys/bus/i2c/drivers/ina3221x/BUS-ADDRESS/iio:deviceN: rail_name_0 to _2, in_power0_input to in_power2_input, in
    mW."""
    rails: dict[str, _Rail] = {}
    for chip in sorted((root / "sys/bus/i2c/drivers/ina3221x").glob("*/iio:device*")):
        for channel in "012":
            label = text_of(chip / f"rail_name_{channel}")
            if label and label != "NC":
                rails[label] = _Rail(chip / f"in_power{channel}_input")
    return rails
