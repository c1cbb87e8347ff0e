"""Frequencies of the cores (Linux cpufreq)."""

from __future__ import annotations

from pathlib import Path

from edge_agent.sensors.source import number_of, text_of


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
