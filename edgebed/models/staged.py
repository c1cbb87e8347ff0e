"""One model, cut anywhere: an ordered list of named stages with an auxiliary head per cut.

The device holds the stages before the cut and the cut's head; the server holds the rest. Weights are named by stage
(`md1.conv.weight`, `head3.fc.bias`), so any mixture of halves merges by dictionary. papers.md §0 and §1.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from edgebed import models as _package
from edgebed.errors import PluginError, UsageError
from edgebed.models.learning import blank_x
from edgebed.models.trained_part import TrainedPart, train_part
from edgebed.plugins import Plugin, Registry
from edgebed.typed import convert, mistakes
from edgebed.wire.settings import LearningTask

Weights = dict[str, Tensor]
"""Parameters and buffers by name; always detached."""


GIVEN = "given."
"""Prefix of tensors that come with a task and are not weights; the half finds them in `StagedModel.given`."""

KEPT = "kept."
"""Prefix of the device state; the half finds it in `StagedModel.kept`."""

EXTRA = "extra."
"""Prefix of tensors of an update that are not weights."""


class StagedModel(nn.Module):
    """Stages 1..L in order and a head for each cut 1..L-1.

    Args:
        stages: (name, module) in order; the last stage ends in logits of shape (B, *answer_shape, classes).
        heads: cut -> module from that stage's output to logits; a cut without head is allowed.
        task: what is learned: the shape of a sample, and the classes.
        split_points: the cuts from which a method such as S²FL chooses if its options name none, increasing; all cuts
            1..L-1 if not given.
        uncut: of a network with one stage that was to have more: why, and what can be done.

    Attributes:
        frozen: names of the weights that are never trained.
        loaded: those of them that `load` has brought.
    """

    def __init__(
        self,
        stages: list[tuple[str, nn.Module]],
        heads: Mapping[int, nn.Module],
        task: LearningTask,
        *,
        split_points: Sequence[int] = (),
        uncut: str = "",
    ) -> None:
        super().__init__()
        self.uncut = uncut
        self.split_points = tuple(split_points) or tuple(range(1, len(stages)))
        """Candidate cuts of a method (S²FL) whose options name none."""
        self.stage_names = [name for name, _ in stages]
        self.task, self.input_shape, self.classes = task, task.input_shape, task.classes
        for name, module in stages:
            self.add_module(name, module)
        for cut, head in sorted(heads.items()):
            self.add_module(head_name(cut), head)
        self.cuts_with_head = sorted(heads)
        self.given: Weights = {}
        self.kept: Weights = {}
        self.frozen: frozenset[str] = frozenset()
        self.loaded: frozenset[str] = frozenset()
        self._feature_shapes: dict[object, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.stage_names)

    def stages(self, start: int, stop: int) -> nn.Sequential:
        """Stages start+1..stop as one module that shares this model's weights, keyed by stage name."""
        if not 0 <= start <= stop <= len(self):
            raise UsageError(f"stages {start}..{stop} of a model with {len(self)}", hint=f"a cut is 0..{len(self)}")
        return nn.Sequential(OrderedDict((name, self.get_submodule(name)) for name in self.stage_names[start:stop]))

    def lower(self, cut: int) -> nn.Sequential:
        """The device half without head: x (B, *input_shape) -> features."""
        return self.stages(0, cut)

    def upper(self, cut: int) -> nn.Sequential:
        """The server half: features -> logits (B, classes)."""
        return self.stages(cut, len(self))

    def head(self, cut: int) -> nn.Module:
        if cut not in self.cuts_with_head:
            raise UsageError(f"the model has no head at cut {cut}", hint=f"cuts with a head: {self.cuts_with_head}")
        return self.get_submodule(head_name(cut))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.stage_names:
            x = self.get_submodule(name)(x)
        return x

    def weights(self) -> Weights:
        """All parameters and buffers, heads included, detached and sharing memory with the model."""
        return {name: value.detach() for name, value in self.state_dict().items()}

    def names_below(self, cut: int, *, head: bool) -> list[str]:
        """Names of the weights of the device half at `cut`."""
        owners = set(self.stage_names[:cut]) | ({head_name(cut)} if head else set())
        return [name for name, owner in self._owners if owner in owners]

    def trained_below(self, cut: int) -> list[str]:
        """Names of those weights of the device half at `cut`, with its head, that are trained."""
        return [name for name in self.names_below(cut, head=True) if name not in self.frozen]

    def freeze(self, names: Iterable[str]) -> None:
        """Never train the weights of these names."""
        self.frozen = frozenset(names)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in self.frozen)

    @functools.cached_property
    def _owners(self) -> list[tuple[str, str]]:
        """Names of all weights, each with that of its stage or head. Kept: with hundreds of devices the rounds ask for
        them thousands of times."""
        return [(name, name.split(".", 1)[0]) for name in self.state_dict()]

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy `weights` in by name; weights that are not named stay; tensors `given.…` and `kept.…` of an
        earlier call are removed.

        Raises:
            UsageError: unknown names or shapes.
        """
        state = self.state_dict()
        place = next((value.device for value in state.values()), torch.device("cpu"))
        self.given = {name: value.to(place) for name, value in without_prefix(weights, GIVEN).items()}
        self.kept = {name: value.to(place) for name, value in without_prefix(weights, KEPT).items()}
        for name, value in weights.items():
            if name.startswith((GIVEN, KEPT)):
                continue
            if name not in state:
                raise UsageError(f"the model has no weight {name!r}")
            if state[name].shape != value.shape:
                raise UsageError(
                    f"weight {name!r} has shape {tuple(value.shape)}, the model {tuple(state[name].shape)}"
                )
            with torch.no_grad():
                state[name].copy_(value)
        self.loaded |= self.frozen & weights.keys()

    def feature_shape(self, cut: int) -> tuple[int, ...]:
        """Shape of one sample's features after `cut` stages; worked out once."""
        lower = self.lower(cut)
        key = (cut, *(tuple(weight.shape) for weight in lower.parameters()))  # a narrow copy has other features
        if key not in self._feature_shapes:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # on a busy host several wait for each other, up to seconds
            try:
                with torch.no_grad():
                    out: Tensor = copy.deepcopy(lower).eval()(blank_x(self.task, 1))
            finally:
                torch.set_num_threads(threads)
            self._feature_shapes[key] = tuple(out.shape[1:])
        return self._feature_shapes[key]


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    """Those that have the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bits."""
    total = hashlib.sha256()
    for name, value in sorted(weights.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def head_name(cut: int) -> str:
    return f"head{cut}"


class ModelPlugin(Plugin):
    """Base of a network family: builds a StagedModel for a data set."""

    summary: ClassVar[str] = ""
    small: ClassVar[Mapping[str, object]] = {}
    """Options of a variant that trains within seconds, for tests and trials; empty where the default is that quick."""
    takes: ClassVar[Sequence[str]] = ("pictures",)
    """Kinds of learning tasks that it can be built for (`LearningTask.kind`)."""

    def check_takes(self, task: LearningTask) -> None:
        """Raises UsageError for a learning task of another kind."""
        if task.kind not in self.takes:
            fit = ", ".join(name for name, plugin in MODELS.classes().items() if task.kind in plugin.takes)
            raise UsageError(f"{self.name} takes {' and '.join(self.takes)}, not {task.kind}", hint=f"choose of: {fit}")

    def build(self, task: LearningTask) -> StagedModel:
        """The network for what is learned. Raises UsageError where the samples are too small for it, or of another
        kind."""
        raise NotImplementedError  # the seam that a model file fills


def pooled_head(channels: int, classes: int) -> nn.Module:
    """Auxiliary head of DTFL: global average pool and one fc layer (papers.md §1). (B, C, H, W) -> (B, classes)."""
    return nn.Sequential(
        OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes))
    )


def flat_head(features: int, classes: int) -> nn.Module:
    """Head on all features: one fc layer. (B, ...) with `features` numbers per sample -> (B, classes)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(features, classes)))


def seeded(build: Callable[[], StagedModel], seed: int) -> StagedModel:
    """`build()` with torch's generator at `seed`, the caller's random state left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


class CommonOptions(TrainedPart, frozen=True, forbid_unknown_fields=True):
    """What every model takes beside its own options."""

    channels_last: bool = False
    """Convolutions keep weights and features with the channels last in memory: faster on most CPUs, other last bits."""


class WithOptions(ModelPlugin):
    """A model with common options."""

    def __init__(self, whole: ModelPlugin, common: CommonOptions) -> None:
        self.whole, self.common, self.options = whole, common, whole.options
        self.name, self.summary, self.takes = whole.name, whole.summary, whole.takes  # type: ignore[misc]

    def build(self, task: LearningTask) -> StagedModel:
        model = self.whole.build(task)
        train_part(model, self.common)
        if self.common.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model


class Models(Registry[ModelPlugin]):
    """The models. Beside its own options each takes `CommonOptions`."""

    def create(self, spec: Mapping[str, Any], place: str = "") -> ModelPlugin:
        own, common = _split(spec)
        whole = super().create(own, place)
        if not common:
            return whole

        def here(inner: str) -> str:
            return f"{place}: {inner}" if place else inner

        return WithOptions(whole, convert(common, CommonOptions, here, error=PluginError))

    def mistakes(self, spec: Mapping[str, Any], where: Callable[[str], str], place: str) -> Sequence[UsageError]:
        own, common = _split(spec)
        found, _ = mistakes(common, CommonOptions, lambda key: where(f"{place}.{key}"))
        return [*super().mistakes(own, where, place), *found.values()]


def _split(spec: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's own part of its spec, and its common options."""
    keys = CommonOptions.__struct_fields__
    return {k: v for k, v in spec.items() if k not in keys}, {k: v for k, v in spec.items() if k in keys}


MODELS = Models(_package, ModelPlugin, "model")
