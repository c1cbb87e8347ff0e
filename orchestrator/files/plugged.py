"""The plug-ins that an experiment names: read, checked against what else there is, and in use in this process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgebed import plugin_code
from edgebed.errors import FileError, PluginError, UsageError, printable
from edgebed.models.network import code_of
from edgebed.models.staged import WithOptions
from edgebed.module_process import OURS
from edgebed.plugin_code import LOADED, PluginCode, classes_of, read_plugin, sha256_of, use
from edgebed.plugins import Plugin


def given(plugins: Iterable[str | os.PathLike[str]]) -> list[str]:
    """What a person named on the command line, as an experiment may name it: paths start at the current folder. A bare
    name is that of an installed package, whatever stands in the current folder."""
    texts = [os.fspath(each) for each in plugins]
    return [os.path.abspath(t) if (os.sep in t or t.endswith(".py")) and os.path.exists(t) else t for t in texts]


def chosen_models(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What an experiment chooses as a model, in any setting of its sweep, as far as it may be one."""
    simulation, sweep = document.get("simulation"), document.get("sweep")
    as_if = simulation.get("as_if") if isinstance(simulation, dict) else None
    chosen = [each.get("model") for each in (document, as_if) if isinstance(each, dict)]
    yield from (each for each in chosen if isinstance(each, dict))
    for key, values in sweep.items() if isinstance(sweep, dict) else ():
        for value in values if isinstance(values, list) else ():
            if key == "model" and isinstance(value, dict):
                yield value
            elif key in ("model.file", "model.torchvision"):
                yield {key.removeprefix("model."): value}


def with_networks(
    specs: Sequence[str], models: Iterable[dict[str, Any]], near: Path = Path()
) -> tuple[list[str], set[str]]:
    """The plug-ins that an experiment names and those whose code its models are, and the names of the latter. From then
    on a model's `file` is without a folder: it is in the plug-in of that name.

    Args:
        models: as the experiment chooses them.
        near: the folder in which relative paths start.

    Raises:
        PluginError: a model's file is not there. An installed package is none, unless it is a plug-in.
    """
    every, names = list(specs), set()
    for model in models:
        if not (code := code_of(model)):
            continue
        here, given = Path(os.path.abspath(near / code)), [Path(os.path.abspath(near / each)) for each in every]
        names.add(here.stem)
        if here.stem not in [each.stem for each in given] or (here.exists() and here not in given):
            if not here.exists() and not plugin_code.offered(here.stem):
                raise PluginError(
                    f"model: there is no file {here}", hint="give the path of the network's file or folder"
                )
            every.append(code)
        if "file" in model:
            model["file"] = here.name
    return every, names


def take_in(specs: Sequence[str], networks: Collection[str] = (), near: Path = Path()) -> None:
    """Use these plug-ins in this process.

    Args:
        networks: names of plug-ins that need no class of a plugin.
        near: the folder in which relative paths start.

    Raises:
        PluginError: one cannot be read or imported, holds no class, or takes the name of another module.
    """
    codes = [read_plugin(spec, near) for spec in specs]
    for number, code in enumerate(codes):
        if code.name in [other.name for other in codes[:number]]:
            raise PluginError(f"two plug-ins are called {code.name!r}", hint="give one of the files another name")
        _refuse_shadowing(code)
    use(codes)
    for code in codes:
        if code.name not in networks and not any(issubclass(each, Plugin) and each.name for each in classes_of(code)):
            plugin_code.forget(code.name)
            raise PluginError(
                f"the plug-in {code.told.source} has no method, model or data set",
                hint="derive a class from edgebed.methods.base.Method, ModelPlugin or DataSet, and give it a `name`; a "
                "folder's __init__.py must import it",
            )


def codes_of(specs: Sequence[str]) -> list[PluginCode]:
    """The plug-ins that were taken in under these names or paths."""
    return [LOADED[Path(spec).stem] for spec in specs]


def also_used(specs: Sequence[str], made: Iterable[Plugin]) -> list[str]:
    """Plug-ins that are not among `specs`, and of which one of these was made: those that installed packages offer."""
    named = {Path(spec).stem for spec in specs}
    own = (each.whole if isinstance(each, WithOptions) else each for each in made)
    owners = dict.fromkeys(type(each).__module__.partition(".")[0] for each in own)
    return [each for each in owners if each in LOADED and each not in named]


def changes(codes: Iterable[PluginCode]) -> list[str]:
    """What differs from the files that a run's copies were made of: a line for each plug-in."""
    return [
        f"{printable(code.told.source)} has changed since this run began; the run goes on with its own copy of this "
        f"plug-in, {Path(code.folder) / code.entry}"
        for code in codes
        if str(Path(code.folder) / code.entry) != code.told.source and _differs(code)
    ]


def _differs(code: PluginCode) -> bool:
    try:
        return sha256_of(read_plugin(code.told.source).files) != code.sha256
    except (UsageError, FileError):
        return False  # it is gone: nothing was changed


def _refuse_shadowing(code: PluginCode) -> None:
    """Raises PluginError where the plug-in's name is that of another module, which would be found no longer. Another
    version of an installed plug-in may take its place."""
    if code.name in LOADED or plugin_code.offered(code.name):
        return
    spec = importlib.util.find_spec(code.name)
    place = "Python itself" if spec is None or not spec.has_location else str(spec.origin)
    entry = Path(code.told.source)
    own = spec is None or place in (str(entry), str(entry / "__init__.py"))
    if not own or code.name in (*OURS, *sys.stdlib_module_names):
        raise PluginError(
            f"the plug-in {code.told.source} may not be called {code.name!r}: a module of {place} has this name",
            hint=f"rename it, to my_{code.name} say",
        )
