"""Cuts any network where exactly one tensor is alive. The pieces compute what the network computes, to the bit.

torch.fx lists the operations of the network. A module whose code depends on values, or on whether it trains, is one
operation. After an operation the network may be cut if all that later ones need is the tensor that it gives, with the
batch first; if no weight is used on both sides; and if nothing later changes the tensor in place. Operations that do
not depend on the input, such as reading a weight, go into each piece that needs them.

Of places with the same weights before them, the one with the fewest features is taken. Of these, as many are chosen as
there are to be stages, so that the stages need about equally many operations.
"""

from __future__ import annotations

import copy
import operator
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

TORCH = f"{Path(torch.__file__).parent}{os.sep}"
CONSTANT = "_tensor_constant"
"""Prefix of the attributes in which torch.fx keeps tensors that a forward pass makes without its input."""


class Uncuttable(Exception):
    """Why a network cannot be cut, with the line of its code, and what can be done."""

    def __init__(self, why: str, cure: str) -> None:
        super().__init__(why)
        self.cure = cure


class Piece(NamedTuple):
    """A stage of a network.

    Attributes:
        place: the module, or operation, after which it ends, with `-` in place of dots.
        module: its weights have the names that they have in the network.
        features: shape of what it gives for one sample.
    """

    place: str
    module: nn.Module
    features: tuple[int, ...]


def cut(net: nn.Module, x: Tensor, stages: int) -> list[Piece]:
    """Cut a network into at most so many pieces, which share its weights.

    Args:
        x: a batch of blank samples, of a size that no other dimension is likely to have.

    Raises:
        Uncuttable: it cannot be cut anywhere.
    """
    graph = _traced(net)
    try:
        seen = _seen(net, graph, x)
    except Exception as error:
        raise Uncuttable(f"its operations cannot be repeated one by one: {error}", STAY) from None
    nodes = _of_input(graph)
    chosen = _balanced(_places(nodes, seen, net.state_dict(keep_vars=True)), stages, seen[nodes[-1]].cost)
    ends = [*(nodes.index(place.node) for place in chosen), len(nodes) - 1]
    return [
        Piece(name, _piece(net, nodes[first : end + 1]), tuple(seen[nodes[end]].value.shape[1:]))
        for name, first, end in zip([*(place.name for place in chosen), "end"], [0, *ends], ends, strict=False)
    ]


# ---- the list of operations ----


class _CodeOfValues(Exception):
    """A module's code cannot be followed without values; it is one operation."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.kind = kind


class _Tracer(fx.Tracer):
    """Follows the first argument of a network; keeps the line of each operation.

    Args:
        whole: kinds of modules that are one operation, beside torch's own.
    """

    proxy_buffer_attributes = True  # else what follows from a buffer would stay what it is now

    def __init__(self, whole: Collection[type[nn.Module]] = ()) -> None:
        super().__init__()
        self._whole = whole

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in self._whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except _CodeOfValues:
            raise
        except Exception as error:
            raise _CodeOfValues(type(m)) from error

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        frame: Any = sys._getframe(1)  # noqa: SLF001 - reading all lines, as `traceback` does, takes long
        while frame.f_back and frame.f_code.co_filename.startswith((TORCH, __file__)):
            frame = frame.f_back
        node.meta["line"] = line(frame.f_code.co_filename, frame.f_lineno)
        return node


def _traced(net: nn.Module) -> fx.Graph:
    """The operations, which are the same in training and in tests. The network is in training mode afterwards. Raises
    Uncuttable."""
    whole: set[type[nn.Module]] = set()
    try:
        while True:
            try:
                tests, training = (_trace(net.train(mode), whole) for mode in (False, True))
            except _CodeOfValues as found:
                whole.add(found.kind)
                continue
            differing = _first_difference(training, tests)
            if differing is None:
                return training
            inside = [kind for _, kind in differing.meta.get("nn_module_stack", {}).values()]
            if differing.op == "call_module":
                inside.pop()
            if not inside:
                raise Uncuttable(
                    f"what it does in {differing.meta['line']} depends on whether it trains",
                    "put that into a module of its own, such as nn.Dropout",
                )
            whole.add(inside[-1])
    except Uncuttable:
        raise
    except Exception as error:
        raise Uncuttable(
            f"its code cannot be followed without values, {line_of(error) or 'in its forward'}: {error}",
            "put the line, such as a branch on data, into a module of its own, which then stays whole",
        ) from None
    finally:
        net.train()


def _trace(net: nn.Module, whole: set[type[nn.Module]]) -> fx.Graph:
    for name in [name for name in vars(net) if name.startswith(CONSTANT)]:
        delattr(net, name)
    return _Tracer(whole).trace(net)


def _first_difference(training: fx.Graph, tests: fx.Graph) -> fx.Node | None:
    def told(node: fx.Node) -> tuple[object, ...]:
        return node.op, node.target, repr(node.args), repr(node.kwargs)

    pairs: Iterator[tuple[fx.Node, fx.Node]] = zip(training.nodes, tests.nodes, strict=False)
    differing = ((one, other) for one, other in pairs if told(one) != told(other))
    return next((one if one.op != "output" else other for one, other in differing), None)


def line(file: str, number: int) -> str:
    """In words."""
    return f"line {number} of {Path(file).name}"


def line_of(error: BaseException) -> str:
    """The last line outside torch in the traceback of an error, in words; "" where there is none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(TORCH)]
    return line(frames[-1].filename, frames[-1].lineno or 0) if frames and frames[-1].filename != __file__ else ""


# ---- where it may be cut ----


class Seen(NamedTuple):
    """What an operation has given, as the network ran without values."""

    value: Any
    version: int  # of the tensor: how often it had been changed in place
    cost: int  # floating-point operations until then


class _Watch(fx.Interpreter):
    def __init__(self, net: nn.Module, graph: fx.Graph, counter: FlopCounterMode) -> None:
        super().__init__(net, graph=graph)
        self.seen: dict[fx.Node, Seen] = {}
        self._counter = counter

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        version = value._version if isinstance(value, Tensor) else 0  # noqa: SLF001 - torch's own name for it
        self.seen[n] = Seen(value, version, self._counter.get_total_flops())
        return value


def _seen(net: nn.Module, graph: fx.Graph, x: Tensor) -> Mapping[fx.Node, Seen]:
    bare = without_values(net)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        watch = _Watch(bare, graph, counter)
        watch.run(x.to("meta"))
    return watch.seen


def without_values(net: nn.Module) -> nn.Module:
    """A copy in training mode on torch's device `meta`: shapes only."""
    bare: dict[int, Any] = {}
    for module in net.modules():
        for value in (*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()):
            if isinstance(value, nn.Parameter):
                bare[id(value)] = nn.Parameter(value.to("meta"), value.requires_grad)
            elif isinstance(value, Tensor):
                bare[id(value)] = value.to("meta")
    return copy.deepcopy(net, bare).train()


class _Place(NamedTuple):
    """An operation after which the network may be cut."""

    node: fx.Node
    name: str
    weights: int  # matrices and the like that are used until there
    features: int  # numbers of a sample
    cost: int


def _places(nodes: Sequence[fx.Node], seen: Mapping[fx.Node, Seen], own: Mapping[str, Tensor]) -> list[_Place]:
    """One place for each number of weights before it, in order. Raises Uncuttable where there is none.

    Args:
        own: the network's parameters and buffers by name.
    """
    used = [_tensors(node, set(nodes), own) for node in nodes]
    last_use = {id(tensor): i for i, tensors in enumerate(used) for tensor in tensors.values()}
    batch, total = len(seen[nodes[0]].value), seen[nodes[-1]].cost
    best: dict[int, _Place] = {}
    refused: list[tuple[int, Uncuttable]] = []
    weights: set[int] = set()
    for i, node in enumerate(nodes[:-1]):
        weights |= {id(tensor) for tensor in used[i].values() if tensor.dim() > 1}
        value, version, cost = seen[node]
        if not (isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1 and len(value) == batch):
            continue
        again = [name for tensors in used[: i + 1] for name, t in tensors.items() if last_use[id(t)] > i]
        why = _why_not(nodes, i, again, changed=value._version > version)  # noqa: SLF001 - torch's own name for it
        if why is not None:
            refused.append((abs(2 * cost - total), why))
        elif len(weights) not in best or value[0].numel() <= best[len(weights)].features:
            best[len(weights)] = _Place(node, _name(nodes, i), len(weights), value[0].numel(), cost)
    weights |= {id(tensor) for tensor in used[-1].values() if tensor.dim() > 1}
    found = [place for place in best.values() if 0 < place.weights < len(weights)]
    if not found:
        raise min(refused, key=lambda each: each[0])[1] if refused else Uncuttable("it is one module", STAY)
    return found


STAY = "build it of several modules, one after the other"


def _of_input(graph: fx.Graph) -> list[fx.Node]:
    """The operations that depend on the input, up to the one that gives the result."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "output":
            (result,) = node.all_input_nodes
        elif node.op == "placeholder" or any(each in found for each in node.all_input_nodes):
            found[node] = None
    nodes = list(found)
    return nodes[: nodes.index(result) + 1]


def _tensors(node: fx.Node, of_input: Collection[fx.Node], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of `own` that an operation uses, also through others that do not
    depend on the input."""
    target = str(node.target)
    found = {name: own[name] for name in own if node.op == "call_module" and name.startswith(f"{target}.")}
    if node.op == "get_attr" and target in own:
        found[target] = own[target]
    for other in node.all_input_nodes:
        found |= {} if other in of_input else _tensors(other, of_input, own)
    return found


def _why_not(nodes: Sequence[fx.Node], i: int, again: Sequence[str], *, changed: bool) -> Uncuttable | None:
    """Why the network may not be cut after `nodes[i]`; None where it may."""
    here, later = nodes[i].meta["line"], set(nodes[i + 1 :])
    alive = [node for node in nodes[:i] if later & node.users.keys()]
    if alive:
        (user, *_) = (node for node in nodes[i + 1 :] if alive[-1] in node.all_input_nodes)
        text = f"behind {here} the value of {alive[-1].meta['line']} is needed again, in {user.meta['line']}"
        return Uncuttable(text, STAY)
    if again:
        return Uncuttable(f"{again[0]} is used before and behind {here}", "use each weight in one place")
    if changed:
        text = f"what {here} gives is changed in place later"
        return Uncuttable(text, "leave `inplace=True` away, or write x = x + y in place of x += y")
    return None


def _name(nodes: Sequence[fx.Node], i: int) -> str:
    """The outermost module that ends with `nodes[i]`, or the operation in its module."""
    later = {path for node in nodes[i + 1 :] for path in _modules(node)}
    ended = [path for path in _modules(nodes[i]) if path not in later]
    return (ended or [".".join([*_modules(nodes[i])[-1:], nodes[i].name])])[0].replace(".", "-")


def _modules(node: fx.Node) -> list[str]:
    """Paths of the modules that an operation is in, the outermost first."""
    return [path for path, _ in node.meta.get("nn_module_stack", {}).values()]


def _balanced(places: Sequence[_Place], stages: int, total: int) -> list[_Place]:
    """At most `stages` - 1 places, each where the rest of the operations is divided most evenly."""
    chosen: list[_Place] = []
    first = cost = 0
    count = min(stages - 1, len(places))
    for left in range(count, 0, -1):
        wanted = cost + (total - cost) / (left + 1)
        open_places = range(first, len(places) - left + 1)
        nearest = min(open_places, key=lambda i: abs(places[i].cost - wanted))
        chosen.append(places[nearest])
        first, cost = nearest + 1, places[nearest].cost
    return chosen


# ---- the pieces ----


class Kept(nn.Module):
    """A tensor that a piece reads and that is none of the network's weights, such as a constant."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=False)

    def forward(self) -> Tensor:
        return self.value


def _piece(net: nn.Module, nodes: Sequence[fx.Node]) -> nn.Module:
    """The module of the operations behind the first of these, of which that one is the input."""
    piece, weights = fx.Graph(tracer_cls=_Tracer), net.state_dict().keys()  # a pickle is read by the tracer
    copies: dict[fx.Node, fx.Node] = {nodes[0]: piece.placeholder("x")}
    parts: dict[str, Any] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            copies[node] = piece.node_copy(node, copied)
            copies[node].meta, target = {}, str(node.target)
            plain = target.isprintable() and {*target}.isdisjoint('"\\') and not any(map(iskeyword, target.split(".")))
            if node.op != "call_function" and not plain:  # torch.fx puts names into the code of a piece as they are
                cure = "name layers by letters, digits and '_', and not by a keyword of Python"
                raise Uncuttable(f"a layer is called {target!r}", cure)
            if node.op in ("get_attr", "call_module"):
                parts[target] = operator.attrgetter(target)(net)
            if node.op == "get_attr" and target not in weights:
                copies[node].op, parts[target] = "call_module", Kept(parts[target])
        return copies[node]

    for node in nodes:
        copied(node)
    piece.output(copies[nodes[-1]])
    return fx.GraphModule(parts, piece)
