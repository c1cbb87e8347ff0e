"""The local backend: agents are processes of this host. As root, each agent has its own network namespace, cgroup and
unprivileged user. Without root, the agents enforce the limits themselves (software throttle)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from edgebed.errors import FleetError, LimitError, WireError
from edgebed.limits.cgroups import Cgroup
from edgebed.limits.shell import last_line
from edgebed.limits.spec import NONE_SET
from edgebed.limits.throttle import confirm, held_by_kernel
from edgebed.link.connection import Address
from edgebed.module_process import module_command
from edgebed.timeouts import end_in_time
from edgebed.wire.fork_protocol import Exited, Fork, Forked, Message, Ready, decode, encode
from orchestrator.files.shared_lock import shared_lock
from orchestrator.fleet import leftovers, ownership
from orchestrator.fleet.base import ALONE, INSTRUCTIONS, Enforcement, Held
from orchestrator.fleet.host.checkup import HostNeeds
from orchestrator.fleet.local.processes import kernel_obstacle, may_mount, set_stopped, use_of
from orchestrator.fleet.local.users import Users, closed_to_others
from orchestrator.fleet.making import Making
from orchestrator.fleet.named import NamedBackend, Opening
from orchestrator.fleet.network import netns
from orchestrator.fleet.network.subnets import LOCAL_POOL, free_subnets, host_networks
from orchestrator.fleet.rival import Rivals
from orchestrator.fleet.spec.profile import FleetSpec, Limits

START_TIMEOUT_S = LOCK_S = 120.0
FORK_SERVER_END_S = 5.0
PLACES = ("PATH", "HOME", "TMPDIR", "LANG", "LC_", "TZ", "PYTHON", "LD_")
KNOWN_TO_AGENTS = (*PLACES, "OMP_", "MKL_", "TORCH", *INSTRUCTIONS, ALONE)
"""Prefixes of the environment variables that agents receive. Other variables may hold secrets of the user."""


class LocalBackend(NamedBackend):
    """One fleet of processes.

    Args:
        spec: the devices.
        fleet_id: unique on this host.
        kernel: True for namespaces, tc and cgroups (needs root); False for the software throttle.
        plugins: folder of the plug-ins that the agents use.

    Attributes:
        forks: what each device's agent was started with.
        pids: the agents' processes, as the host numbers them, by device.
    """

    name = "local"
    needs = HostNeeds(kernel=True)

    @classmethod
    def open(cls, opening: Opening) -> LocalBackend:
        """With the software throttle where the kernel cannot hold the limits."""
        if why := "software was asked for" if cls.needs.software else kernel_obstacle():
            opening.notify(f"limits are held by the agents themselves (software): {why}")
            if delayed := [each.name for each in opening.spec.devices if each.profile.limits.latency_ms]:
                raise FleetError(
                    f"{delayed[0]}: the software throttle cannot add latency",
                    hint="remove latency_ms from the profile, or run as root",
                )
        return cls(opening.spec, opening.fleet_id, kernel=not why, plugins=opening.plugins)

    def __init__(self, spec: FleetSpec, fleet_id: str, *, kernel: bool, plugins: Path | None = None) -> None:
        super().__init__()
        self._plugins = plugins
        self.enforcement = Enforcement.KERNEL if kernel else Enforcement.SOFTWARE
        self._kernel, self._fleet_id = kernel, fleet_id
        self._names = [device.name for device in spec.devices]
        self._folder = leftovers.STATE / fleet_id  # of the agents' logs; another folder without root
        self._users: Users | None = None  # only as root
        self._owned: ownership.OwnedFolder | ownership.Lock | None = None
        self._wires: dict[str, netns.Wire] = {}
        self._cgroups: dict[str, Cgroup] = {}
        self._limits: dict[str, Limits] = {}
        self.forks: dict[str, Fork] = {}
        self.pids: dict[str, int] = {}
        self._fork_server: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._starting, self._making = asyncio.Lock(), Making()
        self._ready = False
        self._ending: set[str] = set()
        self._rivals: dict[str, Rivals] = {}

    # ---- life ----

    async def prepare(self) -> list[str]:
        if not self._kernel:
            await asyncio.to_thread(leftovers.collect)
            self._owned = folder = ownership.OwnedFolder("edgebed-agents-")
            self._folder = folder.path
            self._open_folder()
            return ["127.0.0.1"]
        await self._making.run(self._make)
        return [wire.host_address for wire in self._wires.values()]

    def _make(self) -> None:
        leftovers.STATE.mkdir(parents=True, exist_ok=True)
        # Two fleets that look for subnets at the same time would choose the same ones.
        with shared_lock(leftovers.STATE / "lock", LOCK_S, self._making.go_on):
            leftovers.collect()
            self._folder.mkdir(parents=True)
            self._owned = ownership.hold(self._folder)
            self._open_folder()
            subnets = free_subnets(LOCAL_POOL, 30, host_networks())
            for index, name in enumerate(self._names):
                self._making.go_on()
                wire = netns.Wire(*netns.wire_names(self._fleet_id, index), next(subnets))
                netns.make(wire)
                self._wires[name] = wire
                self._cgroups[name] = Cgroup.named(f"{self._fleet_id}-{index}")
                self._cgroups[name].make()

    def _open_folder(self) -> None:
        """Make the folder private: other users must not read the agents' logs."""
        self._folder.chmod(0o700)
        (self._folder / "root").mkdir()
        if os.geteuid() == 0:
            if not may_mount() and (closed := closed_to_others([sys.prefix, sys.base_prefix, __file__])):
                raise FleetError(
                    f"agents run as users of their own, which may not enter {closed}, where Python or Edgebed is "
                    "installed",
                    hint="install both where every user may read them, or give this container CAP_SYS_ADMIN",
                )
            self._users = Users(len(self._names), leftovers.STATE)

    def host_of(self, device: str) -> str:
        return self._wires[device].host_address if self._kernel else "127.0.0.1"

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        await self._start_fork_server()
        for name in self._names:
            self.forks[name] = self._fork_of(name, access[name], shards[name])
            self._send(self.forks[name])
        await self._until(lambda: set(self.pids) == set(self._names), "the agents were not forked")

    def _fork_of(self, name: str, access: Address, shard: Path) -> Fork:
        return Fork(
            device=name,
            argv=("--fleet", self._fleet_id, "--device", name),
            broker=access.url,
            log=str(self._log(name)),
            shard=str(shard.resolve()),
            uid=self._give(name, shard),
            root=str(self._folder / "root") if may_mount() else "",
            netns=str(self._wires[name].path) if self._kernel else "",
            cgroups=tuple(self._cgroups[name].procs_files()) if self._kernel else (),
            plugins=str(self._plugins or ""),
        )

    def _give(self, name: str, shard: Path) -> int:
        """Make the device's user the owner of the shard. Returns the user id; 0 without root, with one user for all."""
        if self._users is None:
            return 0
        uid = self._users.numbers[self._names.index(name)]
        try:
            os.chown(shard, uid, uid)
            shard.chmod(0o400)
        except OSError as error:
            raise FleetError(
                f"the shard of {name}, {shard}, cannot be given to its user {uid}: {error.strerror}",
                hint="set TMPDIR to a folder of a local file system",
            ) from None
        return uid

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    async def restart(self, device: str) -> None:
        await self._end(device)
        async with self._starting:
            if self._writer is None or self._writer.is_closing():
                await self._start_fork_server()
        if self._kernel:
            await self._making.run(self._lift, device)
        self._limits.pop(device, None)
        self._send(self.forks[device])
        await self._until(lambda: device in self.pids, f"{device} was not forked again")

    def _lift(self, device: str) -> None:
        netns.lift(self._wires[device])
        self._cgroups[device].lift()

    async def _close(self) -> None:
        self._ending = set(self._names)
        for rivals in self._rivals.values():
            rivals.end()
        await self._making.end()
        if self._writer is not None:
            self._writer.close()
        if self._fork_server is not None:
            await end_in_time(self._fork_server, FORK_SERVER_END_S)
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._kernel:
            await asyncio.to_thread(leftovers.remove_fleet, self._fleet_id)
        for held in (self._owned, self._users):
            if held is not None:
                await asyncio.to_thread(held.close)

    # ---- limits ----

    async def limit(self, device: str, limits: Limits) -> Held:
        if self._kernel:
            await asyncio.to_thread(self._set, device, limits)
        elif limits.latency_ms:
            raise LimitError(
                f"{device}: the software throttle cannot add latency", hint="remove latency_ms, or run as root"
            )
        self._limits[device] = limits
        return confirm(limits, await self.held(device))

    def _set(self, device: str, limits: Limits) -> None:
        self._cgroups[device].set(limits)
        netns.shape(self._wires[device], limits)

    async def set_rates(self, device: str, limits: Limits) -> tuple[int, int]:
        self._limits[device] = limits
        if not self._kernel:  # the agent is told
            return limits.uplink_bit_s, limits.downlink_bit_s
        return await asyncio.to_thread(netns.set_rates, self._wires[device], limits)

    async def held(self, device: str) -> Held:
        return await asyncio.to_thread(self._read if self._kernel else self._use_alone, device)

    def _read(self, device: str) -> Held:
        wire, cgroup = self._wires[device], self._cgroups[device]
        group = cgroup.read()
        return held_by_kernel(
            device,
            self._limits.get(device, NONE_SET),
            group,
            netns.read(wire),
            netns.counters(wire),
            alive=device in self.pids,
            details={"netns": wire.netns, "cgroup": f"v{cgroup.version}; {group.dump}"},
        )

    def _use_alone(self, device: str) -> Held:
        """The use of an agent that enforces its own limits. The kernel knows none of them."""
        cpu_s, memory = use_of(self.pids.get(device))
        return Held(
            device=device,
            requested=self._limits.get(device, NONE_SET),
            cpus=None,
            uplink_bit_s=None,
            downlink_bit_s=None,
            memory_mib=None,
            cpu_s=cpu_s,
            throttled_s=0.0,
            throttled_periods=0,
            memory_used_mib=memory,
            uplink_bytes=0,
            downlink_bytes=0,
            alive=device in self.pids,
            details={
                "throttle": "software: the agent limits its own CPU time and rates; they are not read back, and memory "
                "is not limited"
            },
            read_back=False,
        )

    # ---- disturbances ----

    async def set_link(self, device: str, up: bool) -> str:
        self._need_kernel("a link can be cut")
        return await asyncio.to_thread(netns.set_link, self._wires[device], up)

    async def set_frozen(self, device: str, frozen: bool) -> str:
        pids = self._cgroups[device].pids() if self._kernel else [self.pids[device]]
        return await asyncio.to_thread(set_stopped, pids, frozen)

    async def set_rival(self, device: str, cpus: float) -> str:
        self._need_kernel("a process can compete inside a device's quota")
        rivals = self._rivals.setdefault(device, Rivals(self._cgroups[device]))
        return await asyncio.to_thread(rivals.want, cpus)

    def _need_kernel(self, what: str) -> None:
        if not self._kernel:
            raise LimitError(f"{what} only where the kernel holds the limits", hint="run as root, or with docker")

    async def stop(self, device: str) -> None:
        with contextlib.suppress(KeyError, ProcessLookupError):
            os.kill(self.pids[device], 9)
        await self._until(lambda: device not in self.pids, f"{device} could not be killed")

    # ---- the fork server ----

    async def _start_fork_server(self) -> None:
        ours, theirs = socket.socketpair()
        log = (self._folder / "fork-server.log").open("ab")
        # No accelerator and no BLAS threads: a process with either cannot fork safely, and devices have no accelerator.
        quiet = {"CUDA_VISIBLE_DEVICES": "", "OPENBLAS_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
        env = {name: value for name, value in os.environ.items() if name.startswith(KNOWN_TO_AGENTS)} | quiet
        with theirs, log:
            self._fork_server = await asyncio.create_subprocess_exec(
                *module_command("edge_agent.fork_server", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listener = asyncio.create_task(self._listen(reader))
        await self._until(lambda: self._ready, "the agents' fork server did not start")

    def _send(self, message: Message) -> None:
        if self._writer is None or self._writer.is_closing():
            raise FleetError("the agents' fork server has ended", hint="start the fleet again")
        self._writer.write(encode(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            with contextlib.suppress(WireError):
                self._heard(decode(line))
            async with self._changed:
                self._changed.notify_all()
        self._fork_server_gone()
        async with self._changed:
            self._changed.notify_all()

    def _fork_server_gone(self) -> None:
        """Report the end of all agents, which died with the fork server."""
        self._ready = False
        if self._writer is not None:
            self._writer.close()
        for device, pid in list(self.pids.items()):
            self._heard(Exited(device, pid, "its process ended with the fork server that forked it"))

    def _heard(self, message: Message) -> None:
        match message:
            case Ready():
                self._ready = True
            case Forked(device, pid):
                self.pids[device] = pid
            case Exited(device, pid, why) if self.pids.get(device) == pid:
                del self.pids[device]
                if device not in self._ending:
                    said = last_line(self._log(device))
                    self._exit(device, f"{why}; its last words: {said}" if said else why)

    async def _end(self, device: str) -> None:
        """Kill a device's agent, if it is alive, without reporting that it ended."""
        self._ending.add(device)
        try:
            await self.stop(device)
        finally:
            self._ending.discard(device)

    async def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        def settled() -> bool:
            return condition() or self._writer is None or self._writer.is_closing()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S), self._changed:
                await self._changed.wait_for(settled)
        if not condition():
            raise FleetError(
                f"{otherwise}; its last words: {last_line(self._folder / 'fork-server.log') or 'nothing'}",
                hint="run `python -m edge_agent --help` with this Python: the agent's packages must load",
            )


class SoftwareBackend(LocalBackend):
    """The backend `software`: `local` with the software throttle, also as root. Records call it `local`, with the
    enforcement `software`."""

    needs = HostNeeds(software=True)
