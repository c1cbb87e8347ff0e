"""Finds the files that come with Edgebed and are not modules: profiles, the agent's image, its locked packages.

In a source tree they are in the folders named in FOLDERS, at its top. In a wheel they are in folders of
`edgebed/_data`, to which setup.py copies them.
"""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path

FOLDERS = {"profiles": "profiles", "image": "docker", "requirements": "requirements"}
"""Name of a folder in `edgebed/_data` → its name in the source tree. setup.py reads this."""


def shipped(name: str) -> Path:
    """The folder of FOLDERS with this name, in the installed wheel or in the source tree."""
    package = Path(str(resources.files("edgebed")))
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / FOLDERS[name]


def sources(package: str) -> Path:
    """The folder of one of Edgebed's packages. Does not import it: the orchestrator never imports the agent."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return Path(spec.origin).parent
