"""What of a run folder is compared: every value that a second run of the same code gives again, to the bit.

A recording of a run is a dict with the parts `weights`, `progress`, `summary`, `records` and `trace` (or, for a real
run, `weights` and `rounds`). What is left out is named here, with the reason. Nothing else is.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from safetensors import safe_open

LEFT_OUT = {
    "records.run_started.wall": "wall-clock time of the start",
    "records.run_started.series": "a random id",
    "summary.started": "wall-clock time of the start",
    "summary.series": "a random id",
    "progress.simulation": "the length of the records with the run's id, and laws measured on the host",
}
"""Of every run. The run's id (date, time and a random part) and the random end of a task's id are replaced wherever
they stand: `RUN`, `RUN/ROUND/DEVICE/TASK`."""

LEFT_OUT_MEASURED_CUTS = {
    "records.cut_profiled.device_s": "seconds measured on the host",
    "records.cut_profiled.server_s": "seconds measured on the host",
    "records.round_started.notes.estimates_s": "follow from the measured seconds of the cuts",
    "records.round_started.notes.t_max_s": "follows from the measured seconds of the cuts",
    "records.round_started.notes.server_factor": "follows from the measured seconds of the cuts",
    "records.round_started.predicted_s": "follow from the measured seconds of the cuts",
    "progress.method.server_factor": "follows from the measured seconds of the cuts",
    "summary.predicted_s": "follow from the measured seconds of the cuts",
}
"""Of DTFL without `simulation.as_if`, where an older version measured the cuts on the host before the first round."""

NO_ORDER = {
    "summary.what_if.slowest_links": "names from a set: their order changes with the hash seed of the process",
}
"""Lists that are compared in alphabetical order."""

PROGRESS = "edgebed-progress"
"""The metadata of a checkpoint that holds the run's progress."""


def simulated(folder: Path) -> dict[str, Any]:
    """The recording of a simulated run."""
    text = (folder / "records.jsonl").read_text()
    left_out = LEFT_OUT | (LEFT_OUT_MEASURED_CUTS if _measured_cuts(text) else {})
    weights, progress = checkpoint(folder / "checkpoint.safetensors")
    parts = {
        "weights": weights,
        "progress": progress,
        "summary": json.loads((folder / "summary.json").read_text()),
        "records": [json.loads(line) for line in text.splitlines()],
        "trace": json.loads((folder / "trace.json").read_text()),
    }
    return {name: without(named(part, folder.name), name, left_out) for name, part in parts.items()}


def checkpoint(path: Path) -> tuple[dict[str, str], Any]:
    """Of every tensor its dtype, shape and SHA-256 by name; and the run's progress."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: _tensor(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
        return tensors, json.loads((file.metadata() or {})[PROGRESS])


def real(folder: Path) -> dict[str, Any]:
    """The recording of a real run: nothing that was measured in seconds, or follows from it.

    The weights; and by round the plan, who was merged, why it ended, accuracy and loss, and every transfer's bytes by
    device, up and down.
    """
    weights, progress = checkpoint(folder / "checkpoint.safetensors")
    rounds: dict[str, Any] = {}
    for line in (folder / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "round" in record:
            _add(rounds.setdefault(str(record["round"]), {"up": {}, "down": {}}), record)
    return {
        "weights": weights,
        "progress": {name: progress[name] for name in ("round", "lr", "accuracy", "best_accuracy")},
        "rounds": named(rounds, folder.name),
    }


def _add(found: dict[str, Any], record: dict[str, Any]) -> None:
    """What a real run's record says that another run of the same plan says, too."""
    kind = record["type"]
    if kind == "round_started":
        found["plan"] = {name: record[name] for name in ("lr", "devices", "assignments", "lane")}
    elif kind == "round_finished":
        found["merged"], found["why"] = record["merged"], record["why"]
    elif kind == "evaluated":
        found["evaluated"] = {name: record[name] for name in ("accuracy", "loss", "extra")}
    elif kind == "device_out":
        found.setdefault("out", {})[record["device"]] = record["how"]
    elif kind == "task_sent":
        found.setdefault("task_body_bytes", {})[record["device"]] = record["bytes"]
    elif kind in UP or kind in DOWN:
        part, device = found["up" if kind in UP else "down"], record["device"]
        part.setdefault(device, {}).setdefault(kind, []).append(record["bytes"])


FRAMES = re.compile(r"rounds\.\d+\.(up|down)\.")
"""Places in a real run's recording that hold the bytes of a transfer's frames."""

PREDECESSOR_BYTES = 24
"""By how much these may differ: a frame names the transfer before it while that is still under way (`Chunk.after`),
which is a matter of milliseconds. The bodies are compared by the weights that come of them, and by `task_sent`."""

UP = ("upload_received", "update_received")
DOWN = ("task_delivered", "reply_delivered")


def named(value: Any, run: str) -> Any:
    """`value` with the run's id and the random end of tasks' ids replaced."""
    text = json.dumps(value).replace(run, "RUN")
    return json.loads(re.sub(r"(RUN/\d+/[^/\"]+/)[0-9a-f]+", r"\1TASK", text))


def without(value: Any, place: str, left_out: dict[str, str]) -> Any:
    """`value` without the fields in `left_out`. A record's place is `records.TYPE`; lists add nothing to a place."""
    if isinstance(value, list):
        value = sorted(value) if place in NO_ORDER else value
        return [without(each, _of_record(each, place), left_out) for each in value]
    if isinstance(value, dict):
        return {
            name: without(inner, f"{place}.{name}", left_out)
            for name, inner in value.items()
            if f"{place}.{name}" not in left_out
        }
    return value


def _of_record(value: Any, place: str) -> str:
    return f"{place}.{value['type']}" if place == "records" else place


def _measured_cuts(records: str) -> bool:
    return '"type":"cut_profiled"' in records and "(as_if)" not in records


def _tensor(value: Any) -> str:
    data = value.contiguous().numpy().tobytes()
    return f"{value.dtype} {list(value.shape)} {hashlib.sha256(data).hexdigest()}"
