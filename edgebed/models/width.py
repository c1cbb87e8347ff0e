"""Narrow networks: which channels belong together, the network without some of them, and the merge of such networks.

A *width group* is a set of channels (or neurons) that can only be left out together everywhere: the rows of the layer
that makes them, their batch norm, and the columns of every layer that reads them, heads included. Where a residual
block adds its input to its output, both are one group. The input's channels and the logits are no group.

The groups are derived from the modules (`width_groups`), so a model file declares nothing. Known are Sequential,
Block, Conv2d (plain and depthwise), Linear, BatchNorm and what works channel by channel; the channels into and out of
any other module keep their full width.

`keep` says what a device trains: group -> kept indices, increasing; a group that is absent keeps all. FedDrop (random
neurons and filters), HeteroFL (the first ones) and FedRolex (a rolling window) differ in `keep` alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgebed.errors import UsageError
from edgebed.models.layers import Block
from edgebed.models.staged import StagedModel, Weights, head_name

Keep = Mapping[str, tuple[int, ...]]
"""Kept indices by group, increasing; an absent group keeps its full width."""

BY_CHANNEL = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Dropout2d),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


class Member(NamedTuple):
    """One axis of one tensor: index i of the group is the slice i*repeat .. (i+1)*repeat-1 of `dim`.

    `repeat` is above 1 where a layer reads a flattened map: one channel is H·W of its inputs.
    """

    tensor: str
    dim: int
    repeat: int = 1


class Group(NamedTuple):
    """Channels that are kept or left out together."""

    size: int
    members: tuple[Member, ...]


Groups = Mapping[str, Group]


# ---- deriving the groups ---------------------------------------------------------------------------------------------


class _Channels:
    """Channels that flow from one module to the next; `number` counts them in the order of the modules. `same` points
    to earlier channels that turned out to be the same ones."""

    def __init__(self, name: str, size: int, number: int = 0, *, fixed: bool = False) -> None:
        self.name, self.size, self.number, self.fixed = name, size, number, fixed
        self.members: list[Member] = []
        self.same: _Channels | None = None

    def root(self) -> _Channels:
        return self if self.same is None else self.same.root()

    def join(self, other: _Channels) -> _Channels:
        """Join both into one; it keeps the name of the earlier."""
        first, second = sorted((self.root(), other.root()), key=lambda channels: channels.number)
        if first is not second:
            first.members += second.members
            first.fixed |= second.fixed
            second.same = first
        return first


class _Walk:
    """Goes through the modules in the order of the data, and notes which modules make and read which channels."""

    def __init__(self, *, flat: bool) -> None:
        self.made: list[_Channels] = []
        self.flat = flat  # the data are vectors; a Linear that reads a map reads its columns, not its channels

    def through(self, module: nn.Module, path: str, flow: _Channels) -> _Channels:
        """Output channels of `module`, given its input channels (`flow`)."""
        if isinstance(module, nn.Sequential):
            for name, child in module.named_children():
                flow = self.through(child, f"{path}.{name}", flow)
            return flow
        if isinstance(module, Block):
            out = self.through(module.layers, f"{path}.layers", flow)
            return out.join(self.through(module.project, f"{path}.project", flow))
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            return self._weighted(module, path, flow)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            self._member(flow, module, path, ("weight", "bias", "running_mean", "running_var"), 0)
            return flow
        if isinstance(module, nn.Flatten) and module.start_dim == 1:
            self.flat = True
            return flow
        if isinstance(module, BY_CHANNEL):
            return flow
        flow.root().fixed = True
        return _Channels(path, 0, fixed=True)

    def _weighted(self, module: nn.Conv2d | nn.Linear, path: str, flow: _Channels) -> _Channels:
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            if not module.groups == module.in_channels == module.out_channels:
                flow.root().fixed = True
                return _Channels(path, module.out_channels, fixed=True)
            self._member(flow, module, path, ("weight", "bias"), 0)  # depthwise: each channel gives one channel
            return flow
        if isinstance(module, nn.Linear) and not self.flat:
            flow.root().fixed = True
        self._member(flow, module, path, ("weight",), 1)
        out = _Channels(path, module.weight.shape[0], len(self.made) + 1)
        self.made.append(out)
        self._member(out, module, path, ("weight", "bias"), 0)
        return out

    def _member(self, flow: _Channels, module: nn.Module, path: str, names: Iterable[str], dim: int) -> None:
        channels = flow.root()
        for name in names:
            tensor = getattr(module, name)
            if tensor is None:
                continue
            repeat, rest = divmod(tensor.shape[dim], channels.size) if channels.size else (0, 1)
            if rest:
                channels.fixed = True  # what is read are not these channels
            channels.members.append(Member(f"{path}.{name}", dim, repeat))


def width_groups(model: StagedModel) -> dict[str, Group]:
    """The groups of a model, in the order of the data, each named after the module that makes its channels."""
    walk = _Walk(flat=len(model.input_shape) == 1)
    flow = _Channels("input", model.input_shape[0], fixed=True)
    for cut, name in enumerate(model.stage_names, 1):
        flow = walk.through(model.get_submodule(name), name, flow)
        if cut in model.cuts_with_head:
            trunk = walk.flat
            walk.through(model.head(cut), head_name(cut), flow).root().fixed = True
            walk.flat = trunk
    flow.root().fixed = True  # the logits
    roots = {id(made.root()): made.root() for made in walk.made}.values()
    return {root.name: Group(root.size, tuple(root.members)) for root in roots if not root.fixed}


def logits_group(model: StagedModel) -> dict[str, Group]:
    """The rows of the last layer, which make the logits, as a group; {} where the model does not end with a layer that
    is known."""
    modules = model.stages(0, len(model)).named_modules()
    for path, last in [(path, each) for path, each in modules if isinstance(each, (nn.Conv2d, nn.Linear))][-1:]:
        members = tuple(Member(f"{path}.{name}", 0) for name, _ in last.named_parameters())
        return {"logits": Group(model.classes, members)} if len(last.weight) == model.classes else {}
    return {}


# ---- choosing, cutting out, putting back -----------------------------------------------------------------------------


def ordered_keep(groups: Groups, fraction: float) -> dict[str, tuple[int, ...]]:
    """The first channels of every group (HeteroFL), at least one of each."""
    return {name: tuple(range(kept_size(group, fraction))) for name, group in groups.items()}


def window(groups: Groups, fraction: float, start: int) -> dict[str, tuple[int, ...]]:
    """As many channels of every group, from `start` on and round its end (FedRolex)."""
    return {
        name: tuple(sorted((start + place) % group.size for place in range(kept_size(group, fraction))))
        for name, group in groups.items()
    }


def random_keep(groups: Groups, fraction: float, generator: torch.Generator) -> dict[str, tuple[int, ...]]:
    """As many channels of every group, drawn (FedDrop)."""
    return {
        name: tuple(sorted(torch.randperm(group.size, generator=generator)[: kept_size(group, fraction)].tolist()))
        for name, group in groups.items()
    }


def kept_sizes(keep: Keep) -> tuple[tuple[str, int], ...]:
    """How many channels are kept of each group in `keep`. The cost of a narrow network depends only on these
    numbers."""
    return tuple(sorted((name, len(kept)) for name, kept in keep.items()))


def kept_size(group: Group, fraction: float) -> int:
    """How many channels a fraction is: rounded, at least one."""
    if not 0 < fraction <= 1:
        raise UsageError(f"a width of {fraction}", hint="a fraction above 0, at most 1")
    return max(1, round(group.size * fraction))


def narrow_model(model: StagedModel, keep: Keep) -> StagedModel:
    """A copy with smaller tensors, which needs less computation in every pass. It has the weights of the kept channels.

    Raises:
        UsageError: `keep` names a group the model lacks, or indices it has not.
    """
    groups = width_groups(model)
    small = slice_weights(model.weights(), groups, keep)
    narrow = copy.deepcopy(model)
    for path, module in narrow.named_modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            value = small.get(f"{path}.{name}", tensor)
            if value.shape != tensor.shape:
                tensor.data = value.clone()
        _describe(module)
    return narrow


def _describe(module: nn.Module) -> None:
    """Set the sizes a module remembers to those of its tensors; a depthwise convolution computes with its own."""
    if isinstance(module, nn.Conv2d):
        depthwise = module.groups > 1 and module.groups == module.in_channels
        module.out_channels = module.weight.shape[0]
        module.groups = module.out_channels if depthwise else module.groups
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.running_mean is not None:
        module.num_features = module.running_mean.shape[0]


def slice_weights(weights: Mapping[str, Tensor], groups: Groups, keep: Keep) -> Weights:
    """The kept part of full weights, by name; a tensor that keeps its width is given as it is. Any subset of names."""
    index = _indices(groups, keep)
    return {name: _take(value, index.get(name, {})) for name, value in weights.items()}


def scatter_mean(
    weights: Mapping[str, Tensor], groups: Groups, parts: Sequence[tuple[float, Mapping[str, Tensor], Keep]]
) -> Weights:
    """Per coordinate of every tensor, the weighted mean over the devices that had it; one that none had stays.

    With full widths this is the mean by name to the bit. Integer counters take the maximum **[ours]**.

    Args:
        weights: the full weights before the round.
        parts: (share, narrow weights by name, what they kept) of each device; shares are positive.
    """
    indexed = [(share, part, _indices(groups, keep)) for share, part, keep in parts]
    return {
        name: _mean(value, [(share, part[name], index.get(name, {})) for share, part, index in indexed if name in part])
        for name, value in weights.items()
    }


_Index = dict[int, Tensor]
"""Kept indices by dimension of one tensor."""


def _mean(current: Tensor, parts: Sequence[tuple[float, Tensor, _Index]]) -> Tensor:
    if not parts:
        return current
    if not current.is_floating_point():
        return torch.stack([value for _, value, _ in parts]).amax(0)
    if len(parts) == 1:
        _, value, index = parts[0]
        whole = current.clone()
        whole[_mesh(current, index)] = value
        return whole
    total, shares = (torch.zeros(current.shape, dtype=torch.float64) for _ in "ab")
    for share, value, index in parts:
        place = _mesh(current, index)
        total[place] += share * value.to(torch.float64)
        shares[place] += share
    return torch.where(shares > 0, total / shares, current.to(torch.float64)).to(current.dtype)


def _indices(groups: Groups, keep: Keep) -> dict[str, _Index]:
    """What is kept of each tensor that is not kept whole. Raises UsageError."""
    found: dict[str, _Index] = {}
    for name, kept in keep.items():
        group = groups.get(name)
        if group is None:
            raise UsageError(f"the model has no width group {name!r}", hint=f"its groups are: {', '.join(groups)}")
        if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= group.size:
            raise UsageError(
                f"width group {name!r} of {group.size} cannot keep {list(kept)[:8]}",
                hint=f"give increasing indices within 0..{group.size - 1}, at least one",
            )
        for member in group.members if len(kept) < group.size else ():
            first = torch.tensor(kept).unsqueeze(1) * member.repeat
            found.setdefault(member.tensor, {})[member.dim] = (first + torch.arange(member.repeat)).flatten()
    return found


def _take(value: Tensor, index: _Index) -> Tensor:
    for dim, kept in index.items():
        value = value.index_select(dim, kept.to(value.device))
    return value


def _mesh(value: Tensor, index: _Index) -> tuple[Tensor, ...]:
    """An index of `value` whose result has the shape of the kept part. Dimensions behind the last cut one are whole."""
    if not index:
        return ()
    axes = [index.get(dim, torch.arange(value.shape[dim])) for dim in range(max(index) + 1)]
    return torch.meshgrid(*axes, indexing="ij")
