"""A broker as a child process, which ends when we end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgebed.errors import LinkError
from edgebed.timeouts import end
from orchestrator.broker.runner import Listen

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
"""By default glibc maps and unmaps memory for each packet of 1 MB. That takes two thirds of Mosquitto's CPU time (1.4
against 0.45 ms per MB), and nearly half the goodput on loopback."""

KNOWN = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ")
"""The variables of our environment that a broker gets: there may be passwords in others."""

NOT_TOLD = "Unable to set TCP_NODELAY"
"""Mosquitto warns so of every connection by a Unix socket."""

END_S = 3.0
"""A broker that is told to end is killed after so long."""

LAUNCH = """
import ctypes, os, sys
parent, user, *command = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)
if os.getppid() != int(parent):
    sys.exit("its orchestrator has ended")
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]} cannot be run: {error.strerror}")
"""
"""A program that becomes the broker. First it has the kernel kill it when the thread that started it ends
(PR_SET_PDEATHSIG), which a change of the user would undo. `preexec_fn` would do this in a copy of our process, whose
other threads may hold locks: it could wait for ever, and we for it."""


class Child:
    """A broker as a child process. `prepare` writes its files and returns command and standard input. It runs
    as the user `user`; None means as we do."""

    def __init__(
        self,
        kind: str,
        prepare: Callable[[Listen, Path], tuple[list[str], bytes]],
        user: int | None = None,
        *,
        inherits: bool = True,
    ) -> None:
        self.kind, self.inherits, self._prepare = kind, inherits, prepare
        self._user = user
        self._process: asyncio.subprocess.Process | None = None
        self._log: Path | None = None

    async def start(self, listen: Listen, folder: Path) -> None:
        command, stdin = self._prepare(listen, folder)
        self._log = folder / "broker.log"
        with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
            self._process = await begin(
                command, self._user, pass_fds=listen.sockets, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log
            )
        assert self._process.stdin is not None
        self._process.stdin.write(stdin)
        self._process.stdin.close()

    async def stop(self) -> None:
        process, self._process = self._process, None
        await end(process, END_S)

    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def failure(self) -> str:
        if self._process is None or self._process.returncode is None:
            return ""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log else []
        lines = [line for line in lines if NOT_TOLD not in line]
        return f"exit code {self._process.returncode}: {' / '.join(lines[-3:])}"


async def begin(
    command: Sequence[str], user: int | None = None, env: Mapping[str, str] | None = None, **streams: Any
) -> asyncio.subprocess.Process:
    """Start a broker, as this user and the group of the same number where it is not None, with this environment, else
    with the variables of KNOWN. Raises LinkError."""
    known = {name: os.environ[name] for name in KNOWN if name in os.environ} if env is None else env
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid()), "" if user is None else str(user), *command),
            start_new_session=True,  # Ctrl-C must not end the broker before we have cleaned up
            env={**known, **MALLOC},
            **streams,
        )
    except OSError as error:
        raise LinkError(f"{sys.executable} cannot be run: {error.strerror}") from None
