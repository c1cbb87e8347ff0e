"""Forks agents from one process that has loaded torch, so that twenty agents start in seconds and share its memory.

It speaks `edgebed.wire.fork_protocol` over an inherited socket: Fork in, Forked and Exited out. When the socket is
closed, the fork server ends; when the fork server ends, its agents end.
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

from edge_agent import jail, privileges
from edgebed.wire.fork_protocol import HOST_PID, Exited, Fork, Forked, Ready, decode, encode


def describe(status: int) -> str:
    """An exit status of os.waitpid as text."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"its process was killed ({name}{', perhaps out of memory' if name == 'SIGKILL' else ''})"
    return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"


class ForkServer:
    """Forks on request and reports every child that ends.

    Args:
        control: the socket to the orchestrator.
        become: called in the child with its Fork and the options that name its files. The child ends when it returns.
    """

    def __init__(self, control: socket.socket, become: Callable[[Fork, list[str]], None]) -> None:
        self._control, self._become = control, become
        self._children: dict[int, str] = {}
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)

    def run(self) -> None:
        """Serve until the orchestrator closes the socket; then kill all children."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_in.fileno())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the orchestrator, which then closes the socket
        self._control.sendall(encode(Ready()))
        with self._selector as selector:
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
        """A child with its own root is also the first process of its own PID namespace: it sees no other processes, and
        its children end with it."""
        if request.root:
            privileges.unshare(privileges.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                self._child(request)
        finally:
            if request.root:
                privileges.children_stay_here()
        self._children[pid] = request.device
        self._control.sendall(encode(Forked(request.device, pid)))

    def _child(self, request: Fork) -> None:
        """Never returns, so that the child cannot run on as a second fork server."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._wake_out, self._selector):
                end.close()
            log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            place = confine(request)
            privileges.die_with_parent()  # last: the kernel clears it when a process changes its user
            self._wake_in.send(b"0")  # fails if the fork server, its only reader, has ended meanwhile
            self._wake_in.close()
            self._become(request, place)
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


def confine(request: Fork) -> list[str]:
    """Enter the namespaces, cgroups and root of the request and drop all privileges. Returns the agent's options that
    name its shard and its plug-ins, where they are then. Raises OSError."""
    if request.netns:
        privileges.enter_netns(request.netns)
    privileges.join_cgroups(list(request.cgroups))
    shard, plugins = request.shard, request.plugins
    if request.root:
        os.environ[HOST_PID] = os.readlink("/proc/self")  # for the records: in its namespace its id is 1
        jail.enter(Path(request.root), Path(shard), plugins)
        shard, plugins = jail.SHARD, plugins and jail.PLUGINS
        os.environ |= {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "agent", "LOGNAME": "agent"}  # it has no passwd entry
    elif request.uid:  # opened now: this user may not be allowed to enter the folder
        shard, plugins = (each and f"/proc/self/fd/{os.open(each, os.O_RDONLY)}" for each in (shard, plugins))
    if request.uid:
        privileges.drop_privileges(request.uid)
    return ["--shard", shard, *(["--plugins", plugins] if plugins else [])]


def serve_agent(request: Fork, place: list[str]) -> None:
    """In the child: run the agent as `python -m edge_agent` does, with everything loaded already."""
    import edge_agent.__main__ as entry

    os.environ["EDGEBED_BROKER"] = request.broker
    sys.argv = ["edgebed-agent", *request.argv, *place]
    entry.main()


def main() -> None:
    """`python -m edge_agent.fork_server FD`, started by the local backend."""
    control = socket.socket(fileno=int(sys.argv[1]))
    privileges.die_with(os.getppid())
    import edge_agent.__main__  # noqa: F401  # loads torch and all that an agent needs
    from edge_agent.training import warm_up

    warm_up()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        print(
            f"edgebed-agent: the fork server has {threads} threads; forked agents may hang", file=sys.stderr, flush=True
        )
    ForkServer(control, serve_agent).run()


if __name__ == "__main__":
    main()
