"""A joined board that waits: it keeps a connection to the broker, carries out its order, and renews its certificate.

It only dials out, so it works behind NAT. The agent of a fleet runs in a process of its own; this one stays small, and
outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge_agent.board.cipher import cipher_environment
from edge_agent.board.client import Service
from edge_agent.board.join import version_of
from edge_agent.board.keystore import Keystore
from edge_agent.board.limiter import Limiter
from edge_agent.board.plugged import put_plugins
from edgebed.errors import EdgebedError, FileError, LimitError, LinkError, UsageError, WireError, in_words
from edgebed.limits.spec import Held
from edgebed.link.connection import Address
from edgebed.link.mqtt import MqttLink
from edgebed.module_process import module_command
from edgebed.timeouts import end, timeout
from edgebed.wire.boards import WAITING, BoardOrder, BoardState, Renew, decode_order
from edgebed.wire.protocol import PROTOCOL

RETRY_S = (1.0, 30.0)
"""Pause after a failed attempt, first and longest; it doubles."""

RENEWAL_CHECK_S = 3600.0
KEEPALIVE_S = 20
HOPELESS = (UsageError.exit_code, -signal.SIGILL)
"""Exit codes of an agent that would end in the same way again."""

MOST_WORDS = 500
"""Characters of a line of an agent's last words."""

END_S = 10.0
"""An agent that is told to end is killed after so long."""

ENDED = "`edgebed-agent run` was ended on the board"


class Standby:
    """A board that waits for orders and carries them out.

    Args:
        keys: of a board that has joined.
        notify: told what changes, a line each.
        guard_s: how often the connection is looked at.
    """

    def __init__(self, keys: Keystore, notify: Callable[[str], None], *, guard_s: float = 5.0) -> None:
        self._keys, self._notify, self._about = keys, notify, keys.service()
        self._guard_s = guard_s
        self._service = Service(self._about.host, self._about.port)
        self._wanted: BoardOrder | None = None
        self._changed = asyncio.Event()
        self._error, self._final, self._failures, self._told = "", False, 0, ""
        self._life, self._ended = secrets.token_hex(8), ""  # the latter: why this process ends
        self._limiter = Limiter(keys.folder, self._about.host)
        self._limit_now = asyncio.Event()
        self._limited: tuple[int, Held | None, str] = (0, None, "")  # as in BoardState
        self._waiting = f"{self._about.name} is connected to {self.address}"
        will = (WAITING.state(self._about.board), msgspec.json.encode(BoardState(False)), True)
        self._link = MqttLink(self.address, f"b{secrets.token_hex(16)}", will=will, keepalive_s=KEEPALIVE_S)

    @property
    def address(self) -> Address:
        """Of the broker."""
        return Address(self._about.host, self._about.mqtt_port, identity=self._keys.identity)

    async def run(self) -> None:
        """Never returns. Raises UsageError, FileError for a folder that cannot be used, FleetError where another
        process does this for the same board."""
        self._keys.identity.authority()  # an older join may have stored a second CA
        with self._keys.held():
            await self._run()

    async def _run(self) -> None:
        self._link.subscribe(WAITING.control_to(self._about.board), self._take_order)
        self._link.on_connect(self._publish)
        tasks: list[asyncio.Task[None]] = []
        ended = ENDED
        try:
            await asyncio.to_thread(self._limiter.undo)  # of a life that was cut off
            await self._connect()
            tasks = [asyncio.create_task(work) for work in (self._serve(), self._renew_in_time(), self._guard())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        except EdgebedError as error:
            ended = f"`edgebed-agent run` ended on the board: {error}"
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ended = ended  # told when the agent has ended: it could still be given work until then
            self._publish()
            await self._link.close()

    async def _serve(self) -> None:
        while True:
            self._changed.clear()
            await self._do(self._wanted)

    # ---- connecting ----

    async def _connect(self) -> None:
        pause = RETRY_S[0]
        while True:
            try:
                await self._link.open()
                break
            except LinkError as error:
                self._tell(await asyncio.to_thread(self._why_not, error))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_S[1])
        self._tell(self._waiting)
        self._publish()

    async def _guard(self) -> None:
        """Says why a connection that broke does not come back. Raises UsageError where it cannot: the board is
        revoked."""
        broken = LinkError(f"the connection to {self.address} broke", hint="is `edgebed boards serve` running?")
        while True:
            await asyncio.sleep(self._guard_s)
            if self._link.connected:
                self._tell(self._waiting)
            else:
                self._tell(await asyncio.to_thread(self._why_not, broken))

    def _why_not(self, error: LinkError) -> str:
        """Why the broker cannot be reached. A wrong clock and a certificate that has run out look alike; the latter is
        renewed. Raises UsageError where the service does not know this board."""
        if why := self._service.clock_error():
            return why
        try:
            if self._keys.wants_renewal():
                self._renew()
            self._service.check(self._keys.identity)
        except (LinkError, FileError) as other:
            return f"{other}; it is tried again ({other.hint})"
        return f"{error}; it is tried again ({error.hint})"

    def _tell(self, line: str) -> None:
        """Each line once, until another one comes."""
        if line != self._told:
            self._told = line
            self._notify(line)

    # ---- renewal ----

    async def _renew_in_time(self) -> None:
        while True:
            try:
                if self._keys.wants_renewal():
                    await asyncio.to_thread(self._renew)
            except LinkError:
                pass  # it is tried again; most of a month is left
            except FileError as error:
                self._notify(f"the certificate was not renewed: {error}; it is tried again ({error.hint})")
            await asyncio.sleep(RENEWAL_CHECK_S * random.uniform(0.5, 1.0))

    def _renew(self) -> None:
        """Raises LinkError, UsageError, FileError."""
        renewed = self._service.renew(self._keys.identity.authority(), Renew(self._keys.request()))
        self._keys.keep_certificate(renewed.certificate)
        self._notify(f"the certificate is renewed; it is valid until {self._keys.life()[1]:%Y-%m-%d}")

    # ---- work ----

    def _take_order(self, topic: str, payload: bytes) -> None:
        try:
            wanted = decode_order(payload)
        except WireError as error:
            self._tell(f"an order cannot be read: {error}")
            return
        before = self._wanted
        if wanted and before and wanted != before and _without_limits(wanted) == _without_limits(before):
            self._wanted = wanted
            self._limit_now.set()
        elif wanted != before:
            self._wanted, self._error, self._final, self._failures = wanted, "", False, 0
            self._changed.set()

    def _publish(self) -> None:
        state = BoardState(False, error=self._ended) if self._ended else self._state()
        self._link.publish(WAITING.state(self._about.board), msgspec.json.encode(state), retain=True)

    def _state(self) -> BoardState:
        return BoardState(
            True,
            version_of("edgebed"),
            self._wanted.fleet if self._wanted else "",
            self._error,
            self._final,
            PROTOCOL,
            self._failures,
            *self._limited,
            self._life,
        )

    async def _do(self, wanted: BoardOrder | None) -> None:
        """Until the order changes."""
        self._publish()
        if wanted is None:
            await self._changed.wait()
            return
        pause = RETRY_S[0]
        while not self._changed.is_set():
            try:
                if await self._work(wanted):
                    await self._changed.wait()  # the fleet has ended; the orchestrator takes the order away
                    return
            except EdgebedError as error:
                self._error = f"{error}; {error.hint}" if error.hint else str(error)
            self._failures += 1
            self._tell(f"{wanted.fleet}: {self._error}")
            self._publish()
            if self._final:
                await self._changed.wait()
                return
            with contextlib.suppress(TimeoutError):
                async with timeout(pause):
                    await self._changed.wait()
            pause = min(2 * pause, RETRY_S[1])

    async def _work(self, wanted: BoardOrder) -> bool:
        """Run the agent of a fleet until it ends, or the order changes. False where it failed. Raises
        EdgebedError."""
        folder = self._keys.folder / "shards"
        shard = await asyncio.to_thread(self._service.shard, wanted.shard, folder, self._keys.identity)
        self._notify(f"works in the fleet {wanted.fleet}")
        self._error = ""
        self._publish()
        process = await self._start(wanted, shard, await self._plugins(wanted))
        limits = asyncio.create_task(self._limit(process.pid))
        words = asyncio.create_task(_last_words(process))
        ended, changed = asyncio.create_task(process.wait()), asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([ended, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            limits.cancel()
            await asyncio.gather(limits, return_exceptions=True)
            by_itself = process.returncode is not None
            await end(process, END_S)
            await asyncio.to_thread(self._limiter.undo)
            self._limited = (0, None, "")
        code = (process.returncode or 0) if by_itself else 0
        self._error = f"{how_ended(code)}; its last words: {await words or 'none'}" if code else ""
        self._final = code in HOPELESS
        return code == 0

    async def _limit(self, pid: int) -> None:
        """Put limits on the agent whenever the orchestrator asks for it, and tell what the kernel then holds."""
        self._limit_now.clear()
        while True:
            await self._limit_now.wait()
            self._limit_now.clear()
            wanted = self._wanted
            if wanted is None or wanted.limits is None:
                continue
            try:
                held = await asyncio.to_thread(self._limiter.hold, wanted.limits, pid)
                self._limited = (wanted.limited, held, "")
            except LimitError as error:
                self._limited = (wanted.limited, None, f"{error}; {error.hint}" if error.hint else str(error))
            except (OSError, ValueError, LookupError) as error:
                self._limited = (wanted.limited, None, in_words(error))
            self._publish()

    async def _plugins(self, wanted: BoardOrder) -> list[str]:
        """The agent's option that names the folder of its plug-ins. Raises EdgebedError."""
        if not wanted.plugins:
            return []
        sent, folder = None, self._keys.folder / "plugins"
        if wanted.code and self._about.allow_code:
            sent = await asyncio.to_thread(
                self._service.shard, wanted.code, self._keys.folder / "shards", self._keys.identity
            )
        await asyncio.to_thread(put_plugins, folder, wanted.plugins, sent)
        return ["--plugins", str(folder)]

    async def _start(self, wanted: BoardOrder, shard: Path, more: list[str]) -> asyncio.subprocess.Process:
        arguments = ["--fleet", wanted.fleet, "--device", wanted.device or self._about.board, "--shard", str(shard)]
        arguments += ["--board", "--board-id", self._about.board, *more]
        arguments += ["--accelerator", wanted.accelerator] if wanted.accelerator else []
        host = f"[{self._about.host}]" if ":" in self._about.host else self._about.host
        env = {
            **os.environ,
            **cipher_environment(self._keys.folder),
            "EDGEBED_BROKER": f"mqtts://{host}:{self._about.mqtt_port}",
            "EDGEBED_IDENTITY": str(self._keys.folder),
            "EDGEBED_ALONE_S": str(wanted.alone_s),
        }
        return await asyncio.create_subprocess_exec(
            *module_command("edge_agent.entry", *arguments), env=env, stderr=asyncio.subprocess.PIPE
        )


def _without_limits(order: BoardOrder) -> BoardOrder:
    return msgspec.structs.replace(order, limits=None, limited=0)


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """What the agent says goes on to this process's own output; returns the last lines when it ends."""
    assert process.stderr is not None
    last: deque[str] = deque(maxlen=2)
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:  # a line longer than any of ours
            continue
        if not line:
            return " / ".join(last)
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        text = line.decode("utf-8", "replace").strip()
        if text:
            last.append(text[:MOST_WORDS])


def how_ended(code: int) -> str:
    """Of an agent's process that failed."""
    if code == -signal.SIGILL:
        return (
            "the agent was ended by SIGILL: this build of torch has instructions that this processor lacks (a Raspberry"
            " Pi 4 does not run torch 2.4 to 2.10); install torch 2.11 or newer, or one before 2.4"
        )
    return f"the agent was ended by signal {-code}" if code < 0 else f"the agent ended with exit code {code}"
