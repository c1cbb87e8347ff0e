"""What the firmware of a Raspberry Pi tells (`vcgencmd`)."""

from __future__ import annotations

import re

from edge_agent.sensors.source import RunCommand

RAIL = re.compile(r"^\s*(\w+)_([AV]) (?:current|volt)\(\d+\)=(\d+(?:\.\d+)?)[AV]\s*$")


def throttled(run: RunCommand) -> int | None:
    """The bits of `vcgencmd get_throttled` (`throttled=0x50005`). Now: 0 voltage too low, 1 frequency capped, 2
    throttled, 3 soft limit of the temperature. 16 to 19: the same, at some time since boot."""
    name, _, bits = (run(("vcgencmd", "get_throttled")) or "").strip().partition("=")
    try:
        return int(bits, 16) if name == "throttled" else None
    except ValueError:
        return None


def rails(text: str) -> dict[str, float]:
    """Watts by rail from the output of `vcgencmd pmic_read_adc` of a Raspberry Pi 5: lines such as
    `VDD_CORE_A current(7)=1.11625000A` and `VDD_CORE_V volt(15)=0.74944980V`. Rails that have a voltage only (EXT5V,
    BATT) have no watts."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        match = RAIL.match(line)
        if match is not None:
            found[match[1], match[2]] = float(match[3])
    return {
        name: found[name, "A"] * volt for (name, kind), volt in found.items() if kind == "V" and (name, "A") in found
    }


def pmic_watts(run: RunCommand) -> float | None:
    """Power of a Raspberry Pi 5: the sum over the rails of its power management chip. The 5 V branch (USB, what hangs
    on the pins, the fan) is not measured."""
    power = rails(run(("vcgencmd", "pmic_read_adc")) or "")
    return sum(power.values()) if power else None


def pmic_facts(run: RunCommand) -> dict[str, str]:
    power = rails(run(("vcgencmd", "pmic_read_adc")) or "")
    return {"power_rails": f"{len(power)} rails of the PMIC, without the 5 V branch"} if power else {}
