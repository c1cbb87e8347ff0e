"""The folder for what was measured once on this host: `EDGEBED_CACHE`, else `edgebed` in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def host_folder() -> Path:
    """The folder; it may not exist yet. The user's cache folder is `XDG_CACHE_HOME`, else `~/.cache`."""
    named = os.environ.get("EDGEBED_CACHE")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "edgebed"
