"""One colour per phase name, the same in every chart: busy times are strong colours, waits are pale, gaps are red."""

from __future__ import annotations

PHASES = {
    "download": "#3a9d5d",
    "decode": "#8cc3f0",
    "compute": "#2f6db3",
    "encode": "#5d9bd8",
    "blocked": "#c9541c",
    "upload_tail": "#eb9a34",
    "reply_wait": "#b06fc4",
    "request_wait": "rgba(176,111,196,0.25)",
    "server_wait": "#7d4fa0",
    "dispatch": "#a9d6b6",
    "wait_for_others": "rgba(140,152,168,0.38)",
    "plan": "#9c8f5f",
    "merge": "#b8a861",
    "evaluation": "#d6cb92",
    "checkpoint": "#e6dfb8",
    "orchestrator": "#877d6a",
    "probe": "#5aa7a7",
    "idle": "rgba(140,152,168,0.18)",
    "left_out": "#c4a79a",
    "offline": "#55595e",
    "unreported": "#e3001b",
}

COLOURED_AS = {"cpu": "compute", "uplink": "upload_tail", "downlink": "download", "server": "server_wait", "": "idle"}
"""Causes of a straggler, and the phase that has the same colour; "" is no single cause."""

RUNS = ("#2f6db3", "#c9541c", "#3a9d5d", "#7d4fa0", "#b8901c", "#d1477a", "#2a9d9d", "#6b6b6b")


def colour(phase: str) -> str:
    return PHASES.get(phase, "#999999")


def ordered(names: set[str]) -> list[str]:
    """Names in the order of the palette, unknown ones last."""
    return [name for name in PHASES if name in names] + sorted(names - set(PHASES))
