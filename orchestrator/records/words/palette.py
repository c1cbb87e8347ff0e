"""The colours of phases, causes and methods on every page and in every figure. Pure.

Colours of one kind can be told apart by readers who see no red or no green: tests/unit/test_palette.py computes the
distances. Waits are hatched besides; methods have a dash and a marker of their own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec


class Colour(msgspec.Struct, frozen=True):
    """The same colour on light and on dark paper."""

    light: str
    dark: str


PHASES = {
    "download": Colour("#399228", "#70a18f"),
    "decode": Colour("#8dccff", "#157bb2"),
    "compute": Colour("#1241b6", "#a4d6ff"),
    "encode": Colour("#3670c5", "#5891bf"),
    "blocked": Colour("#fd651d", "#864200"),
    "upload_tail": Colour("#c0936c", "#ffb640"),
    "reply_wait": Colour("#6d2267", "#96a7b5"),
    "request_wait": Colour("#897b9b", "#827b8c"),
    "server_wait": Colour("#9e5fcb", "#806fae"),
    "dispatch": Colour("#7e9891", "#93cdb0"),
    "wait_for_others": Colour("#c3c7cd", "#4c6777"),
    "plan": Colour("#8d805b", "#b68a0a"),
    "merge": Colour("#ead2bb", "#d2d686"),
    "evaluation": Colour("#9ea08c", "#9d7411"),
    "checkpoint": Colour("#b2bd64", "#9c9975"),
    "orchestrator": Colour("#5b4a40", "#807d75"),
    "server": Colour("#4f6c84", "#773aae"),
    "working": Colour("#56d294", "#64605b"),
    "probe": Colour("#7aa19c", "#69b0c0"),
    "idle": Colour("#d0d3ff", "#37424b"),
    "left_out": Colour("#ac6b6a", "#8f7963"),
    "offline": Colour("#6c8094", "#0a49e9"),
    "unreported": Colour("#a61300", "#f258e7"),
}
"""Colours of a device's time by name; work is solid, waits are hatched."""

WAITS = (
    "blocked",
    "reply_wait",
    "request_wait",
    "server_wait",
    "dispatch",
    "wait_for_others",
    "idle",
    "left_out",
)
"""Names that are drawn hatched."""

COLOURED_AS = {
    "cpu": "compute",
    "uplink": "upload_tail",
    "downlink": "download",
    "server": "server",
    "": "wait_for_others",
}
"""Causes of a straggler, and the phase that has the same colour; "" is no single cause."""

BOUNDS = {
    "cpu": "compute",
    "uplink": "upload_tail",
    "downlink": "download",
    "server": "server",
    "turn": "server_wait",
    "host": "orchestrator",
    "broker": "dispatch",
    "deadline": "left_out",
    "lost": "offline",
    "unknown": "unreported",
}
"""What bounds a round, and the phase that has the same colour."""

WAITED_FOR = {
    "server": "server",
    "link": "upload_tail",
    "others": "wait_for_others",
    "host": "orchestrator",
    "cpu": "compute",
    "unknown": "unreported",
}
"""What a device waited for, and the phase that has the same colour."""

METHODS = (
    "dtfl",
    "fedavg",
    "splitfed",
    "s2fl",
    "fedat",
    "tifl",
    "fedprox",
    "fedgkt",
    "fedpmt",
    "heterofl",
    "feddrop",
    "drop-slowest",
    "fedyogi",
    "sfl",
    "early-exit",
    "serve",
)
"""Methods in the order of their colours. Others get one by their name."""

RUNS = (
    "#8b02fd",
    "#469fe3",
    "#43b565",
    "#bf1e0f",
    "#286e62",
    "#389071",
    "#056d85",
    "#7b959e",
    "#2888bc",
    "#b72846",
    "#b66919",
    "#667882",
    "#0a67ae",
    "#e78400",
    "#7c9b90",
    "#768852",
)
"""Colours of methods, the same on light and on dark paper; they mean nothing else. The first eight differ most."""

DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3), (10, 4))
"""Lengths of line and gap."""

MARKERS = 8
"""Number of shapes of markers."""


class Style(msgspec.Struct, frozen=True):
    """How a method is drawn, on every page: indexes into RUNS and DASHES, and the number of a marker's shape."""

    colour: int
    dash: int
    marker: int


def style(method: str, before: int = 0) -> Style:
    """The same for all runs of a method, whatever is shown beside them. `before`: how many groups of runs of the same
    method stand before it: they share the colour, and have another dash and marker."""
    index = METHODS.index(method) if method in METHODS else zlib.crc32(method.encode()) % len(RUNS)
    return Style(index, (index + before) % len(DASHES), (index + before) % MARKERS)


def colour(phase: str) -> str:
    """The colour of a phase on light paper."""
    return PHASES[phase].light if phase in PHASES else "#999999"


def ordered(names: Iterable[str]) -> list[str]:
    """Names in the order of the palette, unknown ones last."""
    names = set(names)
    return [name for name in PHASES if name in names] + sorted(names - set(PHASES))


def css() -> str:
    """Custom properties for both themes, and rules: `p-NAME` for phases, `k-CAUSE` for causes, `cN` for methods."""
    light, dark = (
        " ".join(f"--p-{name}: {getattr(one, theme)};" for name, one in PHASES.items()) for theme in ("light", "dark")
    )
    like = {name or "none": phase for name, phase in COLOURED_AS.items()} | {"out": "unreported"}
    dashes = [" ".join(map(str, dash)) or "none" for dash in DASHES]
    rules = [
        f":root {{ {light} }}",
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}",
        f":root[data-theme=dark] {{ {dark} }}",
        *(f".p-{name} {{ --p: var(--p-{name}); }}" for name in PHASES),
        *(f".k-{name} {{ --p: var(--p-{phase}); }}" for name, phase in like.items()),
        *(f".c{index} {{ --p: {one}; }}" for index, one in enumerate(RUNS)),
        *(f"path.d{index} {{ stroke-dasharray: {dash}; }}" for index, dash in enumerate(dashes)),
        *(f"rect.p-{name} {{ fill: url(#hatch-{name}); }}" for name in WAITS),
    ]
    return "\n".join(rules) + "\n"
