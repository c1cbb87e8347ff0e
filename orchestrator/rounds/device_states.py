"""Which device state each device holds, as far as the orchestrator knows."""

from __future__ import annotations

from collections.abc import Callable

from edgebed.methods.base import Method
from edgebed.methods.parts.exchange import Origin
from edgebed.models.staged import KEPT, Weights, with_prefix


class DeviceStates:
    """That of the last task of a device whose work was merged, as long as the same agent runs. `agent`: says which
    agent a device has now."""

    def __init__(self, agent: Callable[[str], str] = lambda device: "") -> None:
        self.agent = agent
        self.held: dict[str, tuple[str, str]] = {}  # by device: the task, and the agent that did it

    def expected(self, device: str) -> str:
        """The task whose state the device has; "" where it has none."""
        task, agent = self.held.get(device, ("", ""))
        return task if agent == self.agent(device) else ""

    def took(self, device: str, task: str, agent: str) -> None:
        """The work of this task was merged. `agent`: that of the device when the task was sent."""
        self.held[device] = task, agent

    def forget(self, device: str) -> None:
        """What the device has is not known any more."""
        self.held.pop(device, None)


def sent_state(method: Method, device: str, expected: str) -> tuple[Origin, Weights]:
    """What a device begins a task with, and the tensors of it that go down: the server's copy where it has none."""
    if not method.keeps_state:
        return "none", {}
    copy = {} if expected else with_prefix(method.state_copy(device), KEPT)
    return "kept" if expected else "restored" if copy else "new", copy
