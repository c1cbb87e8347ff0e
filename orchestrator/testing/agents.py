"""What the agents of played devices keep from round to round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from edgebed.device.kept import KeptStates
from orchestrator.rounds.device_states import DeviceStates


class Agents:
    """The agents of the devices: what each keeps, and what the orchestrator believes of that."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptStates] = {}
        self._starts: Counter[str] = Counter()
        self.states = DeviceStates(self.agent_of)

    def agent_of(self, device: str) -> str:
        return f"{device}/{self._starts[device]}"

    def kept(self, device: str) -> KeptStates:
        return self._kept.setdefault(device, KeptStates())

    def restart(self, devices: Collection[str]) -> None:
        """What they kept is lost."""
        for device in devices:
            self._kept.pop(device, None)
            self._starts[device] += 1
