"""Where Edgebed keeps the keys, passwords and registries of this user."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """`edgebed` in XDG_STATE_HOME, or in ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "edgebed"


def board_folder() -> Path:
    """Of this machine as a board: `EDGEBED_BOARD`; else /var/lib/edgebed-agent for root, and `board` in the user's
    state folder."""
    if named := os.environ.get("EDGEBED_BOARD"):
        return Path(named)
    return Path("/var/lib/edgebed-agent") if os.geteuid() == 0 else state_folder() / "board"


def is_kept(path: Path) -> bool:
    """Whether a path leads into one of these folders, by links too."""
    real = Path(os.path.realpath(path))  # says nothing of links that lead round in a circle, as `resolve` does
    return any(real.is_relative_to(folder.resolve()) for folder in (state_folder(), board_folder()))
