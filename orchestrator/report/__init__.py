"""Pages and traces of a run, made from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.records.facts import RunFacts, sort
from orchestrator.records.reader import read
from orchestrator.records.summary import load_summary, summarise_facts, write_summary
from orchestrator.records.timeline import RoundTimeline, timelines
from orchestrator.report import charts
from orchestrator.report.page import comparison_page, report_page
from orchestrator.report.trace import write_trace

MOST_SEGMENTS = 60_000
"""Bars that a browser draws without effort; of longer runs only telling rounds can be chosen."""


def write_results(folder: Path) -> charts.Summary:
    """Write summary, calibration, report and trace of the run in `folder`, and return the summary."""
    run = sort(read(folder / "records.jsonl"))
    summary = write_summary(folder, run)
    _write_report(folder, run, summary)
    return summary


def write_report(folder: Path) -> None:
    """Write `report.html` and `trace.json` of the run in `folder` from its records."""
    run = sort(read(folder / "records.jsonl"))
    _write_report(folder, run, summarise_facts(run))


def _write_report(folder: Path, run: RunFacts, summary: charts.Summary) -> None:
    _write(folder / "report.html", report_page(run, summary, _drawn(run, summary)))
    write_trace(folder / "trace.json", run)


def write_comparison(folders: Sequence[Path], path: Path) -> None:
    """Write one page that shows several runs together."""
    _write(path, comparison_page([load_summary(folder) for folder in folders]))


def _drawn(run: RunFacts, summary: charts.Summary) -> list[tuple[str, RoundTimeline]]:
    """The rounds whose Gantt the page offers."""
    phases = sum(len(device.phases) for stretch in run.stretches for device in stretch.devices.values())
    per_round = max(1, phases // max(1, summary["rounds"]))
    finished = [facts.number for _, facts in run.rounds() if facts.finished is not None]
    labels = {finished[index]: label for index, label in charts.choose(summary, MOST_SEGMENTS // per_round)}
    return [(labels[timeline.facts.number], timeline) for timeline in timelines(run, labels)]


def _write(path: Path, text: str) -> None:
    """Written aside and renamed, so that a reader never sees half a page."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


__all__ = ["write_comparison", "write_report", "write_results"]
