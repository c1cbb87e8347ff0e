"""Forks agents from one process that has torch loaded, so that twenty start in seconds and share its memory.

Serves `edgebed.wire.forks` over an inherited socket: a Fork in, Forked and Exited out. The end of the socket is the
end of the zygote, and the end of the zygote is the end of its agents.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from edge_agent import privileges
from edgebed.wire.forks import Exited, Fork, Forked, Ready, decode, encode


def describe(status: int) -> str:
    """An exit status of os.waitpid in words."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"its process was killed ({name}{', perhaps out of memory' if name == 'SIGKILL' else ''})"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"


class Zygote:
    """The loop.

    Args:
        control: the socket to the orchestrator.
        become: what a child does, given its Fork; never to return into the loop.
    """

    def __init__(self, control: socket.socket, become: Callable[[Fork], None]) -> None:
        self._control, self._become = control, become
        self._children: dict[int, str] = {}
        self._buffer = b""
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)

    def run(self) -> None:
        """Serve until the orchestrator's end of the socket is closed; then end every child."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_in.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the orchestrator, which then closes the socket
        self._control.sendall(encode(Ready()))
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake_out, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_out in ready:
                    self._wake_out.recv(4096)
                self._reap()
                if self._control in ready and not self._read():
                    break
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _read(self) -> bool:
        try:
            data = self._control.recv(65536)
        except ConnectionError:
            return False
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            message = decode(line)
            if isinstance(message, Fork):
                self._fork(message)
        return bool(data)

    def _fork(self, request: Fork) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._child(request, parent)
        self._children[pid] = request.device
        self._control.sendall(encode(Forked(request.device, pid)))

    def _child(self, request: Fork, parent: int) -> None:
        """Never returns: whatever happens, this process must not go on as a second zygote."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._wake_in, self._wake_out):
                end.close()
            log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if request.netns:
                privileges.enter_netns(request.netns)
            privileges.join_cgroups(list(request.cgroups))
            privileges.drop_privileges()
            privileges.die_with(parent)  # last: the kernel forgets it when a process changes its user
            self._become(request)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as error:
            with contextlib.suppress(Exception):
                print(f"edgebed-agent: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            device = self._children.pop(pid, "")
            with contextlib.suppress(OSError):
                self._control.sendall(encode(Exited(device, pid, describe(status))))


def serve_agent(request: Fork) -> None:
    """In the child: what `python -m edge_agent` does, without loading anything."""
    import edge_agent.__main__ as entry

    os.environ["EDGEBED_BROKER"] = request.broker
    sys.argv = ["edgebed-agent", *request.argv]
    entry.main()


def main() -> None:
    """`python -m edge_agent.zygote FD`, started by the local backend."""
    control = socket.socket(fileno=int(sys.argv[1]))
    privileges.die_with(os.getppid())
    import edge_agent.__main__  # noqa: F401  # and with it torch and all that an agent needs
    from edge_agent.training import warm_up

    warm_up()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        print(f"edgebed-agent: the zygote has {threads} threads; forked agents may hang", file=sys.stderr, flush=True)
    Zygote(control, serve_agent).run()


if __name__ == "__main__":
    main()
