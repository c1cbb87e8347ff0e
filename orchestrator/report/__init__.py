"""Pages and traces of a run, made from its records alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from edgebed.errors import FileError, UsageError
from orchestrator.files.output import replace
from orchestrator.records.account import load_summary, whole, write_account, write_summary
from orchestrator.records.live.run_state import RunState
from orchestrator.records.live.settling import explained
from orchestrator.records.live.summing import summary_of
from orchestrator.records.reader import read
from orchestrator.records.run_index import RunFacts
from orchestrator.records.shown.over_time import OverTime
from orchestrator.records.shown.round_view import median_round, round_view
from orchestrator.records.summary import Summary
from orchestrator.records.words.formatting import seconds
from orchestrator.report import charts
from orchestrator.report.look import LOOK, OF_ONE_RUN, Look, check
from orchestrator.report.page import Collected, comparison_page, mean_phases, report_page
from orchestrator.report.trace import TraceFile

MOST_SEGMENTS = 25_000
"""Segments of all rounds that can be chosen; of longer runs only special rounds can be. The page stays below 2 MB."""


def write_results(folder: Path) -> Summary:
    """Write summary, calibration, report and trace of the run in `folder`, and return the summary."""
    with _without_collector():
        state = whole(read(folder / "records.jsonl"))
        summary = _write_report(folder, state)
        write_account(folder, state, summary)
        return summary


def write_what_fits(folder: Path, notify: Callable[[str], None]) -> None:
    """Summary, report and trace of a run; where the disk is too full for all, the summary alone. Reports what is
    missing; raises no OSError."""
    try:
        write_results(folder)
        return
    except OSError as error:
        failure = FileError.of(error, folder)
    with suppress(OSError):
        for part in folder.glob("*.part"):
            part.unlink()
        write_summary(folder)
    notify(f"the report could not be written: {failure}; `edgebed report {folder.name}` writes it once there is room")


def _write_report(folder: Path, state: RunState) -> Summary:
    """One pass over the rounds: each timeline is made once for summary, charts and trace."""
    run = state.run
    labels = _chosen(run)
    collected = Collected(experiment=_text(folder / "experiment.yaml"))
    trace, over_time = TraceFile(folder / "trace.json", run), OverTime(state)
    for timeline in explained(state):
        trace.add(timeline)
        over_time.add(timeline)
        if timeline.facts.number in labels:
            collected.drawn.append((labels[timeline.facts.number], round_view(timeline, timeline.facts.end_ns)))
        if timeline.facts.finished is not None:
            collected.phases.append((timeline.facts.number + 1, mean_phases(timeline)))
    trace.close()
    collected.over_time = over_time.result()
    summary = summary_of(state)
    replace(folder / "report.html", report_page(run, summary, collected).encode())
    return summary


def write_figures(
    folder: Path, paths: Sequence[Path], only: str | None = None, look: Look = LOOK, round: int | None = None
) -> list[Path]:
    """Write figures for papers of the run in `folder`, and return the files written.

    Args:
        only: the name of one figure (`look.OF_ONE_RUN`); None: all that the run has.
        round: the number, from 1, of the round whose Gantt is drawn; None: `median_round`.

    Raises:
        UsageError: no such figure or round, or a file that cannot be written in any format.
    """
    from orchestrator.report import figures  # matplotlib takes its time; runs need none of it

    check(paths, only, OF_ONE_RUN)
    with _without_collector():
        state = whole(read(folder / "records.jsonl"))
        ended = _finished(state.run)
        wanted = median_round(ended) if round is None else round - 1
        if round is not None and wanted not in {number for _, number in ended}:
            raise UsageError(f"{folder.name} has no finished round {round}", hint=f"it has {len(ended)} of them")
        phases, view = [], None
        for timeline in explained(state):
            if timeline.facts.finished is not None:
                phases.append((timeline.facts.number + 1, mean_phases(timeline)))
            if timeline.facts.number == wanted:
                view = round_view(timeline, timeline.facts.end_ns)
        drawn = figures.Drawn(summary_of(state), phases, view)
    return figures.write_figures(drawn, paths, only, look)


def write_comparison(folders: Sequence[Path], path: Path, baseline: Summary | None = None) -> None:
    """Write one page that shows several runs together. `baseline`: that speed-ups refer to at first."""
    replace(path, comparison_page([load_summary(folder) for folder in folders], baseline).encode())


def _finished(run: RunFacts) -> list[tuple[float, int]]:
    """Seconds and numbers of the rounds that ended."""
    return [(f.finished.seconds / f.dilation, f.number) for _, f in run.rounds() if f.finished is not None]


def _chosen(run: RunFacts) -> dict[int, str]:
    """Numbers and labels of the rounds whose Gantt the page offers."""
    phases = sum(len(device.phases) for session in run.sessions for device in session.devices.values())
    finished = _finished(run)
    chosen = charts.choose([length for length, _ in finished], MOST_SEGMENTS // max(1, phases // max(1, len(finished))))
    return {finished[i][1]: f"round {finished[i][1] + 1}, {seconds(finished[i][0])}{why}" for i, why in chosen}


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch the garbage collector off: it would walk through millions of facts that all stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
