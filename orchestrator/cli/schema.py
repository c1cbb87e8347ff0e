"""`edgebed schema`: the keys of a file as JSON Schema, by which an editor completes, explains and checks them."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal

import msgspec
import typer

from edgebed.datasets.base import DATASETS
from edgebed.datasets.partition import PARTITIONS
from edgebed.methods.base import METHODS
from edgebed.models.staged import MODELS, CommonOptions
from edgebed.plugins import Plugin, Registry
from orchestrator.cli.arguments import Plugins
from orchestrator.cli.console import print_json
from orchestrator.experiment import Experiment
from orchestrator.files.plugged import given, take_in
from orchestrator.files.shipped import shipped
from orchestrator.files.yaml_file import load_yaml
from orchestrator.fleet.spec.profile import FleetFile, ProfileFile
from orchestrator.scenario.spec import ScenarioFile

Kind = Literal["experiment", "fleet", "profile", "scenario"]
FILES: dict[Kind, type[msgspec.Struct]] = {
    "experiment": Experiment,
    "fleet": FleetFile,
    "profile": ProfileFile,
    "scenario": ScenarioFile,
}
CHOSEN: tuple[tuple[str, str, Registry[Any]], ...] = (
    ("Experiment", "methods", METHODS),
    ("Experiment", "model", MODELS),
    ("Experiment", "data", DATASETS),
    ("Surrogate", "model", MODELS),
)
"""Struct and key of what names a plug-in and its options."""

DRAFT, REF = "https://json-schema.org/draft/2020-12/schema", "#/$defs/"


def command(
    kind: Annotated[Kind, typer.Argument(help="What the file describes.")] = "experiment",
    plugin: Plugins = None,
) -> None:
    """Print the JSON Schema of a KIND of file, with what each method, model and data set accepts.

    An editor uses it for a file that begins with `# yaml-language-server: $schema=FILE`, as those of `edgebed init`."""
    take_in(given(plugin or ()))
    print_json(schema(kind))


def schema(kind: Kind) -> dict[str, Any]:
    """The JSON Schema of a kind of file; texts are those of `profiles/keys.yaml` and of the structs."""
    plugins = {cls: cls.Options for *_, registry in CHOSEN for cls in _classes(registry)}
    types = [FILES[kind], *((*plugins.values(), CommonOptions) if kind == "experiment" else ())]
    (whole, *found), parts = msgspec.json.schema_components(
        types, schema_hook=lambda kind: {"title": kind.__name__}, ref_template=f"{REF}{{name}}"
    )
    names = [each["$ref"].removeprefix(REF) for each in found]
    for struct, texts in load_yaml(shipped("profiles") / "keys.yaml").items():
        for key, text in texts.items() if struct in parts else ():
            parts[struct]["properties"][key]["description"] = text
    if kind == "experiment":
        options = {cls: parts[name] for cls, name in zip(plugins, names[:-1], strict=True)}
        part = parts.pop(CommonOptions.__name__)["properties"]
        for cls in _classes(MODELS):
            options[cls] = {**options[cls], "properties": {**options[cls]["properties"], **part}}
        for struct, key, registry in CHOSEN:
            one = {"oneOf": [_choice(cls, options[cls]) for cls in _classes(registry)]}
            wanted = {"type": "array", "items": one, "minItems": 1} if key == "methods" else one
            keys = parts[struct]["properties"]
            keys[key] = {name: keys[key][name] for name in ("description", "default") if name in keys[key]} | wanted
        parts["Partition"]["properties"]["kind"]["enum"] = list(PARTITIONS)
    kept = {name: part for name, part in parts.items() if name not in names}
    return {"$schema": DRAFT, "title": f"Edgebed: {kind} file", **whole, "$defs": kept}


def _classes(registry: Registry[Any]) -> list[type[Plugin]]:
    return [*registry.classes().values(), *registry.unnamed().values()]


def _choice(cls: type[Plugin], options: dict[str, Any]) -> dict[str, Any]:
    """What may stand there for one plug-in: its name, if it has one, and its options."""
    about = getattr(cls, "summary", "") or (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]
    name = {"name": {"const": cls.name, "description": about}} if cls.name else {}
    return {
        **options,
        "title": cls.name or cls.key,
        "description": " ".join(f"{about} {options.get('description', '')}".split()),
        "properties": {**name, **options["properties"]},
        "required": [*name, *options.get("required", [])],
    }
