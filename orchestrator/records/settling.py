"""Works out the stragglers of rounds as their phases come in, and closes rounds of which all is known. Pure."""

from __future__ import annotations

from orchestrator.records.run_state import OpenDevice, OpenRound, RunState
from orchestrator.records.stragglers import CAUSES, Costs, judge


def settle(state: RunState) -> None:
    """Work out the stragglers of rounds of which something new is known; close those of which all is."""
    for number in sorted(state.stale):
        opened = state.open.get(number)
        if opened is None:
            continue
        done = {name: device for name, device in opened.devices.items() if device.seconds is not None}
        complete = all(device.tail_end_ns for device in done.values())
        if opened.finished:
            _straggler(state, opened, done)
            if complete:
                close(state, number)
    state.stale.clear()


def _straggler(state: RunState, opened: OpenRound, done: dict[str, OpenDevice]) -> None:
    row = state.rows[opened.row]
    row.rev = state.rev
    if len(done) < 2 or state.session.started.method == "serve":
        return
    seconds = {name: device.seconds or 0.0 for name, device in done.items()}
    reported = {name: device for name, device in done.items() if device.tail_end_ns}
    found = judge(seconds, {name: _costs(device, opened.plan_end_ns) for name, device in reported.items()})
    row.straggler, row.gap_s, row.why = found.device, found.gap_s / state.dilation, found.why
    row.behind_s = tuple(found.behind_s[cause] / state.dilation for cause in CAUSES) if found.behind_s else ()


def _costs(device: OpenDevice, plan_end_ns: int) -> Costs:
    """With what the ends of the download and of the upload tail tell: the waits before and after them."""
    costs = device.costs
    if device.download_end_ns:
        costs.downlink = max(0, device.download_end_ns - plan_end_ns)
    costs.server = max(0, device.done_ns - device.tail_end_ns)
    return costs


def close(state: RunState, number: int) -> None:
    opened = state.open.pop(number)
    for task in [task for task, (of, name) in state.tasks.items() if of == number and name in opened.devices]:
        del state.tasks[task]
