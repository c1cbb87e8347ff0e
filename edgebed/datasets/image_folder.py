"""Pictures in folders of one's own, in one of three layouts.

train/CLASS/*.png, test/CLASS/*.png, and perhaps valid/CLASS/*.png      as CINIC-10 comes
HAM10000_metadata.csv with image_id and dx, pictures anywhere below     as HAM10000 comes
CLASS/*.png                                                             a part is held out for testing
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from torch import Tensor

from edgebed.datasets.base import DataSet, Part, Share, Source, Subset, hold_out
from edgebed.errors import UsageError
from edgebed.vision import picture

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm"}
LAYOUTS = "give train/CLASS/ and test/CLASS/ folders, CLASS/ folders, or a csv file with image_id and dx"


class ImageFolder(DataSet):
    name = "image-folder"
    summary = "pictures in folders: CINIC-10, HAM10000, or one folder per class"

    class Options(Subset, frozen=True, forbid_unknown_fields=True, kw_only=True):
        path: str  # relative to the folder of data sets
        size: Annotated[int, msgspec.Meta(ge=4, le=1024)] = 32
        grey: bool = False
        valid: Literal["unused", "train", "test"] = "unused"  # where the pictures of valid/ go
        test_share: Share = 0.2  # of a set without test part

    options: Options

    def open(self, root: Path, seed: int) -> Source:
        folder = root / self.options.path
        if not folder.is_dir():
            raise UsageError(f"image-folder: there is no folder {folder}", hint="set path, or EDGEBED_DATA above it")
        if (folder / "train").is_dir():
            return self._parts(folder)
        for table in sorted(folder.glob("*.csv")):
            if rows := _read_table(table):
                return self._table(folder, rows, seed)
        names = class_names(folder)
        files, y = list_classes(folder, names)
        train, test = hold_out(torch.arange(len(y)), self.options.test_share, seed)
        return Source(self._part(files, y, train), self._part(files, y, test), names)

    def _parts(self, folder: Path) -> Source:
        names = class_names(folder / "train")
        joined = {"train": [folder / "train"], "test": [folder / "test"]}
        if self.options.valid != "unused":
            joined[self.options.valid].append(folder / "valid")
        parts = {}
        for part, folders in joined.items():
            listed = [list_classes(one, names) for one in folders]
            files, y = [f for found, _ in listed for f in found], torch.cat([labels for _, labels in listed])
            parts[part] = self._part(files, y, torch.arange(len(y)))
        return Source(parts["train"], parts["test"], names)

    def _table(self, folder: Path, rows: list[dict[str, str]], seed: int) -> Source:
        """HAM10000: several pictures show the same lesion; they stay in one part **[ours]**."""
        there = {file.stem: file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES}
        absent = [row["image_id"] for row in rows if row["image_id"] not in there]
        if absent:
            raise UsageError(
                f"{folder}: {len(absent)} of {len(rows)} pictures of the csv file are missing, {absent[0]} for one",
                hint="unpack all parts of the pictures below this folder",
            )
        names = sorted({row["dx"] for row in rows})
        y = torch.tensor([names.index(row["dx"]) for row in rows])
        lesions = {lesion: i for i, lesion in enumerate(sorted({_group(row) for row in rows}))}
        groups = torch.tensor([lesions[_group(row)] for row in rows])
        train, test = hold_out(groups, self.options.test_share, seed)
        files = [there[row["image_id"]] for row in rows]
        return Source(self._part(files, y, train), self._part(files, y, test), names)

    def _part(self, files: Sequence[Path], y: Tensor, rows: Tensor) -> Part:
        chosen = [files[i] for i in rows.tolist()]

        def read(wanted: Tensor) -> Tensor:
            o = self.options
            return torch.stack([picture(chosen[i], size=o.size, grey=o.grey) for i in wanted.tolist()])

        return Part(y[rows], read)


def class_names(folder: Path) -> list[str]:
    """The folders in `folder`: one class each. Raises UsageError where there are fewer than two."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise UsageError(f"{folder} holds {len(names)} class folders", hint=LAYOUTS)
    return names


def list_classes(folder: Path, names: Sequence[str]) -> tuple[list[Path], Tensor]:
    """The picture files below folder/CLASS/ in a fixed order, and their labels. Raises UsageError where none are."""
    files = [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if len(files) < 2:
        raise UsageError(f"{folder} holds {len(files)} pictures in its class folders", hint=LAYOUTS)
    return [file for file, _ in files], torch.tensor([label for _, label in files])


def _read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a csv file with image_id and dx; none for any other file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"image_id", "dx"} <= set(reader.fieldnames or ()):
                return []
            return [row for row in reader if row["image_id"] and row["dx"]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="save it as a csv file in UTF-8") from None


def _group(row: dict[str, str]) -> str:
    return row.get("lesion_id") or row["image_id"]
