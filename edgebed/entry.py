"""Entry points of the commands `edgebed` and `edgebed-agent`, which run no package of another that has the name of one
of ours.

Another package on the public index installs a top-level `edge_agent`, too. So a package is looked at before it is
imported: ours stands in the folder of this `edgebed`, and its `__init__` holds MARK, which a file written over it by
another installation lacks. Children need no such look: `module_process` takes our packages from that folder.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader

from edgebed.errors import EdgebedError, UsageError, said
from edgebed.module_process import HOME

MARK = "a package of Edgebed"
"""The constant BELONGS_TO of `orchestrator` and `edge_agent`."""


def command_line() -> None:
    """`edgebed`. The local backend starts agents, so `edge_agent` must be ours, too."""
    _run("edgebed", "orchestrator.__main__", "orchestrator", "edge_agent")


def agent() -> None:
    """`edgebed-agent`."""
    _run("edgebed-agent", "edge_agent.entry", "edge_agent")


@contextlib.contextmanager
def exit_on_error(command: str) -> Iterator[None]:
    """Prints an error of ours with its hint and ends the process with its exit code; Ctrl-C ends it with 130."""
    try:
        yield
    except EdgebedError as error:
        print(f"{command}: {said(error)}" + (f"\nHint: {said(error.hint)}" if error.hint else ""), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(command: str, module: str, *packages: str) -> None:
    with exit_on_error(command):
        check_packages(*packages)
    importlib.import_module(module).main()


def check_packages(*names: str) -> None:
    """Raises UsageError where Python finds another's package under one of these names. One that is missing is no fault
    here: its import names it."""
    for name in names:
        spec = importlib.util.find_spec(name)
        here = spec is not None and _folders(spec) == [os.path.realpath(HOME)]
        if spec is not None and not (here and _is_marked(spec)):
            place = spec.origin or ", ".join(spec.submodule_search_locations or ())
            raise UsageError(
                f"the package {name!r} at {place} does not belong to this Edgebed, which is in {HOME}",
                hint=_cure(name, written_over=here),
            )


def _folders(spec: ModuleSpec) -> list[str]:
    """Where a package stands; several for a folder without `__init__`, none for a module."""
    return [os.path.realpath(os.path.dirname(each)) for each in spec.submodule_search_locations or ()]


def _is_marked(spec: ModuleSpec) -> bool:
    """Whether the package's `__init__` holds MARK. It is not run, and may be in an archive or compiled. pytest, which
    knows our plug-in for it, loads all of our modules by a loader that gives no code."""
    loader = spec.loader if hasattr(spec.loader, "get_code") else SourceFileLoader(spec.name, str(spec.origin))
    try:
        code = loader.get_code(spec.name)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError):
        return False
    return code is not None and MARK in code.co_consts


def _cure(name: str, written_over: bool) -> str:
    from importlib import metadata  # takes a while, and is needed only here

    others = sorted(set(metadata.packages_distributions().get(name, ())) - {"edgebed"})
    steps = [f"pip uninstall {' '.join(others)}"] if others else []
    steps += ["pip install --force-reinstall --no-deps edgebed-*.whl"] if written_over else []
    if not steps:
        return "take that folder off the module path: see the current directory and PYTHONPATH"
    return f"{', then '.join(steps)}; or install Edgebed in a virtual environment of its own"
