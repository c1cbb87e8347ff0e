"""Where the files lie that come with Edgebed and are no modules: profiles, the agent's image, its locked packages.

In a source tree they are the folders of FOLDERS at its top. In a wheel they are folders of `edgebed/_data`, to which
setup.py copies them.
"""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path

FOLDERS = {"profiles": "profiles", "image": "docker", "requirements": "requirements"}
"""Name of a folder in `edgebed/_data` → its name in the source tree. setup.py reads this."""


def shipped(name: str) -> Path:
    """The folder of FOLDERS with this name, of the installed wheel or of the source tree."""
    package = Path(str(resources.files("edgebed")))
    installed = package / "_data" / name
    return installed if installed.is_dir() else package.parent / FOLDERS[name]


def sources(package: str) -> Path:
    """The folder of a package of ours, without importing it: the orchestrator never imports the agent."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return Path(spec.origin).parent
