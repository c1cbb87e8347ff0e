"""CPUs for the trainer's process: a quota in a cgroup of its own, set and read back as a device's."""

from __future__ import annotations

import os
import shutil

import psutil

from edgebed.errors import LimitError, counted
from edgebed.limits.cgroups import Cgroup, join
from edgebed.limits.cpu_quota import TICK_US, period_for
from edgebed.limits.throttle import TOLERANCE
from orchestrator.experiment import Grain
from orchestrator.fleet import leftovers, ownership
from orchestrator.fleet.spec.profile import Limits


class ServerQuota:
    """The cgroup of the server of one fleet. The next start of any fleet removes it if this process is killed.

    Args:
        place: number of the cgroup among those of the fleet; devices have the first ones.
        cpus: after dilation.
        grain: how the quota is divided into pieces of time; `tick_us`: of the kernel's accounting.

    Attributes:
        period_s: of the quota.
    """

    def __init__(
        self,
        fleet_id: str,
        place: int,
        cpus: float,
        grain: Grain = "quota",
        tick_us: int = TICK_US,
        dilation: float = 1.0,
    ) -> None:
        memory_mib = psutil.virtual_memory().total // 2**20
        self._limits = Limits(cpus, 0, 0, memory_mib, period_us=period_for(cpus, grain, tick_us, dilation))
        self.period_s = self._limits.period_us / 1e6
        self._folder, self._name = leftovers.STATE / fleet_id, f"{fleet_id}-{place}"
        self._owned: ownership.Lock | None = None
        self._cgroup: Cgroup | None = None

    def open(self, pid: int) -> float:
        """Make the cgroup and move the process into it. Returns the CPUs of its quota as the kernel holds them. Raises
        LimitError: no root, no cgroups, or the kernel holds another quota."""
        if os.geteuid() != 0:
            raise LimitError("server: cpus needs a cgroup, and only root can make one", hint=WITHOUT)
        if not self._folder.exists():  # the local backend makes it for its devices
            self._folder.mkdir(parents=True)
            self._owned = ownership.hold(self._folder)
        cgroup = Cgroup.named(self._name)
        cgroup.make()
        self._cgroup = cgroup
        join(cgroup, pid)
        return self.set()

    def set(self) -> float:
        """Put the quota in force; returns it as read back."""
        assert self._cgroup is not None
        self._cgroup.set(self._limits)
        quota, wanted = self._cgroup.read().quota, self._limits.cpus
        held = None if quota is None else quota.cpus
        if held is None or abs(held - wanted) > TOLERANCE * wanted:
            is_held = "not limited" if held is None else counted(held, "CPU")
            raise LimitError(
                f"the server's CPU quota is {is_held}, wanted {wanted:g}",
                hint="another program on this host changes its limits",
            )
        return held

    def lift(self) -> None:
        """Remove the quota for a while, for work that is not the server's."""
        assert self._cgroup is not None
        self._cgroup.lift()

    def close(self) -> None:
        """Remove the cgroup. The process must have ended."""
        if self._cgroup is not None:
            self._cgroup.remove()
        if self._owned is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._owned.close()


WITHOUT = "run as root on Linux with cgroups, or leave `server` out: it then has the host's CPUs, not dilated"
