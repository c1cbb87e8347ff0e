"""DTFL: which cuts its tiers are, what it plans, what it keeps."""

from __future__ import annotations

import json

import msgspec
import pytest

from edgebed.errors import PluginError, RunError, UsageError
from edgebed.methods.base import METHODS, Context, Outcome, Plan
from edgebed.models.staged import StagedModel
from edgebed.wire.messages import Report
from edgebed.wire.settings import LearningTask
from orchestrator.testing.rounds import COSTS, SCHEDULE, make_method, small_model, view


def outcome(plan: Plan, device: str, compute_s: float, link_bytes_s: float) -> Outcome:
    report = Report(10, 3, 1.0, compute_s, compute_s, None, 0, 0.0, 0, 0.0, 0.0)
    return Outcome(device, plan.assignments[device], report, compute_s, 0.0, link_bytes_s, 0.5)


@pytest.mark.parametrize(("tiers", "cuts"), [(1, (3,)), (2, (2, 3)), (3, (1, 2, 3)), (7, (1, 2, 3))])
def test_tiers_are_the_deepest_cuts(tiers: int, cuts: tuple[int, ...]) -> None:
    assert make_method("dtfl", tiers=tiers).cuts == cuts


@pytest.mark.parametrize(("tier", "cut"), [(1, 2), (2, 3)])
def test_a_static_tier_is_the_same_for_all(tier: int, cut: int) -> None:
    plan = make_method("dtfl", tiers=2, tier=tier).plan(0, [view("a", cpus=4.0), view("b", cpus=0.1)], SCHEDULE)
    assert {a.stages for a in plan.assignments.values()} == {cut}
    assert plan.notes["tiers"] == {"a": tier, "b": tier}
    assert plan.predicted_s["b"] > plan.predicted_s["a"]


def test_an_assignment_says_all_a_device_must_know() -> None:
    assignment = make_method("dtfl", tier=2).plan(3, [view("a")], SCHEDULE).assignments["a"]
    assert (assignment.device, assignment.objective, assignment.train_from) == ("a", "head", 0)
    assert assignment.uploads == ("features", "weights")
    assert (assignment.batch_size, assignment.optimizer, assignment.codec) == (4, SCHEDULE.optimizer, SCHEDULE.codec)
    assert (assignment.input_shape, assignment.classes, assignment.model) == ((1, 6, 6), 4, {"name": "small"})
    other_round = make_method("dtfl", tier=2).plan(4, [view("a")], SCHEDULE).assignments["a"]
    assert assignment.seed != other_round.seed


def test_a_device_gets_its_stages_and_head_and_no_more() -> None:
    method, model = make_method("dtfl", tier=2), small_model()
    assignment = method.plan(0, [view("a")], SCHEDULE).assignments["a"]
    sent = method.task_weights(model.weights(), assignment)
    assert {name.split(".")[0] for name in sent} == {"md1", "md2", "head2"}


def test_measurements_move_devices_to_other_tiers() -> None:
    """Both look alike at first. Then a proves slow of CPU, and b slow of link."""
    method, views = make_method("dtfl"), [view("a"), view("b")]
    first = method.plan(0, views, SCHEDULE)
    assert first.assignments["a"].stages == first.assignments["b"].stages
    method.observe(0, [outcome(first, "a", 600.0, 1e9), outcome(first, "b", 0.1, 1e3)])
    second = method.plan(1, views, SCHEDULE)
    assert (second.assignments["a"].stages, second.assignments["b"].stages) == (1, 3)
    assert second.notes["estimates_s"]["a"].keys() == {"1", "2", "3"}  # type: ignore[attr-defined]
    assert second.notes["t_max_s"] == max(second.predicted_s.values())
    json.dumps(second.notes)


def test_what_was_measured_survives_a_checkpoint() -> None:
    method, views = make_method("dtfl"), [view("a"), view("b")]
    plan = method.plan(0, views, SCHEDULE)
    method.observe(0, [outcome(plan, "a", 90.0, 1e5), outcome(plan, "b", 0.1, 1e3)])
    resumed = make_method("dtfl")
    resumed.restore(json.loads(json.dumps(method.state())), {})
    assert resumed.history == method.history
    assert resumed.plan(1, views, SCHEDULE) == method.plan(1, views, SCHEDULE)


@pytest.mark.parametrize("overlap", [True, False])
def test_without_overlap_devices_keep_their_uploads_until_they_have_computed(overlap: bool) -> None:
    plan = make_method("dtfl", overlap=overlap).plan(0, [view("a"), view("b")], SCHEDULE)
    assert {each.hold for each in plan.assignments.values()} == {not overlap}


def test_features_that_do_not_fit_into_a_device_are_refused_with_the_arithmetic() -> None:
    """Three batches of 40 kB at tier 1 are 120 kB; three quarters of 160,000 bytes hold them, of 159,999 do not."""
    enough, less = (msgspec.structs.replace(view("a"), memory_bytes=each) for each in (160_000, 159_999))
    make_method("dtfl", overlap=False).plan(0, [enough], SCHEDULE)
    with pytest.raises(UsageError, match=r"3 batches × 0\.04 MB \(after stage 1\) = 0\.12 MB") as refused:
        make_method("dtfl", overlap=False).plan(0, [view("b"), less], SCHEDULE)
    assert "memory_mib to 1 at least" in refused.value.hint
    make_method("dtfl", overlap=False, tiers=1).plan(0, [less], SCHEDULE)
    make_method("dtfl").plan(0, [less], SCHEDULE)


def test_wrong_options_are_refused() -> None:
    for options in ({"tiers": 0}, {"tier": 0}, {"ema": 0.0}, {"ema": 1.5}, {"aggregate": "median"}, {"tier": 1.5}):
        with pytest.raises(PluginError, match="dtfl"):
            make_method("dtfl", **options)
    with pytest.raises(UsageError, match="tier 4 of a model with 3 tiers"):
        make_method("dtfl", tier=4)


def test_a_model_without_heads_is_refused() -> None:
    model = small_model()
    bare = StagedModel([(n, model.get_submodule(n)) for n in model.stage_names], {}, LearningTask((1, 6, 6), 4))
    with pytest.raises(UsageError, match="auxiliary head"):
        METHODS.create({"name": "dtfl"}).setup(Context({}, bare, {}, 1))


def test_a_cut_that_was_not_profiled_is_named() -> None:
    method = METHODS.create({"name": "dtfl"})
    method.setup(Context({}, small_model(), {1: COSTS[1], 3: COSTS[3]}, 1))
    with pytest.raises(RunError, match=r"cuts \[2\]"):
        method.plan(0, [view("a")], SCHEDULE)
