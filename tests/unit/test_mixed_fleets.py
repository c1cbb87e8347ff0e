"""Fleets of two backends: who holds the limits of which device, and where the far end of its link probes is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from edgebed.limits.spec import Limits
from edgebed.wire.messages import Assignment, Configure
from orchestrator.calibration.calibrate import far_ends
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.many_hosts import FarEnds, NodeReading, ProbePeer, TlsListener
from orchestrator.fleet.mixed import MixedBackend, backend_of, many_hosts
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, ProfileSpec, unlimited
from orchestrator.fleet.spec.speed import AFTERWARDS, UNMEASURED, Need, Speed
from orchestrator.references.task_costs import TaskCosts
from orchestrator.runs.speed import kept_speed
from tests.component._fleet import NO_BROKER, NoBackend
from tests.memory_link import MemoryHub, MemoryLink

SMALL = ProfileSpec("small", Limits(0.5, 10**7, 10**7, 512))
FOUR = ProfileSpec("four", Limits(4.0, 10**7, 10**7, 512, named_threads=3))


class Configured:
    """A membership that notes the settings which agents get."""

    def __init__(self) -> None:
        self.settings: dict[str, Configure] = {}

    async def measure_clock(self, device: str) -> None: ...

    async def configure(self, device: str, settings: Configure) -> None:
        self.settings[device] = settings


async def test_a_limited_board_beside_devices_of_software_is_held_by_its_own_kernel_alone() -> None:
    devices = (
        DeviceSpec("cpu", SMALL),
        DeviceSpec("limited", SMALL, "b1"),
        DeviceSpec("free", unlimited(SMALL), "b2"),
    )
    spec = FleetSpec("f", "software", 0.0, devices, Path("f.yaml"))
    backend = MixedBackend(NoBackend(Enforcement.SOFTWARE), NoBackend(Enforcement.KERNEL), ["limited", "free"])
    links = [MemoryLink(MemoryHub()) for _ in range(2)]
    controller = FleetController(
        "f1", spec, backend, NO_BROKER, *links, lambda name: SMALL, dilation=2.0, heartbeat_s=1.0
    )
    controller.membership = configured = Configured()  # type: ignore[assignment]
    for name in controller.names:
        await controller.put_on_limits(name, "start")
    assert {name: each.software for name, each in configured.settings.items()} == {
        "cpu": True,
        "limited": False,
        "free": False,
    }
    assert configured.settings["limited"].cpus == 0.25
    assert controller.enforcement is Enforcement.SOFTWARE


async def test_measured_ceilings_and_dilation_replace_those_of_the_start() -> None:
    devices = (DeviceSpec("a", SMALL), DeviceSpec("b", FOUR))
    spec = FleetSpec("f", "local", 0.0, devices, Path("f.yaml"), speed=Speed("x86-avx512", demand=1.0, index=0.8))
    links = [MemoryLink(MemoryHub()) for _ in range(2)]
    controller = FleetController(
        "f1", spec, NoBackend(Enforcement.KERNEL), NO_BROKER, *links, lambda name: SMALL, dilation=2.0, heartbeat_s=1.0
    )
    controller.membership = configured = Configured()  # type: ignore[assignment]
    for name in controller.names:
        await controller.put_on_limits(name, "start")
    assert controller.limits["a"].cpus == pytest.approx(0.25 * UNMEASURED)
    assert {name: each.threads for name, each in configured.settings.items()} == {"a": 1, "b": 3}

    needs = {"a": Need(0.5, 0.8), "b": Need(1.0, 1.2)}
    measured = msgspec.structs.replace(spec, speed=msgspec.structs.replace(spec.speed, needs=needs, demand=1.1))
    await controller.adopt(measured, 5.0, "CPUs")
    assert controller.cpus == {"a": pytest.approx(0.1), "b": pytest.approx(0.8)}
    told = configured.settings
    assert {name: (each.cpus, each.ceiling) for name, each in told.items()} == {
        "a": (pytest.approx(0.1), pytest.approx(0.1 * AFTERWARDS * 0.8)),
        "b": (pytest.approx(0.8), pytest.approx(0.8 * AFTERWARDS * 1.2)),
    }
    assert {name: each.threads for name, each in told.items()} == {"a": 1, "b": 3}
    assert told["a"].heartbeat_s == pytest.approx(2.5)
    assert (controller.dilation, controller.dilation_by) == (5.0, "CPUs")


async def test_a_task_costs_what_the_reference_takes_at_the_devices_own_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(TaskCosts, "of", lambda self, given: seen.append(given.cpus) or {})
    spec = FleetSpec("f", "local", 0.0, (DeviceSpec("a", SMALL), DeviceSpec("b", FOUR)), Path("f.yaml"))
    links = [MemoryLink(MemoryHub()) for _ in range(2)]

    def costs(speed: Speed) -> None:
        fleet = msgspec.structs.replace(spec, speed=speed)
        controller = FleetController(
            "f1", fleet, NoBackend(Enforcement.KERNEL), NO_BROKER, *links, lambda name: SMALL, dilation=2.0,
            heartbeat_s=1.0,
        )  # fmt: skip
        of = kept_speed(controller.spec, controller.cpus).costs
        for name in ("a", "b"):
            assert of(name, Assignment(name, {}, 10, (1, 8, 8), 1, "output", cpus=9.0)) == {}

    costs(Speed())
    assert seen == []
    costs(Speed("x86-avx512", demand=3.0))
    assert seen == pytest.approx([0.25, 2.0])


class OnNodes(NoBackend):
    """A backend whose link probes end elsewhere."""

    def __init__(self) -> None:
        super().__init__(Enforcement.DOCKER)
        self.end = NodesEnds("d1", "d2")

    def dilation(self) -> tuple[float, str]:
        return 1.0, ""

    def nodes(self) -> list[NodeReading]:
        return []

    def tls_listener(self) -> TlsListener:
        return TlsListener("", b"", b"", b"")

    def far_ends(self) -> FarEnds:
        return self.end


class NodesEnds(AbstractAsyncContextManager[Mapping[str, ProbePeer]]):
    def __init__(self, *devices: str, why: str = "") -> None:
        self.devices, self.why, self.events = devices, why, list[str]()

    async def __aenter__(self) -> Mapping[str, ProbePeer]:
        self.events.append("opened")
        if self.why:
            raise OSError(self.why)
        return {device: f"node of {device}" for device in self.devices}  # type: ignore[misc]

    async def __aexit__(self, *_: object) -> None:
        self.events.append("closed")


async def test_link_probes_of_each_device_end_where_its_backend_has_them() -> None:
    nodes, boards = OnNodes(), NoBackend(Enforcement.UNLIMITED)
    backend = MixedBackend(nodes, boards, ["board"])
    assert (backend_of(backend, "d1"), backend_of(backend, "board"), backend_of(nodes, "d1")) == (nodes, boards, nodes)
    assert (many_hosts(backend), many_hosts(nodes), many_hosts(boards)) == (nodes, nodes, None)
    async with far_ends(backend, ["d1", "board", "d2"]) as ends:
        assert (ends["d1"], ends["d2"]) == ("node of d1", "node of d2")
        assert ends["board"].port("127.0.0.1") > 0
        assert nodes.end.events == ["opened"]
    assert nodes.end.events == ["opened", "closed"]


async def test_a_far_end_that_cannot_listen_closes_the_others() -> None:
    first, second = OnNodes(), OnNodes()
    second.end = NodesEnds(why="no route")
    with pytest.raises(OSError, match="no route"):
        async with far_ends(MixedBackend(first, second, ["board"]), ["d1", "board"]):
            pass
    assert first.end.events == ["opened", "closed"]
