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
    "download": Colour("#007466", "#009996"),
    "decode": Colour("#8dccff", "#4c7b9e"),
    "compute": Colour("#29408b", "#64b1fd"),
    "encode": Colour("#4a74a4", "#adadaf"),
    "blocked": Colour("#e87242", "#864200"),
    "upload_tail": Colour("#ce863a", "#ffb640"),
    "reply_wait": Colour("#7a2b8e", "#a690d8"),
    "request_wait": Colour("#897b9b", "#8c8395"),
    "server_wait": Colour("#9f5fcb", "#7d6eac"),
    "dispatch": Colour("#667457", "#90cbae"),
    "wait_for_others": Colour("#c3c7cd", "#4e6774"),
    "plan": Colour("#90835d", "#8b6a00"),
    "merge": Colour("#e0c8ae", "#d0d485"),
    "evaluation": Colour("#a7a67c", "#c09000"),
    "checkpoint": Colour("#b4bf6b", "#9d9b7e"),
    "orchestrator": Colour("#5c4b41", "#86827a"),
    "server": Colour("#7769e4", "#8944b7"),
    "working": Colour("#81a4ea", "#606670"),
    "probe": Colour("#8db6b2", "#69b5c6"),
    "idle": Colour("#d5d8ff", "#38434d"),
    "left_out": Colour("#d5959c", "#9e8b7e"),
    "offline": Colour("#6c7f93", "#2c5c79"),
    "unreported": Colour("#ba1a00", "#e54449"),
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
    Colour("#004275", "#b7baff"),
    Colour("#a98133", "#b081bf"),
    Colour("#60a877", "#89fbbd"),
    Colour("#796cce", "#80559e"),
    Colour("#dba42e", "#f9d84f"),
    Colour("#bc3e70", "#c14b6a"),
    Colour("#57a4ba", "#6eae9f"),
    Colour("#57502f", "#98711e"),
    Colour("#98a0ec", "#5e78e0"),
    Colour("#ffb677", "#f99f24"),
    Colour("#006551", "#9a9200"),
    Colour("#6b6f8f", "#e8b3d9"),
    Colour("#731a00", "#eec48c"),
    Colour("#ccbcff", "#f25a5f"),
    Colour("#0e4451", "#4c9597"),
    Colour("#bbb3a3", "#96957d"),
)
"""Colours of methods, and of other things that have no colour of their own; the first eight differ most."""

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
    light, dark = (_properties(theme) for theme in ("light", "dark"))
    like = {name or "none": phase for name, phase in COLOURED_AS.items()} | {"out": "unreported"}
    rules = [
        f":root {{ {light} }}",
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}",
        f":root[data-theme=dark] {{ {dark} }}",
        *(f".p-{name} {{ --p: var(--p-{name}); }}" for name in PHASES),
        *(f".k-{name} {{ --p: var(--p-{phase}); }}" for name, phase in like.items()),
        *(f".c{index} {{ --p: var(--c{index}); }}" for index in range(len(RUNS))),
        *(f"path.d{index} {{ stroke-dasharray: {_lengths(dash)}; }}" for index, dash in enumerate(DASHES)),
        *(f"rect.p-{name} {{ fill: url(#hatch-{name}); }}" for name in WAITS),
    ]
    return "\n".join(rules) + "\n"


def _properties(theme: str) -> str:
    phases = [f"--p-{name}: {getattr(one, theme)};" for name, one in PHASES.items()]
    return " ".join([*phases, *(f"--c{index}: {getattr(one, theme)};" for index, one in enumerate(RUNS))])


def _lengths(dash: tuple[int, ...]) -> str:
    return " ".join(str(length) for length in dash) or "none"
