"""Power of a Jetson: its INA3221 sensors, under hwmon (JetPack 5 and later) or iio (JetPack 4)."""

from __future__ import annotations

from pathlib import Path

from edge_agent.sensors.source import number_of, text_of

INPUTS = ("VDD_IN", "VDD_MUX", "POM_5V_IN", "5V_IN")
"""Rails that feed the module (VDD_IN, 5V_IN, POM_5V_IN) and the carrier board beside it (VDD_MUX, on TX1 and TX2). The
other rails are behind them."""


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
