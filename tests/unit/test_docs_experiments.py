"""docs/experiments.md names every key of the three files, with its true default; its examples can be read."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from edgebed.wire.settings import Augment, Codec, Optimizer
from orchestrator.experiment import Environment, Experiment, Partition, PrivacySection, Training
from orchestrator.files.yaml_file import convert
from orchestrator.fleet.spec import profile

TEXT = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
ROWS = {
    key.strip("` "): default.strip()
    for keys, default in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", TEXT, re.MULTILINE)
    for key in keys.split(", ")
}
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]

STRUCTS = [
    (Experiment, ""),
    (Training, ""),
    (Partition, "partition."),
    (PrivacySection, "privacy."),
    (Optimizer, "optimizer."),
    (Codec, "codec."),
    (Augment, "augment."),
    (Environment, ""),
    (profile.FleetFile, ""),
    (profile.FleetEntry, "devices[]."),
    (profile.ProfileFile, ""),
]
INNER = {
    "partition",
    "optimizer",
    "codec",
    "augment",
    "devices",
}  # "devices" of a fleet; those of privacy stand by hand


def fields() -> list[tuple[str, object]]:
    found = []
    for struct, prefix in STRUCTS:
        for field in msgspec.structs.fields(struct):
            if field.name not in INNER:
                found.append((prefix + field.name, field.default))
    return found


@pytest.mark.parametrize(("key", "default"), fields(), ids=lambda value: str(value))
def test_every_key_stands_there_with_its_default(key: str, default: object) -> None:
    assert key in ROWS
    if isinstance(default, str | int | float) and default not in ("",):
        said = ROWS[key].strip("`")
        assert yaml.safe_load(said) == default


def test_the_examples_can_be_read() -> None:
    experiment, privacy, sweep, fleet, device = EXAMPLES
    path = Path("example.yaml")
    assert convert(experiment, Experiment, path).environment == Environment(every=10, share=0.3)
    assert convert({**experiment, **privacy}, Experiment, path).privacy.devices["cpu4-1"].patch_shuffle == 4
    assert len(convert({**experiment, **sweep}, Experiment, path).parts) == 8
    assert convert(fleet, profile.FleetFile, path).devices[0].count == 3
    assert convert(device, profile.ProfileFile, path).cpus == 0.2
