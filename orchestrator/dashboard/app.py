"""The server of the page: static files, a stream of changes per page, answers about a round, a device or several runs.

Each run is read once for all pages. Reading happens in a thread, and its cost is bounded (`SHARE`), since the devices
of a run may share this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from orchestrator.dashboard import files
from orchestrator.dashboard.gantt import gantt
from orchestrator.dashboard.run_list import RunList
from orchestrator.dashboard.tail import RecordTail
from orchestrator.dashboard.view import Cursor, changes, history, shown
from orchestrator.records.account import stored_summary
from orchestrator.records.compare.page import compared
from orchestrator.records.live.run_state import RunState
from orchestrator.records.live.summing import summary_of
from orchestrator.records.shown.metrics import exposition
from orchestrator.records.shown.over_time import of_state
from orchestrator.records.summary import Summary
from orchestrator.records.words import palette
from orchestrator.records.words.vocabulary import for_page

STATIC = Path(__file__).parent / "static"

TICK_S = 1.0
"""A page gets changes at most this often."""

LIST_S = 2.0
"""The list of runs is checked this often."""

SHARE = 0.02
"""Of one core, for the Gantt of the round in progress."""

GANTT_LIMIT = 24 << 20
"""Bytes of records read for one Gantt."""

MOST_COMPARED = 60
"""Runs of one comparison."""

SCRAPED = 20
"""Number of runs in a scrape that names none."""

LATE_S = 20.0
"""Phases of a round may be reported this long after its end."""

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class FollowedRun:
    """One run that pages look at. Used by one thread at a time."""

    def __init__(self, tail: RecordTail) -> None:
        self.tail = tail
        self._lock = asyncio.Lock()
        self._live: tuple[tuple[int, int], dict[str, Any] | None] = ((-1, -1), None)
        self._next_live = 0.0

    async def within(self, work: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(work)

    async def update(self) -> None:
        """Take in what was written since, block by block, so that other requests are answered in between."""
        if self._lock.locked() or self.tail.pending() > 0:
            while await self.within(self.tail.step):
                pass
            await self.within(self.tail.catch_up)

    async def live_gantt(self) -> tuple[int, dict[str, Any] | None]:
        """(version, Gantt of the round that `shown` chooses), made again as often as `SHARE` allows."""
        number = shown(self.tail.state)
        if number is None:
            return -1, None
        key = (number, self.tail.offset)
        now = time.monotonic()
        if key != self._live[0] and (now >= self._next_live or key[0] != self._live[0][0]):
            made = await self.within(lambda: self.gantt(number))
            self._next_live = time.monotonic() + (time.monotonic() - now) / SHARE
            self._live = (key, made)
        return self._live[0][1], self._live[1]

    def gantt(self, number: int) -> dict[str, Any] | None:
        """The Gantt of a round, from the records around it."""
        state = self.tail.state
        index = next((i for i, row in enumerate(state.rows) if row.number == number), None)
        if index is None:
            return None
        row, before = state.rows[index], state.rows[max(0, index - 1)]
        records = self.tail.slice(before.offset, self._end(state, index), GANTT_LIMIT)
        return gantt(records, state.sessions[row.session], row)

    def _end(self, state: RunState, index: int) -> int | None:
        """Offset up to which records may speak of a round; None: to the end."""
        rows = state.rows
        end_ns = rows[index].start_ns + ((rows[index].seconds or 0.0) * state.dilation + LATE_S) * 1e9
        late = (r for r in rows[index + 2 :] if r.start_ns > end_ns or r.session != rows[index].session)
        after = next(late, None)
        return None if after is None else after.offset


class DashboardAPI:
    """Answers the requests of all pages."""

    def __init__(self, run_list: RunList) -> None:
        self._run_list = run_list
        self._runs: dict[str, FollowedRun] = {}
        self._cards: tuple[float, list[dict[str, Any]]] = (-1e9, [])
        self._closing = asyncio.Event()
        self._drawing = asyncio.Lock()
        self._steps: list[tuple[str, float]] = []

    def step(self, line: str) -> None:
        """What the experiment beside the page does before its next round: prepare, calibrate, profile."""
        self._steps = [*self._steps[-9:], (line, time.monotonic())]

    def close(self) -> None:
        """End all streams, or the server would wait for them."""
        self._closing.set()

    async def cards(self) -> list[dict[str, Any]]:
        if time.monotonic() - self._cards[0] >= LIST_S:
            self._cards = (time.monotonic(), self._cards[1])
            self._cards = (time.monotonic(), await asyncio.to_thread(self._run_list.cards))
        return self._cards[1]

    async def fresh(self, name: str) -> FollowedRun | None:
        """The run, up to date; None: there is none of that name."""
        if name not in self._runs:
            await self.cards()
            tail = await asyncio.to_thread(self._run_list.tail, name)
            if tail is None:
                return None
            self._runs.setdefault(name, FollowedRun(tail))
        await self._runs[name].update()
        return self._runs[name]

    # ---- requests ----

    async def events(self, request: Request) -> Response:
        """Server-sent events: `runs` (the list), `steps` (before rounds), and of the chosen run `state` and `gantt`."""
        name = request.query_params.get("run", "")
        stream = self._events(name)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _events(self, name: str) -> AsyncIterator[bytes]:
        cursor, gantt_seen, listed, missed, spoken = Cursor(), -2, b"", False, time.monotonic()
        steps: list[tuple[str, float]] = []
        yield b"retry: 2000\n\n"
        while not self._closing.is_set():
            out = []
            cards = _encode(await self.cards())
            if cards != listed:
                listed = cards
                out.append(_event("runs", cards))
            if steps != self._steps:
                steps = self._steps
                out.append(_event("steps", _encode([(line, time.monotonic() - at) for line, at in steps])))
            run = await self.fresh(name) if name else None
            if name and run is None and not missed:
                missed = True
                out.append(_event("missing", b"{}"))
            if run is not None:
                changed = await run.within(functools.partial(_changes, run.tail, cursor))
                if changed is not None:
                    out.append(_event("state", changed))
                version, made = await run.live_gantt()
                if version != gantt_seen:
                    gantt_seen = version
                    out.append(_event("gantt", _encode(made)))
            if out:
                spoken = time.monotonic()
                yield b"".join(out)
            elif time.monotonic() - spoken > 15:
                spoken = time.monotonic()
                yield b": still here\n\n"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._closing.wait()
        yield _event("bye", b"{}")

    async def round(self, request: Request) -> Response:
        """The Gantt of one round; rounds are counted from 1 here."""
        number = request.path_params["number"] - 1
        return await self._told(request, lambda run: run.gantt(number))

    async def device(self, request: Request) -> Response:
        """All rounds of one device."""
        name = request.path_params["device"]
        return await self._told(request, lambda run: history(run.tail.state, name))

    async def file(self, request: Request) -> Response:
        """Report or trace of a run."""
        folder, name = await self._folder(request), request.path_params["name"]
        return await files.file(folder, name) if folder is not None and name in files.OFFERED else _json(None)

    async def figures(self, request: Request) -> Response:
        """Figures for papers, of a run that is over; one after the other."""
        folder = await self._folder(request)
        run = None if folder is None else await self.fresh(request.path_params["run"])
        if folder is None or run is None or not run.tail.state.sessions or not run.tail.state.ended:
            return _json(None)
        async with self._drawing:
            return await files.figures(folder)

    async def _folder(self, request: Request) -> Path | None:
        await self.cards()
        return self._run_list.path(request.path_params["run"])

    async def over_time(self, request: Request) -> Response:
        """The whole run: what every device did when, and how much of its limits it used."""
        return await self._told(request, lambda run: of_state(run.tail.state))

    async def _told(self, request: Request, tell: Callable[[FollowedRun], Any]) -> Response:
        """What `tell` says of the run that is asked for; 404 where it says None, or there is no such run."""
        run = await self.fresh(request.path_params["run"])
        return _json(None if run is None else await run.within(lambda: tell(run)))

    async def compare(self, request: Request) -> Response:
        """What `orchestrator.records.compare.page` says of several runs; the last is the baseline at first."""
        names = request.query_params.get("runs", "").split(",")[:MOST_COMPARED]
        return _json(await asyncio.to_thread(compared, [each async for each in self._summaries(names)]))

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format: the runs that are named, or the newest of the list."""
        asked = [name for name in request.query_params.get("runs", "").split(",") if name]
        names = asked or [card["id"] for card in (await self.cards())[:SCRAPED]]
        found: dict[str, Summary] = {}
        async for summary in self._summaries(names):
            found.setdefault(summary.run, summary)  # two folders may hold copies of one run
        text = await asyncio.to_thread(exposition, list(found.values()))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _summaries(self, names: Iterable[str]) -> AsyncIterator[Summary]:
        """What is known of these runs, as far as they have begun."""
        for name in names:
            run = await self.fresh(name)
            if run is not None and run.tail.state.sessions:
                yield await run.within(functools.partial(_summary, run.tail))


def _summary(tail: RecordTail) -> Summary:
    """What is known of a run for a scrape or a comparison."""
    return stored_summary(tail.path.parent) or summary_of(tail.state)


def _changes(tail: RecordTail, cursor: Cursor) -> bytes | None:
    found = changes(tail.state, cursor, time.monotonic_ns())
    return None if found is None else _encode(found)


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _json(value: Any) -> Response:
    return Response(_encode(value), 404 if value is None else 200, media_type="application/json")


def make_app(api: DashboardAPI) -> Starlette:
    """The page as an ASGI application; `auth.Auth` goes around it."""

    async def index(request: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html; charset=utf-8")

    async def vocabulary(request: Request) -> Response:
        """The words of `orchestrator.records.words.vocabulary` as a module."""
        lines = [f"export const {name} = {_encode(words).decode()};" for name, words in for_page().items()]
        return Response("\n".join(lines), media_type="text/javascript; charset=utf-8")

    async def colours(request: Request) -> Response:
        """The colours of `orchestrator.records.words.palette`."""
        return Response(palette.css(), media_type="text/css; charset=utf-8")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/vocabulary.js", vocabulary),
            Route("/palette.css", colours),
            Route("/events", api.events),
            Route("/api/runs/{run}/rounds/{number:int}", api.round),
            Route("/api/runs/{run}/devices/{device:path}", api.device),
            Route("/api/runs/{run}/time", api.over_time),
            Route("/api/compare", api.compare),
            Route("/runs/{run}/figures.pdf", api.figures),
            Route("/runs/{run}/{name}", api.file),
            Route("/metrics", api.metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )
