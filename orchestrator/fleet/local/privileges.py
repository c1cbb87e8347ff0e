"""What this process may do on this host for local agents."""

from __future__ import annotations

import os
from pathlib import Path

from edgebed.errors import LimitError
from edgebed.limits.cgroups import version_of
from edgebed.limits.shell import missing_tools

CAP_SYS_ADMIN = 21


def kernel_obstacle() -> str:
    """Why this process cannot limit other processes through the kernel; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    if missing := missing_tools("ip", "tc", "nsenter"):
        return f"no {', '.join(missing)} (apt-get install iproute2 util-linux)"
    try:
        version_of()
    except LimitError as error:
        return str(error)
    return ""


def may_mount() -> bool:
    """Whether this process may make mounts and PID namespaces. Root in a container without CAP_SYS_ADMIN may not."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(fields["CapEff"], 16) & 1 << CAP_SYS_ADMIN)
