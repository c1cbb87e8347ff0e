"""Runs the programs that set limits (ip, tc, nsenter). If one fails, the error says why and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from edgebed.errors import LimitError

SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
TIMEOUT_S = 30.0


def which(tool: str) -> str | None:
    """The tool's path. Also looks in the sbin folders, which are often not in a user's PATH. What PATH says of the
    current directory is left out: an empty entry, say."""
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    return shutil.which(tool, path=os.pathsep.join([*folders, *SBIN]))


def missing_tools(*tools: str) -> list[str]:
    return [tool for tool in tools if which(tool) is None]


def run(argv: Sequence[str], lines: Sequence[str] = ()) -> str:
    """Standard output of a program. If the program fails, raises LimitError with its error output. `lines`: for its
    standard input (`ip -batch -`, `tc -batch -`)."""
    program = which(argv[0])
    if program is None:
        raise LimitError(f"{argv[0]} is not installed", hint="apt-get install iproute2 util-linux")
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            input="".join(f"{line}\n" for line in lines),
            start_new_session=True,  # a Ctrl-C or a closed terminal must not end the programs of the clean-up
        )
    except subprocess.TimeoutExpired:
        raise LimitError(f"`{' '.join(argv)}` does not end", hint="see the kernel's log (dmesg)") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        what = f"`{' '.join(argv)}`" + (f" with `{'; '.join(lines)}`" if lines else "")
        raise LimitError(f"{what} failed: {said}", hint=_hint([*argv, *" ".join(lines).split()], said))
    return done.stdout


def _hint(argv: Sequence[str], said: str) -> str:
    if "netem" in argv:
        return "this kernel has no netem (CONFIG_NET_SCH_NETEM): load sch_netem, or remove latency_ms from the profile"
    if "not permitted" in said or "Permission" in said:
        return "run as root, or use the software throttle (--backend local without root)"
    if "Unknown device type" in said or "ifb" in argv:
        return "this kernel has no ifb: load the module, or run as root on the engine's host"
    return "the kernel needs tbf (CONFIG_NET_SCH_TBF) and network namespaces"


def in_netns(pid: int, command: Sequence[str]) -> list[str]:
    """The command, run in the network namespace of a process. Mounts stay ours, so our own tools are used."""
    return ["nsenter", "--target", str(pid), "--net", which(command[0]) or command[0], *command[1:]]


def write(path: Path, value: str) -> None:
    """Write a kernel file. Raises LimitError with the file's name."""
    try:
        path.write_text(value)
    except OSError as error:
        raise LimitError(
            f"{path} refuses {value!r}: {error.strerror}",
            hint="run as root on a host with this cgroup controller",
        ) from None


def last_line(path: Path) -> str:
    """The last line of a log that is not empty, for messages."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""
