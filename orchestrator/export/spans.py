"""A run as OpenTelemetry spans (run, rounds, tasks of the devices, phases), written to a file or sent to a collector.

Spans begin at the wall-clock time of the run's start. Times within the run are divided by the dilation, as in every
output. Every span names the run; the spans of a device name the device, those of a round its number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from edgebed.errors import UsageError
from orchestrator.export import load
from orchestrator.records.run_index import RunFacts, Session
from orchestrator.records.timeline.timeline import OF_A_TASK, RoundTimeline, timelines

AT_ONCE = 512
"""Spans per request to a collector."""


def write_spans(run: RunFacts, target: str) -> int:
    """Send all spans to the collector at `target` (http:// or https://, the full address of its traces), or write them
    to the file of that name, one JSON object per line. Returns the number of spans.

    Raises:
        UsageError: opentelemetry-sdk is not installed, or the collector refuses.
    """
    sdk = load("opentelemetry.sdk.trace", "OpenTelemetry")
    export = load("opentelemetry.sdk.trace.export", "OpenTelemetry")
    if not target.startswith(("http://", "https://")):
        with Path(target).open("w", encoding="utf-8") as file:
            line: Callable[[Any], str] = lambda span: span.to_json(indent=None) + "\n"  # noqa: E731
            return _Spans(sdk, export.ConsoleSpanExporter(out=file, formatter=line), target).write(run)
    otlp = load("opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLP")
    return _Spans(sdk, otlp.OTLPSpanExporter(endpoint=target, timeout=10), target).write(run)


class _Spans:
    """Builds spans with given times, and sends them in requests of AT_ONCE spans."""

    def __init__(self, sdk: Any, exporter: Any, target: str) -> None:
        self._sdk, self._exporter, self._target = sdk, exporter, target
        self._waiting: list[Any] = []
        self.count = 0

    def write(self, run: RunFacts) -> int:
        resources = load("opentelemetry.sdk.resources", "OpenTelemetry")
        started = run.started
        about: dict[str, Any] = {"service.name": "edgebed", "edgebed.run": started.run}
        about["edgebed.method"] = started.method
        about |= {"edgebed.enforcement": run.enforcement, "edgebed.dilation": run.dilation}
        provider = self._sdk.TracerProvider(resource=resources.Resource.create(about), shutdown_on_exit=False)
        self._tracer = provider.get_tracer("edgebed")
        self._inside = load("opentelemetry.trace", "OpenTelemetry").set_span_in_context
        parents: dict[int, tuple[Any, Callable[[int], int]]] = {}
        for session in run.sessions:
            clock = _clock(session)
            span = self._tracer.start_span(f"run {session.started.run}", start_time=clock(session.started.at_ns))
            parents[id(session)] = self._inside(span), clock
            self._end(span, clock(max(session.end_ns, session.started.at_ns)))
        owner = {id(facts): session for session, facts in run.rounds()}
        for timeline in timelines(run):
            context, clock = parents[id(owner[id(timeline.facts)])]
            self._round(timeline, functools.partial(self._make, clock), context)
        self._send()
        self._exporter.shutdown()
        return self.count

    def _round(self, timeline: RoundTimeline, make: Callable[..., Any], context: Any) -> None:
        facts = timeline.facts
        about: dict[str, Any] = {"round": facts.number + 1, "lane": facts.lane}
        inside = make(f"round {facts.number + 1}", facts.start_ns, facts.end_ns, context, about)
        for own in facts.own:
            make(own.name, own.start_ns, own.end_ns, inside, about)
        for name, device in timeline.devices.items():
            of_task = [s for s in device.segments if s.name in OF_A_TASK]
            said = about | {"device": name}
            task = inside
            if of_task:
                task = make(f"task {name}", of_task[0].start_ns, of_task[-1].end_ns, inside, said)
            for s in device.segments:
                more = {"for": s.detail} if s.detail else {}
                make(s.name, s.start_ns, s.end_ns, task if s.name in OF_A_TASK else inside, said | more)

    def _make(
        self, clock: Callable[[int], int], name: str, start_ns: int, end_ns: int, context: Any, about: dict[str, Any]
    ) -> Any:
        """Make a finished span; returns the context that makes other spans its children."""
        span = self._tracer.start_span(name, context=context, start_time=clock(start_ns), attributes=about)
        self._end(span, clock(end_ns))
        return self._inside(span)

    def _end(self, span: Any, at: int) -> None:
        span.end(end_time=at)
        self._waiting.append(span)
        self.count += 1
        if len(self._waiting) >= AT_ONCE:
            self._send()

    def _send(self) -> None:
        spans, self._waiting = self._waiting, []
        if spans and self._exporter.export(spans).name != "SUCCESS":
            raise UsageError(
                f"{self._target} did not accept the spans",
                hint="give the address of a collector: http://host:4318/v1/traces",
            )


def _clock(session: Session) -> Callable[[int], int]:
    """Maps the orchestrator's monotonic ns to ns since 1970; from the session's start on, divided by its dilation."""
    began, dilation = session.started.at_ns, session.started.dilation
    epoch = int(datetime.fromisoformat(session.started.wall).timestamp()) * 1_000_000_000
    return lambda at_ns: epoch + int((at_ns - began) / dilation)
