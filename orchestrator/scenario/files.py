"""Reads scenario files and the traces that events name. Names are relative to the file that holds them; what is not
there is looked up among the files that come with Edgebed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edgebed import typed
from edgebed.errors import UsageError
from edgebed.typed import nearest
from orchestrator.files.shipped import shipped
from orchestrator.files.yaml_file import load_yaml
from orchestrator.scenario.agenda import Scenario
from orchestrator.scenario.spec import ScenarioEvent, ScenarioFile
from orchestrator.scenario.traces import Trace, parse_csv, parse_mahimahi

MOST_BYTES = 64 * 2**20
"""Largest trace file."""


class Listed(msgspec.Struct, frozen=True):
    """Events whose traces have absolute paths, and what messages say of a place such as `[0].device`."""

    events: tuple[ScenarioEvent, ...]
    where: Callable[[str], str]


def listed(named: str | Sequence[ScenarioEvent], near: Path) -> Listed:
    """The events that an experiment lists, or those of the file that it names. `near`: the experiment file. Raises
    UsageError: a missing file or one that is no scenario; with place and hint."""
    if not isinstance(named, str):
        return Listed(_located(named, near), lambda place: f"{near}: scenario{place}")
    path = _found(named, near, "scenarios", f"{near}: scenario")
    document = load_yaml(path)
    events = typed.convert(document, ScenarioFile, document.where).events
    return Listed(_located(events, path), lambda place: document.where(f"events{place}"))


def load_scenario(named: str | Sequence[ScenarioEvent], near: Path) -> Scenario:
    """The events with their traces. Raises UsageError like `listed`, and for a trace that cannot be read."""
    found = listed(named, near)
    traces = {
        number: tuple(_trace(event, key, name) for key, name in event.trace.files.items())
        for number, event in enumerate(found.events)
        if event.trace is not None
    }
    return Scenario(found.events, traces)


def _located(events: Sequence[ScenarioEvent], near: Path) -> tuple[ScenarioEvent, ...]:
    return tuple(_with_paths(event, near, number) for number, event in enumerate(events))


def _with_paths(event: ScenarioEvent, near: Path, number: int) -> ScenarioEvent:
    if event.trace is None:
        return event
    place = f"{near}: event {number + 1}: trace"
    paths = {key: str(_found(name, near, "traces", f"{place}.{key}")) for key, name in event.trace.files.items()}
    return msgspec.structs.replace(event, trace=msgspec.structs.replace(event.trace, **paths))


def _found(name: str, near: Path, kind: str, place: str) -> Path:
    """The file of that name, relative to the folder of `near`, or one that is shipped in profiles/`kind`."""
    folders = (near.parent, shipped("profiles") / kind)
    try:
        for folder in folders:
            if (folder / name).is_file():
                return (folder / name).resolve()
    except (OSError, ValueError):  # a name that no file can have
        pass
    there = sorted(path.name for folder in folders for path in folder.glob("*") if path.is_file())
    raise UsageError(
        f"{place}: there is no file {typed.shown(name)}{nearest(name, there)}",
        hint=f"looked in {folders[0].resolve()} and {folders[1]}; a name is relative to the file that gives it",
    )


def _trace(event: ScenarioEvent, key: str, name: str) -> Trace:
    assert event.trace is not None
    text = _text(Path(name))
    return parse_csv(text, name) if key == "file" else parse_mahimahi(text, name, key, event.trace.interval_s)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES // 2**20} MiB", hint="cut the trace")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text", hint="a trace is a CSV file, or a file with one time per line") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="see the file's owner and mode") from None
