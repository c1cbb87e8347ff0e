"""Divides an experiment's data set into one shard file per device and the test part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from edgebed.datasets.base import DATASETS, Split, classes_of
from edgebed.datasets.partition import Indices, Samples, partition
from edgebed.datasets.shard import label_counts, normalise, write_shard
from edgebed.errors import UsageError
from edgebed.state import is_kept
from edgebed.typed import nearest, shown, within
from edgebed.wire.settings import LearningTask, Privacy
from orchestrator.experiment import Experiment, PrivacyChoice

LARGE_BATCH = 1000


class Prepared(msgspec.Struct):
    """The data of a run."""

    title: str  # name of the data in outputs
    shards: dict[str, Path]  # the file of every device
    test_x: Tensor  # (N, *input_shape), normalised; test_y: (N, *answer_shape)
    test_y: Tensor
    task: LearningTask  # what is learned
    class_names: list[str]
    label_counts: dict[str, list[int]]  # samples per class of every device; of all where a sample has several answers
    validation: tuple[Tensor, Tensor] | None = None  # x and y as of the test part; None where no samples are held out

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        return self.test_x, self.test_y

    def sample(self, size: int) -> tuple[Tensor, Tensor]:
        """A batch of `size` samples of the test part, repeated where there are too few: for measuring costs."""
        rows = torch.arange(size) % len(self.test_y)
        return self.test_x[rows], self.test_y[rows]

    def samples(self) -> dict[str, int]:
        """Training samples by device."""
        return {device: sum(counts) for device, counts in self.label_counts.items()}

    def describe(self) -> str:
        """Samples per class, a line for each device."""
        width = max(len(device) for device in self.label_counts)
        rows = (f"  {d:{width}} {sum(n):6d}: {' '.join(map(str, n))}" for d, n in self.label_counts.items())
        return "\n".join((f"{self.title}: samples per device and class:", *rows))


def data_root() -> Path:
    """The folder of data sets: EDGEBED_DATA, or ./data."""
    return Path(os.environ.get("EDGEBED_DATA") or "data")


def located(data: Mapping[str, Any], near: Path | None) -> dict[str, Any]:
    """The data section with an absolute `path`: in the folder of `near`, the file that names it, else in the folder of
    data sets. Raises UsageError where it is in neither, and where it leads to Edgebed's own keys and passwords: devices
    would get them as samples."""
    given = data.get("path")
    if not isinstance(given, str):
        return dict(data)
    places = [data_root().resolve() / given]
    if near is not None and not Path(given).is_absolute():
        places.insert(0, near.resolve().parent / given)
    if "\0" not in given and any(is_kept(place) for place in places):
        raise UsageError(
            f"{near or 'experiment'}: data.path is {shown(given)}, where Edgebed keeps keys and passwords",
            hint="devices get what it names: choose another file, and ask who wrote this one",
        )
    if near is None or Path(given).is_absolute():
        return dict(data)
    for place in places:
        if os.path.exists(place):
            return {**data, "path": str(place)}
    raise UsageError(
        f"{near}: data.path is {shown(given)}: there is neither {places[0]} nor {places[1]}",
        hint="write the path relative to that file, or set EDGEBED_DATA to the folder that holds it",
    )


def share_out(
    experiment: Experiment, devices: list[str], near: Path | None = None
) -> tuple[str, Split, dict[str, Indices]]:
    """The data set's title, its samples, and the rows of the training part that each device gets. `near`: the
    experiment file; relative paths start at its folder. Raises UsageError: the data set cannot be loaded or partitioned
    so; with cause and hint."""
    seed = experiment.training.seed
    dataset = DATASETS.create(located(experiment.data, near), f"{near or 'experiment'}: data")
    file = str(near or "experiment")
    with within(f"{file}: data"):
        split = dataset.load(data_root(), seed)
    writers = None if split.train_writers is None else split.train_writers.numpy()
    _refuse_batch_size(experiment.training.batch_size, len(split.train_y), near)
    with within(f"{file}: partition"):
        shares = partition(Samples(classes_of(split.train_y).numpy(), devices, seed, writers), experiment.partition)
    return dataset.title, split, dict(zip(devices, shares, strict=True))


def _refuse_batch_size(wanted: int, samples: int, near: Path | None) -> None:
    """Refuse a batch size far beyond the number of samples: a mistake, which would not fit into memory."""
    if wanted > max(samples, LARGE_BATCH):
        raise UsageError(
            f"{near or 'experiment'}: training.batch_size is {wanted}; all devices together have {samples} samples",
            hint=f"write a number from 1 to {samples}",
        )


def count_labels(y: Tensor, shares: dict[str, Indices], classes: int) -> dict[str, list[int]]:
    """Samples per class of every device; of all where a sample has several answers."""
    return {device: label_counts(y[torch.from_numpy(rows)], classes) for device, rows in shares.items()}


def privacy_of(experiment: Experiment, devices: Sequence[str], profiles: Mapping[str, str]) -> dict[str, Privacy]:
    """What each device does to its features: the setting for all, overridden by that of its profile, then by its own.
    `profiles`: the profile of each device. Raises UsageError: a choice for a device or profile that the fleet does not
    have."""
    section = experiment.privacy
    _refuse_strange("devices", section.devices, devices)
    _refuse_strange("profiles", section.profiles, sorted(set(profiles.values())))
    return {
        device: _choose(
            Privacy(section.dcor_alpha, section.patch_shuffle, _secret(experiment.training.seed, device)),
            section.profiles.get(profiles.get(device, "")),
            section.devices.get(device),
        )
        for device in devices
    }


def _refuse_strange(key: str, named: Mapping[str, PrivacyChoice], known: Sequence[str]) -> None:
    strange = sorted(set(named) - set(known))
    if strange:
        raise UsageError(
            f"privacy.{key} names {', '.join(strange)}{nearest(strange[0], known)}",
            hint=f"the fleet has: {', '.join(known)}",
        )


def _choose(privacy: Privacy, *choices: PrivacyChoice | None) -> Privacy:
    for choice in filter(None, choices):
        given = {name: value for name, value in msgspec.structs.asdict(choice).items() if value is not None}
        privacy = msgspec.structs.replace(privacy, **given)
    return privacy


def _secret(seed: int, device: str) -> int:
    """The seed of the device's shuffles, from the run's seed, so that a run repeats to the bit."""
    return int.from_bytes(hashlib.sha256(f"{seed}/privacy/{device}".encode()).digest()[:7], "big")


def prepare_data(
    experiment: Experiment,
    devices: list[str],
    folder: Path,
    profiles: Mapping[str, str] | None = None,
    near: Path | None = None,
) -> Prepared:
    """Load, partition, and write `folder/<device>.safetensors` for every device.

    Args:
        profiles: the profile of each device, for an experiment that chooses privacy by profile.
        near: the experiment file; relative paths start at its folder.

    Raises:
        UsageError: the data set cannot be loaded or partitioned so, privacy is chosen for a device that the fleet does
            not have, or a shard cannot be written; with cause and hint.
    """
    with within(str(near or "experiment")):
        privacy = privacy_of(experiment, devices, profiles or {})
    title, split, shares = share_out(experiment, devices, near)
    classes = len(split.class_names)
    shards = {device: folder / f"{device}.safetensors" for device in devices}
    for device, rows in shares.items():
        index = torch.from_numpy(rows)
        x, y = split.train_x[index], split.train_y[index]
        write_shard(shards[device], x, y, split.mean, split.std, classes, privacy[device], split.vocabulary)
    return Prepared(
        title=title,
        shards=shards,
        test_x=normalise(split.test_x, split.mean, split.std),
        test_y=split.test_y,
        task=split.task,
        class_names=split.class_names,
        label_counts=count_labels(split.train_y, shares, classes),
        validation=validation_of(split),
    )


def validation_of(split: Split) -> tuple[Tensor, Tensor] | None:
    """x (normalised) and y of the validation samples; None where there are none."""
    if split.validation_x is None or split.validation_y is None:
        return None
    return normalise(split.validation_x, split.mean, split.std), split.validation_y


def label_table(title: str, class_names: list[str], counts: dict[str, list[int]]) -> Table:
    """Samples per device and class; with more than 20 classes only how many classes a device has."""
    few = len(class_names) <= 20
    rows = [(device, str(sum(row)), *_cells(row, class_names, few)) for device, row in counts.items()]
    table = Table(
        title=f"{title}: samples per device and class",
        caption="bold: the largest class of a device",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    short = class_names if len(class_names) <= 6 else [name[:5] for name in class_names]  # ten fit into 80 columns
    headings = ("device", "samples", *(map(escape, short) if few else ("classes", "largest class")))
    for heading, cells in zip(headings, zip(*rows, strict=True), strict=True):
        width = max(Text.from_markup(cell).cell_len for cell in cells)
        table.add_column(heading, justify="left" if heading == "device" else "right", min_width=width, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _cells(counts: list[int], class_names: list[str], few: bool) -> list[str]:
    most = max(counts)
    if few:
        return [f"[bold]{n}[/]" if n == most else str(n) for n in counts]
    return [str(sum(n > 0 for n in counts)), f"{escape(class_names[counts.index(most)])} {most}"]
