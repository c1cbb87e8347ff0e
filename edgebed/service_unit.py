"""systemd units for what shall run from boot on: the agent of a board, and the boards service."""

from __future__ import annotations

import getpass
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from edgebed.errors import FileError, UsageError

SYSTEMD = Path("/run/systemd/system")
"""Exists where systemd runs this machine."""


FILTERS = (
    "NoNewPrivileges=true",
    "LockPersonality=true",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictRealtime=true",
    "RestrictSUIDSGID=true",
    "SystemCallArchitectures=native",
    "SystemCallErrorNumber=EPERM",
    "SystemCallFilter=@system-service",
    "UMask=0077",
)
HOMES = ("/home", "/root", "/run/user")
MOUNTS = (
    # root may read the first without any capability, and have the others start a program outside of the sandbox
    "InaccessiblePaths=-/etc/shadow -/etc/gshadow -/etc/ssh",
    "InaccessiblePaths=-/run/systemd/private -/run/dbus -/run/docker.sock -/run/containerd -/run/podman",
    "ProtectHostname=true",
    "ProtectKernelLogs=true",
    "ProtectKernelModules=true",
    "ProtectSystem=strict",
    "RestrictNamespaces=true",
)
"""What systemd keeps from the program. A user's systemd may not mount: the second group is for units of the machine."""


class ServiceUnit(msgspec.Struct, frozen=True):
    """A unit of the whole machine where we are root, else of our user."""

    name: str  # of the unit, without `.service`
    about: str
    command: tuple[str, ...]  # absolute path and arguments
    environment: dict[str, str]  # variables that the command needs
    folder: Path  # the one in which it writes
    needs: tuple[str, ...]  # lines of the unit of the whole machine, with the capabilities that it keeps

    @property
    def path(self) -> Path:
        config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        folder = Path("/etc/systemd/system") if os.geteuid() == 0 else Path(config) / "systemd" / "user"
        return folder / f"{self.name}.service"

    def text(self, *, system: bool) -> str:
        """The file's content; `system`: for the whole machine."""
        lines = [
            "[Unit]",
            f"Description={self.about}",
            *(["Wants=network-online.target", "After=network-online.target"] if system else []),
            "",
            "[Service]",
            "ExecStart=" + " ".join(quoted(part) for part in self.command),
            *[f"Environment={quoted(f'{key}={value}')}" for key, value in self.environment.items()],
            "KillMode=mixed",  # SIGTERM to our process only, which ends its children itself
            "Restart=always",
            "RestartSec=5",
            "RestartPreventExitStatus=2",  # what was asked for cannot be done: trying again does not help
            "SuccessExitStatus=130",  # ended by SIGTERM
            *FILTERS,
            *(self._machine_lines() if system else []),
            "",
            "[Install]",
            f"WantedBy={'multi-user.target' if system else 'default.target'}",
            "",
        ]
        return "\n".join(lines)

    def _machine_lines(self) -> list[str]:
        shared = self.folder.is_relative_to(tempfile.gettempdir())  # it would not be seen in a private one
        private = [] if shared else ["PrivateTmp=true"]
        used = [Path(each) for each in (self.folder, self.command[0], sys.prefix, sys.base_prefix, __file__)]
        at_home = any(
            path.is_relative_to(home) or path.resolve().is_relative_to(home) for path in used for home in HOMES
        )
        home = f"ProtectHome={'read-only' if at_home else 'true'}"
        own = [f"RuntimeDirectory={self.name}", f"Environment=TMPDIR=/run/{self.name}"]  # /tmp may be read-only
        return [*MOUNTS, home, *private, *own, f"ReadWritePaths={quoted(f'-{self.folder}')}", *self.needs]

    def install(self) -> str:
        """Write the unit; enable and start it where systemd runs. Returns what was done, in words.

        Raises:
            FileError: it cannot be written.
            UsageError: root would run a program that others may change.
        """
        system = os.geteuid() == 0
        if system:
            refuse_foreign(Path(self.command[0]), Path(sys.executable), Path(sys.prefix), Path(__file__))
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.text(system=system))
        except OSError as error:
            raise FileError.of(error, self.path) from None
        if not SYSTEMD.is_dir():
            return f"{self.path} is written; systemd does not run this machine, so nothing was started"
        for order in (["daemon-reload"], ["enable", "--now", f"{self.name}.service"]):
            if why := _systemctl(order, system=system):
                return f"{self.path} is written, but `systemctl {' '.join(order)}` failed: {why}"
        return f"{self.path} is written, enabled and started{'' if system else _linger()}"

    def remove(self) -> bool:
        """Stop, disable and remove the unit; False if there was none. Raises FileError."""
        if not self.path.exists():
            return False
        system = os.geteuid() == 0
        if SYSTEMD.is_dir():
            _systemctl(["disable", "--now", f"{self.name}.service"], system=system)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise FileError.of(error, self.path) from None
        if SYSTEMD.is_dir():
            _systemctl(["daemon-reload"], system=system)
        return True


def refuse_foreign(*paths: Path) -> None:
    """Raises UsageError where another user than root may change one of these files, or a folder on the way to it."""
    for path in paths:
        for start in {path.absolute(), path.resolve()}:
            for each in (start, *start.parents):
                found = each.lstat()
                shared = stat.S_IMODE(found.st_mode) & 0o022 and not found.st_mode & stat.S_ISVTX
                if found.st_uid != 0 or (shared and not stat.S_ISLNK(found.st_mode)):
                    raise UsageError(
                        f"root would run {path} at each start, and others than root may change {each}",
                        hint="install Edgebed as root, into /opt/edgebed for example (docs/boards.md)",
                    )


def quoted(text: str) -> str:
    """A word as systemd reads it: in quotes, with its signs for variables and specifiers doubled."""
    for sign, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n")):
        text = text.replace(sign, written)
    return f'"{text}"'


def _linger() -> str:
    """Have the units of our user run from boot on, and when he has logged out; says whether they do."""
    if why := _why_not(["loginctl", "enable-linger"]):
        return (
            f"; it ends when you log out, because `loginctl enable-linger` failed: {why}; "
            f"run `sudo loginctl enable-linger {getpass.getuser()}`"
        )
    return "; it runs from boot on, also when you have logged out (loginctl enable-linger)"


def _systemctl(order: list[str], *, system: bool) -> str:
    """Why it failed; "" where it worked."""
    return _why_not(["systemctl", *([] if system else ["--user"]), *order])


def _why_not(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
