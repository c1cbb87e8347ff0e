"""Networks from outside: a class in a file of yours, or a classifier of torchvision, cut into stages by itself.

    model: {file: net.py, class: Net, with: {width: 32}, stages: 6}
    model: {torchvision: mobilenet_v3_small}

The file is a plug-in: it goes to the run's folder and to all devices. So does `edgebed/of_torchvision`, which brings
torchvision into the agent's image.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from edgebed.errors import UsageError, in_words
from edgebed.models.cutting import Uncuttable, cut, line, line_of, without_values
from edgebed.models.learning import blank_x
from edgebed.models.staged import ModelPlugin, StagedModel, flat_head, pooled_head
from edgebed.models.transformer import answer_head
from edgebed.plugin_code import LOADED
from edgebed.plugins import called
from edgebed.typed import nearest
from edgebed.wire.settings import LearningTask

Stages = Annotated[int, msgspec.Meta(ge=1, le=64)]

SAMPLES = 3
"""Of the batch with which a network is tried."""

OF_TORCHVISION = Path(__file__).parents[1] / "of_torchvision"


class Network(ModelPlugin):
    """A class or function of a plug-in, which makes an `nn.Module`."""

    key = "file"
    summary = "a network of your own"
    takes = ("pictures", "rows of a table", "sequences of tokens", "the next token of sequences")

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`file`: beside the experiment; `class`: of the network in it; `with`: what its constructor gets, where
        `classes`, `num_classes`, `input_shape` and `vocabulary` come from the data; `stages`: at most, 8."""

        file: str
        class_: str = msgspec.field(name="class")
        with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)
        stages: Stages = 8

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.code, self.maker = self.made_by()
        self.name = called(msgspec.to_builtins(self.options))

    def made_by(self) -> tuple[str, str]:
        """Names of the plug-in, and of the class or function in it."""
        return Path(self.options.file).stem, self.options.class_

    def build(self, task: LearningTask) -> StagedModel:
        with torch.device("cpu"):
            net = self._made(task)
            uncut = self._tried(net, task)
            if uncut is None and self.options.stages > 1:
                try:
                    return self._cut(net, task)
                except Uncuttable as why:
                    uncut = why
        return StagedModel([("network", net)], {}, task, uncut="" if uncut is None else f"{uncut}; {uncut.cure}")

    def _made(self, task: LearningTask) -> nn.Module:
        module = sys.modules.get(self.code) if self.code in LOADED else None
        make = getattr(module, self.maker, None)
        home = str(getattr(make, "__module__", "")).partition(".")[0]
        if not callable(make) or home != self.code:  # a device runs no code but that of its plug-ins
            names = [] if module is None else [name for name in dir(module) if name[0] != "_"]
            raise UsageError(
                f"the plug-in {self.code} has no {self.maker!r}{nearest(self.maker, names)}",
                hint="name a class that is defined there, or a function that makes the network",
            )
        known = {"num_classes": task.classes, **msgspec.structs.asdict(task)}
        taken = inspect.signature(make).parameters
        given = {key: value for key, value in known.items() if key in taken} | self.options.with_
        other = isinstance(make, type) and not issubclass(make, nn.Module)  # which may do anything as it is made
        try:
            net = None if other else make(**given)
        except Exception as error:
            raise UsageError(
                f"{self.name} cannot be made: {in_words(error)}{_in(line_of(error))}",
                hint="give its constructor what it needs under `with`",
            ) from error
        if not isinstance(net, nn.Module):
            raise UsageError(f"{self.name} makes no torch.nn.Module", hint="name the class of the network")
        return net

    def _tried(self, net: nn.Module, task: LearningTask) -> Uncuttable | None:
        """Run the network once, without values where it allows that; why it does not. Raises UsageError where it cannot
        take such samples, or gives no logits."""
        x, uncut = blank_x(task, SAMPLES), None
        try:
            with torch.device("meta"):
                out = without_values(net)(x.to("meta"))
        except Exception as error:
            out = self._run(net.eval(), x)
            net.train()
            uncut = Uncuttable(
                f"it needs values, not shapes alone{_in(line_of(error))}: {_first_line(error)}",
                "leave the branch on data away, or take a method that trains whole networks",
            )
        wanted = (SAMPLES, *task.answer_shape, task.classes)
        if not isinstance(out, Tensor) or tuple(out.shape) != wanted:
            code = type(net).forward.__code__
            what = f"a tensor of {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise UsageError(
                f"{self.name} gives {what} for {SAMPLES} samples, and not logits of {wanted}, in its forward in "
                f"{line(code.co_filename, code.co_firstlineno)}",
                hint=f"return a tensor alone, with {task.classes} logits for each answer",
            )
        return uncut

    def _run(self, net: nn.Module, x: Tensor) -> Any:
        try:
            with torch.no_grad():
                return net(x)
        except Exception as error:
            raise UsageError(
                f"{self.name} cannot take an input of {'x'.join(map(str, x.shape[1:]))}: {_first_line(error)}"
                f"{_in(line_of(error))}",
                hint="give data of another shape, or change the network",
            ) from error

    def _cut(self, net: nn.Module, task: LearningTask) -> StagedModel:
        pieces = cut(net, blank_x(task, SAMPLES), self.options.stages)
        heads = {number: head_for(piece.features, task) for number, piece in enumerate(pieces[:-1], 1)}
        return StagedModel(
            [(f"{number}-{piece.place}", piece.module) for number, piece in enumerate(pieces, 1)],
            {number: head for number, head in heads.items() if head is not None},
            task,
        )


class OfTorchvision(Network):
    key = "torchvision"
    summary = "of torchvision"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """`torchvision`: name of one of its classifiers; `with`: what that gets beside `num_classes`; `stages`: at
        most, 8."""

        torchvision: str
        with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)
        stages: Stages = 8

    def made_by(self) -> tuple[str, str]:
        return OF_TORCHVISION.name, self.options.torchvision


def code_of(spec: Mapping[str, Any]) -> str:
    """The plug-in that a model needs, as `plugins:` would name it; "" for none."""
    return str(OF_TORCHVISION) if OfTorchvision.key in spec else str(spec.get(Network.key) or "")


def head_for(features: tuple[int, ...], task: LearningTask) -> nn.Module | None:
    """An auxiliary head for features of this shape: the mean of a map or of all tokens, and a linear layer. None where
    each token has an answer, and the features are not those of tokens.

    Of three dimensions, the channels come last where the first two are equal and the last is not.
    """
    if task.per_token:
        return answer_head(features[-1], task) if len(features) == 2 and features[:1] == task.answer_shape else None
    if len(features) == 1:
        return flat_head(features[0], task.classes)
    if len(features) == 2:
        return answer_head(features[-1], task)
    if len(features) == 3 and features[0] == features[1] != features[2]:
        return nn.Sequential(nn.Flatten(1, 2), answer_head(features[-1], task))
    return nn.Sequential(nn.Flatten(3), pooled_head(features[0], task.classes))


def _in(place: str) -> str:
    return f", in {place}" if place else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
