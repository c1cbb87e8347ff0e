"""Attempts of other users of the host, of foreign files, and at the port of link probes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

from edgebed.errors import EdgebedError
from edgebed.link import link_probe, probe_server
from edgebed.link.probe_server import STRANGERS, ProbeServer
from edgebed.module_process import module_command
from orchestrator.dashboard.files import file
from orchestrator.dashboard.run_list import about
from orchestrator.export.columns import write_csv
from orchestrator.files.shared_lock import open_lock
from orchestrator.records.types import Fault
from tests.component._boards import HOST, Lab
from tests.hostile.attempts import Attempt

NOBODY = 65534
BECOME_NOBODY = f"""
import os, pathlib, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
"""In the program: Python itself may lie where only root gets."""

PROBE = "ab" * 16


async def as_nobody(code: str, *arguments: str) -> str:
    """What a program of another user prints last."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-c",
        BECOME_NOBODY + code,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd="/",
    )
    out, _ = await process.communicate()
    return out.decode().strip().splitlines()[-1] if out.strip() else "nothing"


async def reads_secrets(lab: Lab) -> str:
    code = "for name in sys.argv[1:]: pathlib.Path(name).read_bytes()\nprint('read')"
    files = [path for path in lab.place.folder.rglob("*") if path.is_file() and path.name != "ca.pem"]
    answers = [await as_nobody(code, str(path)) for path in files if "key" in path.name or "json" in path.name]
    return "read" if "read" in answers else f"{len(answers)} files: Permission denied"


async def takes_port(lab: Lab) -> str:
    code = (
        "s = socket.socket()\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.bind(('127.0.0.1', int(sys.argv[1])))\ns.listen()\nprint('taken')"
    )
    answers = [await as_nobody(code, str(port)) for port in (lab.port, lab.mqtt_port)]
    return "taken" if "taken" in answers else "in use"


async def plants_code(lab: Lab) -> str:
    folder, witness = lab.folder / "planted", lab.folder / "witness"
    (folder / "orchestrator").mkdir(parents=True)
    for name in ("orchestrator/__init__.py", "json.py", "torch.py", "sitecustomize.py"):
        (folder / name).write_text(f"open({str(witness)!r}, 'a').write({name!r})\n")
    command = module_command("orchestrator.report", "none", "none")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    await process.wait()
    return "its code ran" if witness.exists() else "nothing of it ran"


def lock(path: Path) -> str:
    try:
        os.close(open_lock(path))
    except EdgebedError as error:
        return f"refused: {error}"
    return "opened"


async def pipe_for_lock(lab: Lab) -> str:
    os.mkfifo(lab.folder / "pipe.lock")
    return await asyncio.wait_for(asyncio.to_thread(lock, lab.folder / "pipe.lock"), 10)


async def hard_link_for_lock(lab: Lab) -> str:
    (lab.folder / "shadow").touch(0o600)
    (lab.folder / "hard.lock").hardlink_to(lab.folder / "shadow")
    got = lock(lab.folder / "hard.lock")
    return f"{got}; mode {(lab.folder / 'shadow').stat().st_mode & 0o777:o}"


async def link_for_lock(lab: Lab) -> str:
    (lab.folder / "soft.lock").symlink_to("/etc/hostname")
    return lock(lab.folder / "soft.lock")


def run_folder(lab: Lab, name: str) -> Path:
    folder = lab.folder / name
    folder.mkdir()
    return folder


async def report_link(lab: Lab) -> str:
    folder = run_folder(lab, "run-1")
    (folder / "report.html").symlink_to("/etc/hostname")
    return str((await file(folder, "report.html")).status_code)


async def aliases(lab: Lab) -> str:
    folder = run_folder(lab, "run-2")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 6)]
    (folder / "experiment.yaml").write_text("\n".join([*lines, "model: {name: *a5}", "data: {name: x}"]))
    return f"a card of {len(about(folder)['model'])} characters"


async def formula(lab: Lab) -> str:
    (path,) = write_csv([Fault(1, "a", "=HYPERLINK(1)")], run_folder(lab, "run-3"))
    return path.read_text().splitlines()[1]


# ---- the port of link probes ----


async def silent_probes(lab: Lab) -> str:
    async with ProbeServer([HOST], {HOST}) as server:
        with contextlib.ExitStack() as stack:
            where = (HOST, server.port(HOST))
            held = [stack.enter_context(socket.create_connection(where, timeout=10)) for _ in range(200)]
            greeted = await asyncio.to_thread(lambda: sum(bool(each.recv(1)) for each in held))
    return f"{greeted} of 200 were kept" if greeted != STRANGERS else "64 of 200 were kept"


async def wrong_probe(lab: Lab) -> str:
    async with ProbeServer([HOST], {HOST}) as server:
        await server.expect(PROBE)
        with socket.create_connection((HOST, server.port(HOST)), timeout=10) as near:
            await asyncio.to_thread(link_probe.greet, near, bytes(16), True, 1000, 1)
            return "closed" if not await asyncio.to_thread(near.recv, 1) else "measured"


async def replayed_probe(lab: Lab) -> str:
    async with ProbeServer([HOST], {HOST}) as server:
        await server.expect(PROBE)
        role = link_probe.Role.of(link_probe.token_of(PROBE), bytes(link_probe.NONCE_BYTES), True, 1000, 1)
        with socket.create_connection((HOST, server.port(HOST)), timeout=10) as near:
            near.recv(link_probe.NONCE_BYTES)
            near.sendall(role.pack())
            return "closed" if not await asyncio.to_thread(near.recv, 1) else "measured"


async def slow_probe(lab: Lab) -> str:
    """A byte now and then: the time is that of the whole greeting."""
    before, probe_server.GREETING_S = probe_server.GREETING_S, 1.0
    try:
        async with ProbeServer([HOST], {HOST}) as server:
            with socket.create_connection((HOST, server.port(HOST)), timeout=10) as near:
                near.recv(link_probe.NONCE_BYTES)
                near.sendall(b"x")
                return "closed" if not await asyncio.to_thread(near.recv, 1) else "kept"
    finally:
        probe_server.GREETING_S = before


ATTEMPTS: tuple[Attempt[Lab], ...] = (
    Attempt("other user", "A2: binds the ports of service and broker", takes_port, "in use"),
    Attempt("other user", "reads keys and registry of the service", reads_secrets, "Permission denied"),
    Attempt("other user", "A3: plants code where a run is started", plants_code, "nothing of it ran"),
    Attempt("other user", "C17: a pipe in place of a lock", pipe_for_lock, "refused"),
    Attempt("other user", "C17: a hard link in place of a lock", hard_link_for_lock, "mode 600"),
    Attempt("other user", "C17: a link in place of a lock", link_for_lock, "refused"),
    Attempt("sender of a run", "C19: report.html is a link", report_link, "404"),
    Attempt("sender of a run", "C19: YAML that unfolds without end", aliases, "a card of 0 characters"),
    Attempt("sender of a run", "B12: a formula in a CSV file", formula, "'=HYPERLINK"),
    Attempt("stranger", "C18: 200 silent connections to the probes", silent_probes, "64 of 200"),
    Attempt("stranger", "C18: a probe without its token", wrong_probe, "closed"),
    Attempt("stranger", "C18: an overheard proof on another connection", replayed_probe, "closed"),
    Attempt("stranger", "C18: a greeting that never ends", slow_probe, "closed"),
)
