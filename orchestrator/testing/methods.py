"""What every method must do, as checks that `edgebed check-method`, its pytest option and Edgebed's own tests apply."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from edgebed.errors import EdgebedError, PluginError
from edgebed.methods.base import METHODS, Method, Plan
from edgebed.models.staged import Weights
from edgebed.plugin_code import LOADED, classes_of
from orchestrator.files.plugged import given, take_in
from orchestrator.papers.learnings import learning_of
from orchestrator.testing.agents import Agents
from orchestrator.testing.log import Altered, Log
from orchestrator.testing.rounds import EVERY, Shards, Step, make_method, one_class, play, shard, small_model

THREE = {"a": 10, "b": 9, "c": 6}
ROUNDS, BEFORE = 6, 4
LONG, OVERLAPPING = 20, 8
"""Rounds after which a mistake that grows is seen, and in which updates of before and behind a merge are merged."""
SMALL = 0.01
AWAY = {BEFORE: ("a",)}
"""The fastest is away in the first round after the resumption, so that a method that forgot it plans otherwise."""

Case = tuple[str, Mapping[str, object]]
"""A method's name, and options."""


def methods_of(plugin: str) -> list[str]:
    """Use a plug-in; returns the names of its methods. Raises PluginError where it has none."""
    take_in(given([plugin]))
    classes = classes_of(LOADED[Path(plugin).stem])
    names = [name for name, cls in METHODS.classes().items() if cls in classes]
    if not names:
        raise PluginError(f"the plug-in {plugin} has no method", hint="derive a class from edgebed.methods.base.Method")
    return names


def cases_of(*names: str) -> list[Case]:
    """These methods, each with its default options and with each of its `variants`."""
    return [(name, options) for name in names for options in ({}, *vars(METHODS.classes()[name]).get("variants", ()))]


def title(case: Case) -> str:
    return "-".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


def require(true: bool, otherwise: str) -> None:
    """Raises AssertionError with what is wrong, in words."""
    if not true:
        raise AssertionError(otherwise)


def make(case: Case) -> Method:
    return make_method(case[0], **case[1])


def initial() -> Weights:
    return {name: value.clone() for name, value in small_model().weights().items()}


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def same_plans(left: list[Plan], right: list[Plan]) -> bool:
    return [msgspec.json.encode(each) for each in left] == [msgspec.json.encode(each) for each in right]


@dataclass
class Whole:
    """A run of six rounds that nothing disturbs, and what a checkpoint after the fourth holds."""

    start: Weights
    middle: Weights
    end: Weights
    log: Log
    state: str
    tensors: Weights
    copies: bool  # the server had copies of the devices' states


_wholes: dict[tuple[int, str], Whole] = {}


async def whole(case: Case) -> Whole:
    """Played once for all checks of a case."""
    key = (id(METHODS.classes()[case[0]]), json.dumps(case))
    if key not in _wholes:
        method, start, log, agents = make(case), initial(), Log(), Agents()
        middle = await play(method, start, THREE, range(BEFORE), log=log, agents=agents)
        state, copies = json.dumps(method.state()), any(method.state_copy(device) for device in THREE)
        tensors = {name: value.clone() for name, value in method.tensors().items()}
        kept = {name: value.clone() for name, value in middle.items()}
        end = await play(method, middle, THREE, range(BEFORE, ROUNDS), away=AWAY, log=log, agents=agents)
        _wholes[key] = Whole(start, kept, end, log, state, tensors, copies)
    return _wholes[key]


async def says_what_its_learning_follows_from(case: Case) -> None:
    """Or why it follows from times: `edgebed reproduce --share` lets runs with equal answers share one training."""
    said = learning_of(METHODS.create({"name": case[0], **case[1]}))
    require(bool(said), "`learning` answers nothing: name the options that weights depend on, or say why times matter")
    require(isinstance(said, str) or bool(msgspec.json.encode(said)), "")


async def trains_on_one_device(case: Case) -> None:
    """A method that collects the work of several rounds before it merges may remember it in `tensors`."""
    method, before = make(case), initial()
    after = await play(method, before, {"a": 10}, range(2))
    require(list(after) == list(before), "`merge` returned other names than it was given, or in another order")
    learnt = bool(method.tensors()) or not same(before, after)
    require(learnt, "after two rounds on one device the weights are those of the start")


async def merges_three_devices_to_finite_weights(case: Case) -> None:
    run, before = await whole(case), initial()
    require(fits(run.end), "the merged weights are not finite, or have other shapes or types than the model's")
    require(not same(before, run.end), f"after {ROUNDS} rounds the weights are those of the start")
    require(same(before, run.start), "it changed the weights that it was given: `merge` must return new tensors")


def loss_on(weights: Weights, devices: Mapping[str, int], shards: Shards = shard) -> float:
    """Mean cross-entropy of the whole model over the samples of the devices (name -> samples). Those of a device are
    one batch, whose statistics batch norm takes."""
    model, total = small_model(), 0.0
    model.load(dict(weights))
    with torch.no_grad():
        for device, samples in devices.items():
            x, y = shards(device, samples)
            total += float(nn.functional.cross_entropy(model.train()(x), y, reduction="sum"))
    return total / sum(devices.values())


async def gets_better_at_what_it_trains_on(case: Case) -> None:
    """Which a method that applies an update with the wrong sign does not."""
    run = await whole(case)
    before, after = loss_on(run.start, THREE), loss_on(run.end, THREE)
    require(
        after < before, f"after {ROUNDS} rounds the loss on the devices' samples is {after:.3f}, not below {before:.3f}"
    )


async def what_it_keeps_drives_it_nowhere_else(case: Case) -> None:
    """Where each device has a class of its own, and another one is away in each round: what is kept with a wrong sign
    grows from round to round, until the model is worse than at the start. (A method that keeps no tensors cannot do
    so.)"""
    method, weights = make(case), initial()
    if not ((await whole(case)).tensors or method.keeps_state):
        return
    before = loss_on(weights, THREE, one_class)
    away = {number: ("abc"[number % 3],) for number in range(1, LONG)}
    after = loss_on(await play(method, weights, THREE, range(LONG), away=away, shards=one_class), THREE, one_class)
    require(
        after < before,
        f"after {LONG} rounds on devices with a class each the loss is {after:.3f}, not below {before:.3f}: what it "
        "keeps from round to round may have a wrong sign",
    )


async def moved(case: Case, at: int, *, with_base: bool = False) -> float:
    """How far the parameters move in the next change of the global weights if update `at`, and with it the weights that
    its device began with, is moved by 1; 0 where they do not change again."""
    change = {name: torch.full_like(value, 0.01) for name, value in small_model().named_parameters()}
    plain, other = Altered(), Altered(at=at, with_base=with_base, change=change)
    for log in (plain, other):
        await play(make(case), initial(), THREE, range(OVERLAPPING), log=log)
    first = plain.seen[at][2]
    changed = (place for place in range(first, len(plain.after)) if plain.after[place] is not plain.after[first - 1])
    place = next(changed, 0)
    return max(float(((other.after[place][n] - plain.after[place][n]) / change[n]).abs().max()) for n in change)


async def brings_its_change_alone_however_late(case: Case) -> None:
    """Where rounds overlap: an update of a device that learned nothing changes nothing, whatever was merged since the
    device began, and none weighs more than a fresh one of the same device."""
    log = Altered()
    if make(case).merges_models or len((await whole(case)).log.plans) <= ROUNDS:
        return
    await play(make(case), initial(), THREE, range(OVERLAPPING), log=log)
    late, fresh = ({d: n for n, (d, is_late, _) in [*enumerate(log.seen)][::-1] if is_late == kind} for kind in (1, 0))
    for device in sorted(late.keys() & fresh.keys())[:1]:
        require(
            await moved(case, late[device], with_base=True) < SMALL,
            "an update counts for more than its difference from `base`, and undoes what was merged since its device "
            "began; where whole models are merged, of whatever age, say `merges_models = True`",
        )
        of_late, of_fresh = await moved(case, late[device]), await moved(case, fresh[device])
        require(
            of_late <= (1 + SMALL) * of_fresh,
            f"an update moves the weights by {of_late:.3f} of its length where others were merged since its device "
            f"began, and by {of_fresh:.3f} where none were",
        )


async def gives_the_same_bits_whatever_the_order_of_arrival(case: Case) -> None:
    run, log = await whole(case), Log()
    end = await play(make(case), initial(), THREE, range(ROUNDS), order=3, away=AWAY, log=log)
    require(same(end, run.end), "a second run, whose uploads came in another order, has other weights")
    require(same_plans(log.plans, run.log.plans), "a second run, whose uploads came in another order, has other plans")


async def loses_a_device_at_no_cost_to_the_others(case: Case) -> None:
    """Every round it falls silent at another moment, also when a half that it shares with others has used its batches.
    That all uploads of the others are used and their work is merged, `play` asserts."""
    log = Log()
    after = await play(make(case), initial(), THREE, range(ROUNDS), lost=("b",), log=log)
    require(fits(after), "where a device is lost, the weights are not finite, or have other shapes or types")
    require(not same(initial(), after), "where a device is lost, the others' work changes nothing")
    still = [name for name in log.upper if torch.equal(after[name], initial()[name])]
    require(not still, f"where a device is lost, the server's part stays as it was: {', '.join(still[:3])}")


async def keeps_no_trace_of_a_lost_device(case: Case) -> None:
    """Where it had a server half of its own, whenever it falls silent: weights and plans are those of a run in which it
    sends nothing. What a half that it shares with others has learned from its batches cannot be taken back; there this
    holds if it is lost before any step. (Without server halves nothing could leave a trace.)"""
    if not (await whole(case)).log.halves:
        return
    logs = Log(), Log()
    ends = [
        await play(
            make(case),
            initial(),
            THREE,
            range(ROUNDS),
            lost=("b",),
            moments=moments,
            moments_shared=(Step.BEFORE,),
            order=order,
            log=log,
        )
        for order, (moments, log) in enumerate(zip(((Step.BEFORE,), EVERY), logs, strict=True))
    ]
    require(same(*ends), "what a lost device had sent is in the weights")
    require(same_plans(*(log.plans for log in logs)), "what a lost device had sent changes later plans")


async def goes_on_when_an_agent_is_started_again(case: Case) -> None:
    """What its device kept is gone: with the server's copy all is as if it were not."""
    run, log = await whole(case), Log()
    end = await play(make(case), initial(), THREE, range(ROUNDS), away=AWAY, restarts=("b",), log=log)
    require(fits(end), "where an agent is started again, the weights are not finite, or have other shapes or types")
    if "restored" in log.origins:
        require(same(end, run.end), "`state_copy` is not what the device had kept: the weights are others with it")
    elif "kept" not in run.log.origins:
        require(same(end, run.end), "it says `keeps_state = False`, and the weights are others without the state")


async def undoes_on_a_device_what_was_not_merged(case: Case) -> None:
    """A device that works and falls silent before its update goes on as one that had not worked."""
    ends = []
    for moment in (Step.BEFORE, Step.TRAINED):
        method, agents = make(case), Agents()
        middle = await play(method, initial(), THREE, range(2), agents=agents)
        how: dict[str, Any] = {"lost": ("b",), "moments": (moment,), "moments_shared": (Step.BEFORE,)}
        middle = await play(method, middle, THREE, range(2, 3), agents=agents, **how)
        ends.append(await play(method, middle, THREE, range(3, 5), agents=agents))
    require(same(*ends), "what a device kept from work that was not merged is in the weights")


async def resumes_to_the_same_weights_and_plans(case: Case) -> None:
    """Where devices keep state of which the server has no copy, it is gone, and the weights may be others."""
    run, method = await whole(case), make(case)
    method.restore(json.loads(run.state), {name: value.clone() for name, value in run.tensors.items()})
    if method.keeps_state and not run.copies:
        await play(method, dict(run.middle), THREE, range(BEFORE, ROUNDS), away=AWAY)
        return
    why = await _otherwise(run, method)
    require(not why, f"it forgets something at a resumption: {why}; give it back from `state` or `tensors`")


async def remembers_only_what_it_needs(case: Case) -> None:
    """Or the check above could not fail: a method that remembers something goes on otherwise once it has forgotten."""
    run, method = await whole(case), make(case)
    if json.loads(run.state) == json.loads(json.dumps(method.state())) and not run.tensors:
        return
    why = await _otherwise(run, method)
    require(bool(why), "`state` or `tensors` hold something, and a run without it goes on alike: it is not needed")


async def _otherwise(run: Whole, method: Method) -> str:
    """How the rounds after the checkpoint differ from those of the run; "" where they do not."""
    log = Log()
    try:
        end = await play(method, dict(run.middle), THREE, range(BEFORE, ROUNDS), away=AWAY, order=1, log=log)
    except EdgebedError as error:
        return str(error)
    if not same_plans(log.plans, run.log.plans[-len(log.plans) :]):
        return "its plans are others than those of a run without a break"
    return "" if same(end, run.end) else "its weights are others than those of a run without a break"


def fits(weights: Weights) -> bool:
    """Finite, and shaped and typed as the model's."""
    kinds = {name: (value.shape, value.dtype) for name, value in initial().items()}
    return {name: (value.shape, value.dtype) for name, value in weights.items()} == kinds and all(
        bool(torch.isfinite(value).all()) for value in weights.values()
    )


async def refuses_an_unknown_option(case: Case) -> None:
    try:
        make_method(case[0], no_such_option=1)
    except EdgebedError as error:
        require("no_such_option" in str(error), f"the refusal of an unknown option does not name it: {error}")
    else:
        raise AssertionError("an unknown option is taken: give `Options` forbid_unknown_fields=True")


Check = Callable[[Case], Coroutine[Any, Any, None]]
CHECKS: tuple[Check, ...] = (
    trains_on_one_device,
    merges_three_devices_to_finite_weights,
    gets_better_at_what_it_trains_on,
    what_it_keeps_drives_it_nowhere_else,
    brings_its_change_alone_however_late,
    gives_the_same_bits_whatever_the_order_of_arrival,
    loses_a_device_at_no_cost_to_the_others,
    keeps_no_trace_of_a_lost_device,
    goes_on_when_an_agent_is_started_again,
    undoes_on_a_device_what_was_not_merged,
    resumes_to_the_same_weights_and_plans,
    remembers_only_what_it_needs,
    refuses_an_unknown_option,
    says_what_its_learning_follows_from,
)


def words_of(check: Check) -> str:
    """What a check looks at, as a person reads it."""
    return check.__name__.replace("_", " ")
