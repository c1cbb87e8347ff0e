"""Python programs that find torch loaded: each is forked from a process that has loaded it, one for a worker of pytest.

A new process takes seconds to load torch and, at the first optimizer, its compiler. What a test proves of a command
needs no new process, unless it is about how that process starts, or about its signals. Our own modules are not loaded
beforehand: a program imports them anew, with its own environment.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path

CLIENT = Path(__file__).with_name("warm_client.py")
LOADED = (
    *("torch._dynamo", "torch.utils.flop_counter", "numpy", "safetensors.torch", "zstandard", "msgspec", "yaml"),
    *("paho.mqtt.client", "psutil", "jinja2", "typer", "rich.console", "rich.table", "rich.progress"),
)
Job = Callable[[], None]


def python() -> list[str]:
    """What stands for `python` in a command: `-c CODE`, `-m MODULE` or a file follows, and its arguments. The process
    ends as the program ends; if it is killed, the program is killed, too."""
    return [sys.executable, "-IS", str(CLIENT), _server()]


@functools.cache
def _server() -> str:
    """Starts the process that is forked, which ends with this one; returns its socket."""
    place = f"{tempfile.mkdtemp(prefix='edgebed-warm-')}/socket"
    pipe, command = subprocess.PIPE, [sys.executable, "-P", __file__, place]
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    atexit.register(server.communicate)
    return place


# ---- the process that is forked ----


def serve(place: str) -> Job | None:
    """Fork for each client. Returns in each fork, with its program; and None once nobody holds standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(8)
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    return _forked(connection)
    return None


def _forked(connection: socket.socket) -> Job:
    """Fork once more: the child returns with the program, this process sees to its end."""
    os.setsid()
    _, files, *_ = socket.recv_fds(connection, 1, 3)
    arguments, folder, environment = literal_eval(b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    if pid := os.fork():
        _mind(connection, files, pid, woken)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in (*files, woken, wake, connection.detach()):
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    return functools.partial(_run, *arguments)


def _mind(connection: socket.socket, files: list[int], pid: int, woken: int) -> None:
    """Wait for the end of the program or of its client, and tell the client the exit code. Never returns."""
    for file in files:
        os.close(file)
    both = select.poll()
    both.register(connection, 0)  # tells of its other end alone
    both.register(woken, select.POLLIN)
    if woken not in dict(both.poll()):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def _run(first: str, *rest: str) -> None:
    """What `python FIRST REST` does."""
    sys.argv = [first, *rest]
    match first:
        case "-c":
            sys.path.insert(0, "")
            code = sys.argv.pop(1)
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case "-m":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
        case _:
            sys.path.insert(0, str(Path(first).absolute().parent))
            runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    if job := serve(sys.argv[1]):
        job()
    else:
        shutil.rmtree(Path(sys.argv[1]).parent)
