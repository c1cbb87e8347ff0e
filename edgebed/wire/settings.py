"""What an experiment sets of a device's work, as it stands in files and in an assignment. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class LearningTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is learned: what a sample looks like and what is to be answered. A sample has `input_shape`: (C, H, W) of a
    picture, (F,) of a table's row, (T,) of a sequence of tokens. The answer is one of `classes`."""

    input_shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0  # samples are int64 tokens below this; 0: samples are numbers
    per_token: bool = False  # an answer for each token (the next one), not one for the sample

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """Shape of what a sample is to be answered with: () or (T,)."""
        return self.input_shape if self.per_token else ()

    @property
    def kind(self) -> str:
        """In words, for people."""
        if self.vocabulary:
            return "the next token of sequences" if self.per_token else "sequences of tokens"
        return "pictures" if len(self.input_shape) == 3 else "rows of a table"

    def __str__(self) -> str:
        shape, tokens = "x".join(map(str, self.input_shape)), f" tokens of {self.vocabulary}" if self.vocabulary else ""
        return f"{shape}{tokens} to {self.classes}{' each' if self.per_token else ''}"


class Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A torch optimizer by name. Both halves of a split model use the same (papers.md §1)."""

    name: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, msgspec.Meta(gt=0)] = 0.001
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    amsgrad: bool = False  # of adam: divide by the greatest second moment so far

    def __post_init__(self) -> None:
        if self.amsgrad and self.name != "adam":
            raise ValueError(f"amsgrad with {self.name}: it is an option of adam; set name: adam or leave it out")


class Augment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device does to its training samples, anew in each epoch (`edgebed.datasets.augment`); nothing by
    default."""

    crop: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0  # pixels a sample is moved by at most, each way
    flip: bool = False  # left to right, with chance a half
    cutout: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0  # side of a square that is blanked


class Codec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tensors are written on the wire: a number format, with or without zstd."""

    dtype: Literal["float32", "float16", "uint8"] = "float32"
    zstd: bool = False


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device does to its features before they leave it (papers.md §1.3). The device's own choice: it stands in
    its shard file, and the orchestrator's messages always carry the default."""

    dcor_alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # weight of the distance correlation in the loss
    patch_shuffle: Annotated[int, msgspec.Meta(ge=0)] = 0  # side of the patches that are shuffled; 0 = none
    secret: Annotated[int, msgspec.Meta(ge=0)] = 0  # what the shuffles are drawn by, beside the assignment's seed


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that come to a device while it serves, one sample of its shard each: a Poisson process of `rate` per
    second, `count` in all; 0: none of its own, they come from others. Times and samples follow from the seed."""

    rate: float = 0.0
    count: int = 0
