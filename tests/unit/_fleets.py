"""Fleets that never stand."""

from __future__ import annotations

from pathlib import Path

from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec


def fleet(devices: int) -> FleetSpec:
    profile = ProfileSpec("p", Limits(1.0, 10**7, 10**7, 512))
    return FleetSpec("f", "local", 0.5, tuple(DeviceSpec(f"d{i}", profile) for i in range(devices)), Path("f.yaml"))
