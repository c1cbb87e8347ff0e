"""Limits both directions of a container's link: from the host if this process is root there, otherwise through a
short-lived helper container in the device's network namespace. The agent's own container has no privileges."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any, Protocol

from edgebed.errors import LimitError
from edgebed.limits.cpu_quota import QUOTA_FILES
from edgebed.limits.shell import in_netns, missing_tools, run
from edgebed.limits.throttle import Shaped, ifb_commands, parse_qdisc, shape_commands, show_command
from orchestrator.fleet.network import netlink
from orchestrator.fleet.network.netlink import DEVICE_END
from orchestrator.fleet.spec.profile import Limits

IFB = "ifb-down"
QUOTA_SCRIPT = """
find /host-cgroups -maxdepth 8 -type d -name '*{id}*' | while read -r folder; do
  cd "$folder" && for name in {files}; do
    [ ! -e $name ] || echo "$name $(cat $name)"
  done
done
"""
SEEN = {"/sys/fs/cgroup": {"bind": "/host-cgroups", "mode": "ro"}}
NOTHING = Shaped(None, 0, 0, "not running")


class Shaper(Protocol):
    """Limits and reads the link of one running container. Calls block."""

    route: str

    def shape(self, container: Any, limits: Limits) -> None: ...

    def set_rates(self, container: Any, limits: Limits) -> tuple[int, int]:
        """Change only the rates. Returns uplink and downlink in bit/s as read back."""

    def set_link(self, container: Any, up: bool) -> str:
        """Cut the link or mend it. Returns what was read back, in words."""

    def read(self, container: Any) -> tuple[Shaped, Shaped]:
        """Uplink and downlink as the kernel reports them."""

    def counters(self, container: Any) -> tuple[int, int]:
        """Bytes up and down since the container started."""

    def quota(self, container: Any) -> dict[str, str]:
        """Contents of the kernel's files of the container's CPU quota, by file name. Empty if they are not visible."""


class HostShaper:
    """For root on the engine's host. Limits the downlink at the host's end of the veth pair, and the uplink inside the
    container's network namespace."""

    route = "host"

    def shape(self, container: Any, limits: Limits) -> None:
        pid = pid_of(container)
        for command in shape_commands(host_end(pid), limits.downlink_bit_s, limits.latency_ms):
            run(command)
        for command in shape_commands(DEVICE_END, limits.uplink_bit_s, limits.latency_ms):
            run(in_netns(pid, command))

    def set_rates(self, container: Any, limits: Limits) -> tuple[int, int]:
        return netlink.set_rates(_netns(container), DEVICE_END, host_end(pid_of(container)), limits)

    def set_link(self, container: Any, up: bool) -> str:
        return netlink.set_link(_netns(container), DEVICE_END, up)

    def read(self, container: Any) -> tuple[Shaped, Shaped]:
        pid = pid_of(container)
        up = parse_qdisc(run(in_netns(pid, show_command(DEVICE_END))))
        return up, parse_qdisc(run(show_command(host_end(pid))))

    def counters(self, container: Any) -> tuple[int, int]:
        folder = Path("/sys/class/net") / host_end(pid_of(container)) / "statistics"
        return int((folder / "rx_bytes").read_text()), int((folder / "tx_bytes").read_text())

    def quota(self, container: Any) -> dict[str, str]:
        return {}  # the caller can read all files of the cgroup itself


class HelperShaper:
    """For an engine anywhere. Runs `image` for a moment, as root with NET_ADMIN in the device's network namespace. All
    arriving packets go through an ifb device, which limits the downlink."""

    route = "helper"

    def __init__(self, client: Any, image: str, labels: dict[str, str]) -> None:
        self._client, self._image, self._labels = client, image, labels

    def shape(self, container: Any, limits: Limits) -> None:
        lead = [shlex.join(command) for command in ifb_commands(DEVICE_END, IFB)]
        once = f"[ -e /sys/class/net/{IFB} ] || {{ {' && '.join(lead)}; }}"
        commands = shape_commands(IFB, limits.downlink_bit_s, limits.latency_ms)
        commands += shape_commands(DEVICE_END, limits.uplink_bit_s, limits.latency_ms)
        self._run(container, " && ".join([once, *(shlex.join(command) for command in commands)]))

    def set_rates(self, container: Any, limits: Limits) -> tuple[int, int]:
        self.shape(container, limits)
        up, down = self.read(container)
        return up.rate_bit_s or 0, down.rate_bit_s or 0

    def set_link(self, container: Any, up: bool) -> str:
        word = "up" if up else "down"
        said = self._run(container, f"ip link set {DEVICE_END} {word} && cat /sys/class/net/{DEVICE_END}/flags")
        return netlink.told(int(said.strip() or "0", 16))

    def read(self, container: Any) -> tuple[Shaped, Shaped]:
        up, down = shlex.join(show_command(DEVICE_END)), shlex.join(show_command(IFB))
        output = self._run(container, f"{up}; echo; echo ----; [ ! -e /sys/class/net/{IFB} ] || {down}")
        uplink, _, downlink = output.partition("----")
        return parse_qdisc(uplink.strip()), parse_qdisc(downlink.strip())

    def counters(self, container: Any) -> tuple[int, int]:
        stats = container.stats(stream=False).get("networks", {}).get(DEVICE_END, {})
        return int(stats.get("tx_bytes", 0)), int(stats.get("rx_bytes", 0))

    def quota(self, container: Any) -> dict[str, str]:
        import docker.errors

        try:
            return parse_files(
                self._run(container, QUOTA_SCRIPT.format(id=container.id, files=" ".join(QUOTA_FILES)), volumes=SEEN)
            )
        except (docker.errors.APIError, LimitError):  # this engine does not show its cgroups
            return {}

    def _run(self, container: Any, script: str, **more: Any) -> str:
        import docker.errors

        try:
            output: Any = self._client.containers.run(
                self._image,
                entrypoint=["sh", "-c"],
                command=[script],
                user="root",
                network_mode=f"container:{container.id}",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                security_opt=["no-new-privileges"],
                read_only=True,
                pids_limit=64,
                mem_limit="64m",
                labels=self._labels,
                remove=True,
                stdout=True,
                stderr=True,
                **more,
            )
        except docker.errors.ContainerError as error:
            stderr: Any = error.stderr
            said = stderr.decode(errors="replace") if isinstance(stderr, bytes) else str(error)
            raise LimitError(
                f"the helper could not shape {container.name}: {' '.join(said.split())[:500]}",
                hint="the engine's kernel needs tbf and ifb (modprobe ifb); latency_ms needs netem; or run as root "
                "on the engine's host",
            ) from None
        return str(output.decode())


def parse_files(output: str) -> dict[str, str]:
    """Contents by name, from lines with a name and its contents."""
    rows = [line.split(maxsplit=1) for line in output.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def choose(client: Any, image: str, labels: dict[str, str]) -> Shaper:
    """HostShaper if it works here (root, tools, and an engine whose processes are visible), otherwise HelperShaper."""
    if os.geteuid() == 0 and beside_us(client) and not missing_tools("ip", "tc", "nsenter"):
        return HostShaper()
    return HelperShaper(client, image, labels)


def beside_us(client: Any) -> bool:
    """Whether the engine runs on this host, not in a virtual machine or on another host."""
    local = str(client.api.base_url).startswith(("http+docker://", "http+unix://"))
    return local and client.info().get("Name") == os.uname().nodename


def is_ours(container: Any) -> bool:
    """Whether the container's process is visible here. It is not if the engine runs in a virtual machine."""
    try:
        return container.id in Path(f"/proc/{container.attrs['State']['Pid']}/cgroup").read_text()
    except (OSError, KeyError):
        return False


def _netns(container: Any) -> Path:
    return Path(f"/proc/{pid_of(container)}/ns/net")


def pid_of(container: Any) -> int:
    """The number of the container's first process on its engine's host. Raises LimitError where it does not run."""
    pid = int(container.attrs["State"]["Pid"])
    if not pid:
        raise LimitError(f"{container.name} is not running", hint="it ended by itself: see its log")
    return pid


def host_end(pid: int) -> str:
    """The host's interface whose peer is in the container. It changes with every restart of the container."""
    inside = json.loads(run(in_netns(pid, ["ip", "-j", "link", "show", DEVICE_END])))
    index = int(inside[0]["link_index"])
    for link in json.loads(run(["ip", "-j", "link", "show"])):
        if link["ifindex"] == index:
            return str(link["ifname"])
    raise LimitError(f"no interface of this host is joined to process {pid}", hint="is the engine on this host?")
