"""Gathers the facts from which `checkup.py` makes its table. As root it tries links in a temporary namespace."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from edgebed.errors import EdgebedError, FleetError, LimitError
from edgebed.limits.cgroups import version_of
from edgebed.limits.shell import missing_tools, run, which
from edgebed.limits.throttle import ifb_commands
from orchestrator.fleet import leftovers
from orchestrator.fleet.host import cpus as host_cpus
from orchestrator.fleet.host import network_path
from orchestrator.fleet.host.checkup import Engine, HostFacts
from orchestrator.fleet.host.cores import kernel_hz, usable_cores
from orchestrator.fleet.network import links, netns
from orchestrator.fleet.network.netlink import DEVICE_END
from orchestrator.fleet.network.subnets import LOCAL_POOL, free_subnets, host_networks
from orchestrator.fleet.spec.capacity import Carried
from orchestrator.fleet.spec.profile import Limits

TRIAL = Limits(cpus=0.1, uplink_bit_s=10_000_000, downlink_bit_s=20_000_000, memory_mib=64)
DELAY_MS = 10.0
OPTIONS = {"tbf": "CONFIG_NET_SCH_TBF", "netem": "CONFIG_NET_SCH_NETEM", "ifb": "CONFIG_IFB"}


def gather(runs: Path) -> HostFacts:
    """All facts about this host. `runs` is the folder for run folders."""
    standing = host_cpus.standing()
    root, tools = os.geteuid() == 0, tuple(missing_tools("ip", "tc", "nsenter"))
    tried = root and not tools
    found = try_links() if tried else look_up(_kernel_config())
    return HostFacts(
        kernel=f"{platform.system()} {platform.release()}",
        hz=kernel_hz(),
        root=root,
        systemd=Path("/run/systemd/system").is_dir(),
        cgroup=_cgroup_version(),
        missing_tools=tools,
        tbf=found.get("tbf", ""),
        netem=found.get("netem", ""),
        ifb=found.get("ifb", ""),
        link=found.get("link", ""),
        how="tried" if tried else "looked up" if found else "not known",
        engine=_engine(),
        apparmor=_apparmor(),
        mosquitto=_mosquitto(),
        embedded=importlib.util.find_spec("amqtt") is not None,
        cores=usable_cores(),
        cores_there=os.cpu_count() or 1,
        memory_mib=psutil.virtual_memory().available // 2**20,
        disk_mib=_free_mib(runs),
        clocksource=_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        leftovers=tuple(f"{left.kind} {left.name}" for left in leftovers.find_leftovers()),
        fleets=tuple(map(str, standing)),
        taken_cpus=host_cpus.taken_cpus(standing),
        carried=_carried(tried),
    )


def _carried(may_try: bool) -> Carried | None:
    """What the network path carries, as measured earlier on this boot or, where links can be made, now."""
    try:
        return network_path.known() or (network_path.measure() if may_try else None)
    except (EdgebedError, OSError):
        return None  # the rows about links say why


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def _cgroup_version() -> int | None:
    try:
        return version_of()
    except LimitError:
        return None


def _free_mib(folder: Path) -> int:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free // 2**20


def _apparmor() -> str:
    if _text("/sys/module/apparmor/parameters/enabled") != "Y":
        return ""
    return "on" if which("apparmor_parser") else "on, without its parser"


def _mosquitto() -> str:
    program = which("mosquitto")
    if program is None:
        return ""
    said = subprocess.run([program, "-h"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    return said.split("\n")[0].removeprefix("mosquitto version ").strip() or "of an unknown version"


# ---- the kernel's queues ---------------------------------------------------------------------------------------------


def try_links() -> dict[str, str]:
    """Why tbf, netem, ifb and a shaped link do not work here, by name; an empty text means that it works. Removes
    everything that it made."""
    try:
        wire = netns.Wire(
            f"edgebed-doctor-{os.getpid()}",
            f"ebd{os.getpid()}",
            next(free_subnets(LOCAL_POOL, 30, host_networks())),
        )
        netns.make(wire)
    except EdgebedError as error:
        return dict.fromkeys(("link", "tbf", "netem", "ifb"), f"no link could be made: {error}")
    try:
        return dict(_tries(wire))
    finally:
        netns.remove(wire.netns)


def _tries(wire: netns.Wire) -> Iterator[tuple[str, str]]:
    try:
        netns.shape(wire, TRIAL)
        rates = [shaped.rate_bit_s for shaped in netns.read(wire)]
        wanted = [TRIAL.uplink_bit_s, TRIAL.downlink_bit_s]
        yield "tbf", ""
        yield "link", "" if rates == wanted else f"asked for {wanted} bit/s up and down, the kernel holds {rates}"
    except LimitError as error:
        yield "tbf", brief(error)
        yield "link", brief(error)
    try:
        delayed = Limits(TRIAL.cpus, TRIAL.uplink_bit_s, TRIAL.downlink_bit_s, TRIAL.memory_mib, DELAY_MS)
        netns.shape(wire, delayed)
        yield "netem", ""
    except LimitError as error:
        yield "netem", brief(error)
    try:
        for command in ifb_commands(DEVICE_END, links.IFB):
            run(["nsenter", f"--net={wire.path}", which(command[0]) or command[0], *command[1:]])
        yield "ifb", ""
    except LimitError as error:
        yield "ifb", str(error)


def brief(error: LimitError) -> str:
    """The error of `tc`, without the command if the cause is known."""
    return "this kernel does not know it" if "kind is unknown" in str(error) else str(error)


def _kernel_config() -> str:
    """The configuration with which the kernel was built; empty if it is not available."""
    with contextlib.suppress(OSError):
        return gzip.decompress(Path("/proc/config.gz").read_bytes()).decode(errors="replace")
    return _text(f"/boot/config-{platform.release()}")


def look_up(config: str) -> dict[str, str]:
    """The same as `try_links`, from the kernel's configuration; empty if there is no configuration."""
    lines = set(config.splitlines())
    if not lines:
        return {}
    return {
        name: "" if {f"{option}=y", f"{option}=m"} & lines else f"the kernel was built without {option}"
        for name, option in OPTIONS.items()
    }


# ---- the engine ------------------------------------------------------------------------------------------------------


def _engine() -> Engine:
    try:
        import docker.errors

        from orchestrator.fleet.engine import connect
    except ImportError:
        return Engine(error="the docker SDK is not installed")
    try:
        with contextlib.closing(connect(leftovers.ENGINE_S)) as client:
            return describe(client.version(), client.info(), links.beside_us(client))
    except (FleetError, docker.errors.DockerException, OSError) as error:
        return Engine(error=str(error))


def describe(version: Mapping[str, Any], info: Mapping[str, Any], beside_us: bool) -> Engine:
    """An Engine, from the output of `docker version` and `docker info`."""
    parts = {part.get("Name"): part.get("Version", "") for part in version.get("Components") or []}
    return Engine(
        version=str(version.get("Version", "")),
        runc=str(parts.get("runc", "")),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        cgroup_version=str(info.get("CgroupVersion", "")),
        beside_us=beside_us,
    )
