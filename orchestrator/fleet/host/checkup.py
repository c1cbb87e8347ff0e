"""Tells what a host can do, from the facts that `facts.py` gathers. Every problem comes with a hint. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from edgebed.errors import CapacityError
from edgebed.limits.cpu_quota import LEAST_CPUS
from orchestrator.fleet.spec.capacity import Carried, dilation_of
from orchestrator.fleet.spec.profile import FleetSpec, Limits


class Engine(msgspec.Struct, frozen=True):
    """A Docker engine. If none answers, `error` says why and the other fields are empty."""

    error: str = ""
    version: str = ""
    runc: str = ""
    cgroup_driver: str = ""
    cgroup_version: str = ""
    beside_us: bool = True  # its containers are processes of this host


class HostFacts(msgspec.Struct, frozen=True):
    """What was found on a host. `tbf`, `netem`, `ifb` and `link` are empty if they work, otherwise they say why not."""

    kernel: str
    hz: int | None
    root: bool
    systemd: bool
    cgroup: int | None  # version; None: no cgroups
    missing_tools: tuple[str, ...]
    tbf: str
    netem: str
    ifb: str
    link: str
    how: str  # "tried" (in a temporary namespace), "looked up" (in the kernel's configuration) or "not known"
    engine: Engine
    apparmor: str  # "", "on", or "on, without its parser"
    mosquitto: str  # version; "" where there is none
    embedded: bool  # the embedded broker's package is installed
    cores: float  # that this process may use
    cores_there: int
    memory_mib: int  # available
    disk_mib: int  # free where runs are written
    clocksource: str
    leftovers: tuple[str, ...] = ()
    fleets: tuple[str, ...] = ()  # that stand on this host
    taken_cpus: float = 0.0  # by them
    carried: Carried | None = None  # by the network path; None: not measured


class HostNeeds(msgspec.Struct, frozen=True):
    """What a backend needs of this host."""

    kernel: bool = False  # this process limits the agents: root, cgroups, and links made with ip, tc and nsenter
    engine: bool = False  # a Docker engine
    swarm: bool = False  # the engine manages a Swarm, and helpers on its nodes make the links
    software: bool = False  # the agents limit themselves, which gives no latency and no limit of memory


class Check(msgspec.Struct, frozen=True):
    """One row of the table. `lack` is empty if all is well. `needed`: the backend does not work without it."""

    name: str
    found: str
    lack: str = ""
    hint: str = ""
    needed: bool = True


EMBEDDED_HOLDS = 400
"""Largest number of agents measured with the embedded broker (`python -m benchmarks embedded_join`)."""
LITTLE_MEMORY_MIB, LITTLE_DISK_MIB = 1024, 2048
FINE_HZ = 250


def check(facts: HostFacts, needs: HostNeeds, devices: int = 0) -> list[Check]:
    """All rows for a backend and a fleet of `devices` devices. Those of a Swarm are in `swarm.checkup`."""
    rows = [*_kernel(facts, needs), *_links(facts, needs), _engine(facts, needs.engine)]
    return [*rows, _broker(facts, devices), *_resources(facts)]


def fit(rows: list[Check]) -> bool:
    """Whether everything that the backend needs is there."""
    return not any(row.lack and row.needed for row in rows)


# ---- the host --------------------------------------------------------------------------------------------------------


def _kernel(facts: HostFacts, needs: HostNeeds) -> Iterator[Check]:
    coarse = facts.hz is not None and facts.hz < FINE_HZ
    yield Check("kernel", facts.kernel)
    ticks = "unknown" if facts.hz is None else f"{facts.hz} Hz"
    lack = "a device may exceed a small quota by one tick"
    hint = "use a kernel with CONFIG_HZ=250 or more"
    yield _judged(coarse, "clock ticks", ticks, lack, hint, needed=False)
    jumpy = facts.clocksource in ("jiffies", "refined-jiffies")
    lack = "its resolution is too coarse to time phases"
    hint = "dmesg says why the kernel rejected tsc or kvm-clock"
    yield _judged(jumpy, "clock", facts.clocksource or "unknown", lack, hint)
    lack = "kernel limits need root; without it the agents would throttle themselves"
    hint = "run as root, or choose --backend software"
    yield _judged(not facts.root, "root", "yes" if facts.root else "no", lack, hint, needs.kernel)
    version = f"version {facts.cgroup}{' under systemd' if facts.systemd else ''}" if facts.cgroup else "none"
    hint = "mount them (/sys/fs/cgroup), or choose --backend software"
    yield _judged(not facts.cgroup, "cgroups", version, "no CPU quota can be set", hint, needs.kernel)


def _judged(bad: bool, name: str, found: str, lack: str, hint: str, needed: bool = True) -> Check:
    """A row that has the lack and the hint only where something is `bad`."""
    return Check(name, found, lack if bad else "", hint if bad else "", needed)


def _links(facts: HostFacts, needs: HostNeeds) -> Iterator[Check]:
    tools = ", ".join(facts.missing_tools)
    found = f"no {tools}" if tools else "ip, tc, nsenter"
    hint = "apt-get install iproute2 util-linux"
    yield _judged(bool(tools), "tools", found, f"{tools} not installed", hint, needs.kernel)
    held_here = needs.kernel or needs.swarm or (needs.engine and facts.engine.beside_us)
    yield _module("rate (tbf)", facts.tbf, facts.how, "a kernel with CONFIG_NET_SCH_TBF (modprobe sch_tbf)", held_here)
    held = _LINKS[facts.how == "tried", bool(facts.link)]
    hint = "a kernel with veth and network namespaces (modprobe veth)"
    yield _judged(bool(facts.link), "links", held, facts.link, hint, needs.kernel)
    hint = "modprobe sch_netem; or remove latency_ms from the profiles"
    yield _module("latency (netem)", facts.netem, facts.how, hint, False)
    by_helper = needs.swarm or (needs.engine and not (facts.root and facts.engine.beside_us))
    hint = "modprobe ifb, or run as root on the engine's host"
    yield _module("helper's link (ifb)", facts.ifb, facts.how, hint, by_helper)


def _module(name: str, why_not: str, how: str, hint: str, needed: bool) -> Check:
    found = how if how == "not known" else f"no ({how})" if why_not else f"yes ({how})"
    return _judged(bool(why_not), name, found, why_not, hint, needed)


_LINKS = {
    (True, False): "held in both directions (tried)",
    (True, True): "not held (tried)",
    (False, False): "not tried: needs root and iproute2",
}


def _engine(facts: HostFacts, needed: bool) -> Check:
    engine = facts.engine
    if engine.error:
        return Check("docker", "none", engine.error, "start Docker, set DOCKER_HOST, or choose --backend local", needed)
    found = f"{engine.version}, runc {engine.runc or 'unknown'}, cgroup driver {engine.cgroup_driver}, "
    found += f"cgroups of version {engine.cgroup_version}"
    if facts.apparmor == "on, without its parser":
        lack = "the kernel has AppArmor but its programs are missing: no container would start"
        return Check("docker", found, lack, "apt-get install apparmor, then restart Docker", needed)
    if engine.cgroup_driver == "systemd" and not (facts.root and engine.beside_us and engine.cgroup_version == "2"):
        return Check("docker", found, ROUNDS, ROUNDS_HINT, needed=False)
    return Check("docker", found, needed=needed)


ROUNDS = "systemd may round CPU quotas to 0.01 CPU; Edgebed refuses a quota that was rounded"
ROUNDS_HINT = "run as root on the engine's host, or set native.cgroupdriver=cgroupfs in /etc/docker/daemon.json"


def _broker(facts: HostFacts, devices: int) -> Check:
    if facts.mosquitto:
        return Check("broker", f"Mosquitto {facts.mosquitto}")
    hint = "apt-get install mosquitto"
    if not facts.embedded:
        return Check(
            "broker",
            "none",
            "agents and orchestrator cannot talk",
            f"{hint}, or pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'",
        )
    if devices > EMBEDDED_HOLDS:
        return Check("broker", "embedded", f"works for up to {EMBEDDED_HOLDS} devices; the fleet has {devices}", hint)
    return Check("broker", f"embedded (for up to {EMBEDDED_HOLDS} devices)", needed=False)


def _resources(facts: HostFacts) -> Iterator[Check]:
    fewer = f" of {facts.cores_there}" if facts.cores < facts.cores_there else ""
    yield Check("cores", f"{facts.cores:g}{fewer}")
    left = max(0.0, facts.cores - facts.taken_cpus)
    fleets = "; ".join(facts.fleets)
    hint = "end them; else a new fleet gets a larger dilation, or is refused"
    yield _judged(bool(fleets), "other fleets", fleets or "none", f"they leave {left:.3g} CPUs", hint, needed=False)
    yield Check("network path", f"carries {facts.carried}" if facts.carried else "not measured", needed=False)
    little = facts.memory_mib < LITTLE_MEMORY_MIB
    lack = "too little for orchestrator and agents"
    hint = "end other programs, or use a larger host"
    yield _judged(little, "memory", f"{facts.memory_mib} MiB available", lack, hint)
    full = facts.disk_mib < LITTLE_DISK_MIB
    lack = "too little for records, checkpoints and shards"
    hint = "free some space, or set EDGEBED_RUNS to another disk"
    yield _judged(full, "disk", f"{facts.disk_mib} MiB free", lack, hint, needed=False)
    found = ", ".join(facts.leftovers)
    lack = f"{len(facts.leftovers)} of killed runs"
    hint = "the next start of any fleet removes them"
    yield _judged(bool(found), "leftovers", found or "none", lack, hint, needed=False)


# ---- a fleet on it ---------------------------------------------------------------------------------------------------


class DeviceFit(msgspec.Struct, frozen=True):
    """A device under the dilation of the fleet. `lack` is empty if the host can hold it."""

    name: str
    limits: Limits  # divided by the dilation
    lack: str = ""


class FleetFit(msgspec.Struct, frozen=True):
    """Whether the fleet fits. `dilation` is None if no factor makes it fit; then `lack` says why."""

    dilation: float | None
    devices: tuple[DeviceFit, ...]
    lack: str = ""
    hint: str = ""
    warning: str = ""

    @property
    def fits(self) -> bool:
        return not self.lack and not any(device.lack for device in self.devices)


def fit_fleet(spec: FleetSpec, facts: HostFacts, needs: HostNeeds) -> FleetFit:
    """Which devices of a fleet this host can hold, and the dilation they would get."""
    lack = hint = ""
    try:
        dilation: float | None = dilation_of(spec, "auto", facts.cores - facts.taken_cpus, facts.carried)
    except CapacityError as error:
        dilation, lack, hint = None, str(error), error.hint
    devices = [(device.name, device.profile.limits.dilated(dilation or 1.0)) for device in spec.devices]
    return FleetFit(
        dilation,
        tuple(DeviceFit(name, limits, _why_not(limits, facts, needs)) for name, limits in devices),
        lack,
        hint,
        _crowded([limits for _, limits in devices if not limits.unlimited], facts, needs),
    )


def _crowded(limits: Sequence[Limits], facts: HostFacts, needs: HostNeeds) -> str:
    """A warning if the devices would not fit when all use their whole memory. They seldom do."""
    total = sum(each.memory_mib for each in limits)
    if needs.software or total <= facts.memory_mib:
        return ""
    return f"the devices together may use {total} MiB, but {facts.memory_mib} MiB are available"


def _why_not(limits: Limits, facts: HostFacts, needs: HostNeeds) -> str:
    if limits.unlimited:
        return ""
    if limits.latency_ms and needs.software:
        return "the software throttle cannot add latency"
    if limits.latency_ms and facts.netem:
        return f"latency does not work here: {facts.netem}"
    if limits.cpus < LEAST_CPUS:
        return f"{limits.cpus:.4f} CPUs are below the smallest quota, {LEAST_CPUS:g}"
    if needs.engine and _would_round(limits, facts):
        return f"systemd may round its {limits.cpus:.4f} CPUs"
    if not needs.software and limits.memory_mib > facts.memory_mib:
        return f"it may use {limits.memory_mib} MiB of memory, but {facts.memory_mib} MiB are available"
    return ""


def _would_round(limits: Limits, facts: HostFacts) -> bool:
    """Whether systemd manages the quota and would round it, because it is not a multiple of 0.01 CPU."""
    lack = _engine(facts, True).lack
    return lack == ROUNDS and round(limits.cpus * 1e6) % 10_000 != 0
