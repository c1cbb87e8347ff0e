"""A host with a boards service, and boards beside it: network namespaces with environments, key stores and clocks of
their own, and a container that is emulated for arm64."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.wheel import ROOT, Installed

PREFIX = "ebtest"
"""Begins the names of links, namespaces and containers."""
BRIDGE, HOST, ROUTER = f"{PREFIX}0", "10.97.0.1", "10.97.0.99"
ARM64_BASE = os.environ.get("EDGEBED_ARM64_BASE", "arm64v8/python:3.11-slim-bookworm")
FAKETIME_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def do(*words: str) -> str:
    """Standard output of a command that must work."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """Seconds until the condition holds. Raises TimeoutError."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begin


class Network:
    """A bridge with the address HOST, and namespaces on it."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def open(self) -> None:
        self.close()
        do("ip", "link", "add", BRIDGE, "type", "bridge")
        do("ip", "address", "add", f"{HOST}/24", "dev", BRIDGE)
        do("ip", "link", "set", BRIDGE, "up")

    def close(self) -> None:
        """Remove everything, also what a run that was killed left."""
        for line in do("ip", "netns", "list").splitlines():
            if line.startswith(PREFIX):
                do("ip", "netns", "del", line.split()[0])
        if Path(f"/sys/class/net/{BRIDGE}").exists():
            do("ip", "link", "del", BRIDGE)

    def join(self, name: str, address: str) -> str:
        """A namespace on the bridge; its name."""
        space = self._space(name)
        self._pair(f"{PREFIX}-{name}", space, "eth0", address)
        do("ip", "link", "set", f"{PREFIX}-{name}", "master", BRIDGE, "up")
        return space

    def join_behind_nat(self, name: str) -> str:
        """A namespace whose only way out is a router with another address (masquerade)."""
        router, space = self.join("nat", ROUTER), self._space(name)
        do("ip", "-n", router, "link", "add", "in", "type", "veth", "peer", "name", "eth0", "netns", space)
        for where, link, address in ((router, "in", "192.168.77.1"), (space, "eth0", "192.168.77.2")):
            do("ip", "-n", where, "address", "add", f"{address}/24", "dev", link)
            do("ip", "-n", where, "link", "set", link, "up")
        do("ip", "-n", space, "route", "add", "default", "via", "192.168.77.1")
        inside = ("ip", "netns", "exec", router)
        do(*inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        do(*inside, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE")
        return space

    def _space(self, name: str) -> str:
        space = f"{PREFIX}-{name}"
        do("ip", "netns", "add", space)
        do("ip", "-n", space, "link", "set", "lo", "up")
        return space

    def _pair(self, here: str, space: str, there: str, address: str) -> None:
        do("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
        do("ip", "-n", space, "address", "add", f"{address}/24", "dev", there)
        do("ip", "-n", space, "link", "set", there, "up")


class Host:
    """The orchestrator's side: `edgebed` with a state folder and runs of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.state = folder / "state" / "edgebed" / "boards"
        self._env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "EDGEBED_RUNS": str(self.runs)}
        self._serving: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "orchestrator", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=self._env, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def edgebed(self, *arguments: str) -> str:
        """What the command prints. Raises RuntimeError where it fails."""
        process = self.start(*arguments)
        said = process.communicate()[0]
        if process.returncode:
            raise RuntimeError(said.strip())
        return said

    def serve(self) -> None:
        self._serving = self.start("boards", "serve", "--host", HOST)
        until((self.state / "live.json").exists, "the boards service runs")

    def invite(self, name: str, *options: str) -> list[str]:
        """The command that the board is to run, as it was printed, with the token."""
        said = self.edgebed("boards", "invite", name, *options).splitlines()
        command = next(index for index, line in enumerate(said) if line.startswith("edgebed-agent join "))
        return [*shlex.split(said[command])[:-1], said[command + 1]]

    def boards(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = json.loads(self.edgebed("boards", "ls", "--json"))
        return rows

    def board(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.edgebed("boards", "show", name, "--json"))
        return shown

    def connected(self) -> set[str]:
        """Names of the boards that are connected."""
        return {row["name"] for row in self.boards() if row["state"] == "connected"}

    def close(self) -> None:
        if self._serving is not None:
            self._serving.terminate()
            self._serving.wait(30)


class Board:
    """A board in a namespace, with the wheel in an environment of its own.

    Args:
        wall_s, since_boot_s: by how much its clock and its seconds since boot are ahead of the host's.
    """

    def __init__(self, name: str, space: str, folder: Path, wheel: Path, wall_s: float, since_boot_s: int) -> None:
        self.name, self.folder, self.keys = name, folder / name, folder / name / "keys"
        self.wall_s, self.since_boot_s = wall_s if FAKETIME_LIBRARIES else 0.0, since_boot_s
        self.log = folder / f"{name}.log"
        self._space, self._process = space, None
        self.folder.mkdir()
        self._agent = str(Installed(self.folder, wheel).python.parent / "edgebed-agent")

    @property
    def about(self) -> str:
        return f"namespace, clock {self.wall_s:+.0f} s, since boot {self.since_boot_s:+d} s"

    def agent(self, *arguments: str, wall_s: float | None = None) -> str:
        """What `edgebed-agent` says. Raises RuntimeError where it fails."""
        return _said(self._command(arguments, self.wall_s if wall_s is None else wall_s))

    def connect(self) -> None:
        self._process = _background(self._command(("run",), self.wall_s), self.log)

    def end(self) -> None:
        _end(self._process)

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """The agent that trains does nothing meanwhile."""
        assert self._process is not None
        training = [each for each in psutil.Process(self._process.pid).children(recursive=True) if not each.children()]
        for each in training:
            each.suspend()
        try:
            yield
        finally:
            for each in training:
                with suppress(psutil.NoSuchProcess):
                    each.resume()

    def _command(self, arguments: tuple[str, ...], wall_s: float) -> list[str]:
        seconds = str(self.since_boot_s)
        env = [f"EDGEBED_BOARD={self.keys}"]
        if wall_s:
            env += [f"LD_PRELOAD={FAKETIME_LIBRARIES[0]}", f"FAKETIME={wall_s:+.0f}", "NO_FAKE_STAT=1"]
            env += ["FAKETIME_DONT_FAKE_MONOTONIC=1"]
        where = ["ip", "netns", "exec", self._space]
        clock = ["unshare", "--time", "--monotonic", seconds, "--boottime", seconds, "--fork", "--kill-child"]
        return [*where, *clock, "env", *env, self._agent, *arguments]


class EmulatedBoard:
    """A board in a container for arm64, from the agent's own Dockerfile."""

    since_boot_s, about = 0, "container for arm64, emulated; the host's clock"

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.log, self._container = name, folder / f"{name}.log", f"{PREFIX}-{name}"
        self._process: subprocess.Popen[bytes] | None = None
        arguments = [f"BASE={ARM64_BASE}", "TORCH=torch==2.10.0"]
        given = [word for each in arguments for word in ("--build-arg", each)]
        tag, dockerfile = f"{PREFIX}-agent:arm64", str(ROOT / "docker" / "Dockerfile.agent")
        do("docker", "build", "--quiet", "--file", dockerfile, *given, "--tag", tag, str(ROOT))
        self.close()
        do("docker", "run", "--detach", "--name", self._container, "--entrypoint", "sleep", tag, "100000")

    @staticmethod
    def possible() -> bool:
        """Whether there are an engine and a base image; `uname -m` there proves that it is emulated."""
        base = ("docker", "run", "--rm", "--pull", "never", ARM64_BASE, "uname", "-m")
        if shutil.which("docker") is None:
            return False
        return subprocess.run(base, capture_output=True, text=True, check=False).stdout.strip() == "aarch64"

    def agent(self, *arguments: str) -> str:
        return _said(self._command(arguments))

    def connect(self) -> None:
        self._process = _background(self._command(("run",)), self.log)

    def end(self) -> None:
        self.close()

    def close(self) -> None:
        subprocess.run(["docker", "rm", "--force", self._container], capture_output=True, check=False)

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        inside = ["docker", "exec", "--env", "EDGEBED_BOARD=/tmp/board", self._container]
        return [*inside, "python3", "-m", "edge_agent.entry", *arguments]


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stderr


def _background(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """SIGTERM for the agent, which `unshare` would not hand on."""
    if process is None or process.poll() is not None:
        return
    for child in psutil.Process(process.pid).children():
        child.terminate()
    process.wait(30)
