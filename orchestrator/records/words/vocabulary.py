"""What people read for the names in records: phases, causes, events, what a device does. Pure.

Terminal, report, figures, comparison and live page use these words. Files keep the names: a phase `upload_tail` is
"upload tail" on every page and in every table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edgebed.errors import counted
from orchestrator.records.words.palette import WAITS


def server_note(dilation: float, cpus: float | None) -> str:
    """What a dilation does to the server, in a sentence; "" where nothing is dilated.

    Args:
        cpus: of the server, before dilation; None: it has what the host leaves.
    """
    if dilation <= 1:
        return ""
    if cpus is None:
        return (
            "The server is not dilated: it runs at full speed, but its seconds are divided by D like those of the "
            "devices. So they look D times too short. `server: {cpus: N}` in the experiment slows it as well."
        )
    return (
        f"The server halves have {counted(cpus, 'CPU')}, and are slowed D times, as the devices are. Planning, "
        "merging, checkpoints and broker are not slowed, so their seconds look D times too short."
    )


def threads_note(dilation: float, cpus: Mapping[str, float]) -> str:
    """What one thread makes of devices with several CPUs, in a sentence; "" where there is none.

    Args:
        cpus: by profile, before dilation, of the devices with one thread.
    """
    single = [f"{name} ({cpus[name]:g} CPUs)" for name in sorted(cpus) if cpus[name] >= 2]
    if not single:
        return ""
    run, no_threads = (
        ("run", "their profiles set no `threads`") if len(single) > 1 else ("runs", "its profile sets no `threads`")
    )
    used = (
        "One thread uses one CPU at most, so the others are idle."
        if dilation <= 1
        else "One thread uses at most D CPUs (D is the dilation), and each makes it faster in full. On a real device "
        "with several cores a small network gains less."
    )
    return f"{', '.join(single)} {run} one thread, because {no_threads}. {used}"


UNLIMITED = "unlimited: a real board"
"""What every output says of a device that has no limits."""

HELD = (
    "Compute time is held: a device does the real work, then waits until the core of this reference would have "
    "finished it. Its CPU quota is only an upper limit. Links, queues, the order at the server, memory, loss and the "
    "protocol are real."
)
OF_HOST = "Compute time is what the work takes on this host at this hour; another host or hour gives other seconds."


def origins_text(reference_s: Mapping[str, float]) -> str:
    """From where the CPU seconds of a reference are known; "" where none are kept."""
    total = sum(reference_s.values())
    known = {"recorded": "recorded", "layers": "by layers", "index": "by the index"}
    parts = (f"{seconds / total:.0%} {known[origin]}" for origin, seconds in sorted(reference_s.items()) if seconds)
    return ", ".join(parts) if total else ""


def guessed_share(reference_s: Mapping[str, float]) -> float:
    """Share of a reference's CPU seconds that its file does not have as recorded pieces."""
    total = sum(reference_s.values())
    return 1 - reference_s.get("recorded", 0.0) / total if total else 0.0


def held_by(enforcement: str, unlimited: Sequence[str] = (), limited: Sequence[str] = ()) -> str:
    """What holds the limits of a fleet, in words.

    Args:
        unlimited, limited: names of the devices that are real boards, without limits and with them.
    """
    if enforcement == "unlimited":
        return "unlimited: real boards"
    also = f", {held_by_boards(limited)}" if limited and enforcement != "kernel" else ""
    also += f"; unlimited: {_boards(unlimited)}" if unlimited else ""
    return f"limits held by {enforcement}{also}"


def held_by_boards(limited: Sequence[str]) -> str:
    """What holds the limits of boards that limit themselves."""
    return f"those of {_boards(limited)} by {'their kernels' if len(limited) > 1 else 'its kernel'}"


def _boards(names: Sequence[str]) -> str:
    return f"the real board{'s' if len(names) > 1 else ''} {', '.join(names)}"


PHASES = {
    "dispatch": "its task was not sent yet",
    "download": "its task is on the way to it",
    "decode": "it unpacks what it received",
    "compute": "it computes",
    "encode": "it packs what it sends",
    "blocked": "its upload queue is full",
    "upload_tail": "it sends what is left after its last step",
    "reply_wait": "it waits for a reply to an upload",
    "request_wait": "no request is there to be served",
    "server_wait": "its update is here, its server half has not finished",
    "wait_for_others": "the round waits for other devices",
    "plan": "the orchestrator plans the round",
    "merge": "the orchestrator merges",
    "evaluation": "the orchestrator measures the accuracy",
    "checkpoint": "the orchestrator writes a checkpoint",
    "orchestrator": "the orchestrator does other work",
    "idle": "it does not take part in this round",
    "left_out": "its work was left out of this round",
    "offline": "it is away",
    "unreported": "no report covers this time",
    "working": "it works, and has not reported details yet",
    "server": "a server half computes",
    "probe": "it is measured",
}
"""Names of a device's time, and what they mean. `orchestrator.records.timeline.timeline` defines them exactly."""

CAUSES = {"cpu": "its CPU", "uplink": "its uplink", "downlink": "its downlink", "server": "the server half"}
"""Why a device was behind; the order is that of `RoundRow.behind_s`."""

NO_CAUSE = "no single cause"

DISTURBANCES = {
    "rival": "other programs",
    "steal": "the hypervisor",
    "slow_host": "a slow host",
    "orchestrator": "an overloaded orchestrator",
    "broker": "an overloaded broker",
}
"""What the host disturbed a round by."""

BOARD_MARKS = {
    "under_voltage": "its supply voltage is too low",
    "frequency_cap": "its frequency is capped",
    "throttled": "its firmware throttles it",
    "heat": "it is so hot that it slows itself down",
    "power_mode": "its power mode was changed",
    "governor": "its governor was changed",
}
"""What slows a board down, or was changed on it (`orchestrator.records.board_marks`)."""


def board_mark(mark: str, setting: str) -> str:
    """One of BOARD_MARKS; with what it was changed to, where that is known."""
    return f"{BOARD_MARKS[mark]} to {setting}" if setting else BOARD_MARKS[mark]


BOUNDS = {
    "cpu": "CPU",
    "uplink": "uplink",
    "downlink": "downlink",
    "server": "server",
    "turn": "turn at the server",
    "host": "orchestrator",
    "broker": "broker",
    "deadline": "deadline",
    "lost": "leaving",
    "unknown": "unreported time",
}
"""What bounds a round (`orchestrator.records.critical.critical_path`)."""

WAITED_FOR = {
    "server": "the server",
    "link": "its link",
    "others": "other devices",
    "host": "the orchestrator",
    "cpu": "its own CPU",
    "unknown": "not told apart",
}
"""What a device waited for."""

MEASURED = {
    "cpu busy": ("CPU of a busy loop", "CPU seconds per second beside the quota"),
    "cpu step": ("CPU of training steps", "CPU seconds per second beside the quota"),
    "uplink": ("uplink", "beside the rate"),
    "downlink": ("downlink", "beside the rate"),
    "work": ("work per CPU second", "beside the same loop on this host, without limits"),
    "grain": ("time of a short piece of work", "beside its CPU seconds ÷ CPUs; shorter where the quota alone holds it"),
    "run": ("running at a time", "beside the quota of one period; shorter where the kernel hands it out in pieces"),
    "gap": ("stopped at a time", "beside the rest of one period; shorter where the quota comes in pieces"),
    "cpu per step": ("CPU per training step", "beside the same step without a quota"),
}
"""Quantities of the calibration: what people read, and beside what each is put. Only the limits (CPU, uplink, downlink)
are judged; the rest describes how the kernel holds a quota."""

CALIBRATION = ("device", "quantity", "condition", "requested", "measured", "error", "verdict")
"""Heads of the calibration's rows (`shown.calibrated`)."""

RULES = {
    "enough": "released when enough devices were done",
    "deadline": "released by the deadline",
    "budget": "ended by the run's budget of seconds",
    "quorum": "released when the quorum was done, after the deadline",
}
"""What released a round that did not wait for all."""

EVENTS = {
    "left": "left",
    "joined": "came back",
    "out": "left out",
    "fault": "fault",
    "profile": "profile changed",
    "disturbed": "disturbed by the host",
    "scenario": "scenario",
    "board": "board slowed down or changed",
    "resumed": "resumed",
    "ended": "ended",
}
"""Kinds of events."""


def phase(name: str) -> str:
    """The words for a name of a device's time."""
    return name.replace("_", " ")


def cause(name: str) -> str:
    """The words for a cause; for "": that no single one stands out."""
    return CAUSES.get(name, name) if name else NO_CAUSE


def disturbance(name: str) -> str:
    """The words for what the host disturbed a round by."""
    return DISTURBANCES.get(name, name)


def disturbances(names: Iterable[str]) -> str:
    """All of them; "nothing" if there is none."""
    return ", ".join(map(disturbance, names)) or "nothing"


def bound(what: str, whose: str) -> str:
    """The words for a bound: "server", "cpu0.1's CPU"."""
    return f"{whose}'s {BOUNDS[what]}" if whose else BOUNDS[what]


def for_page() -> dict[str, object]:
    """All words, for the live page."""
    return {
        "CALIBRATION": CALIBRATION,
        "PHASES": PHASES,
        "WAITS": WAITS,
        "CAUSES": CAUSES,
        "NO_CAUSE": NO_CAUSE,
        "DISTURBANCES": DISTURBANCES,
        "EVENTS": EVENTS,
        "BOARD_MARKS": BOARD_MARKS,
    }
