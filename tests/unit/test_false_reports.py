"""Reports that pass their bounds and are false all the same: no method's next plan fails for them."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgebed.methods.base import METHODS, Contribution, Outcome
from edgebed.wire.messages import Report
from orchestrator.rounds.bounds import bounds_of, report_fault
from orchestrator.testing.rounds import SCHEDULE, make_method, small_model, view

ELAPSED_S = 10.0
SECONDS = st.one_of(st.sampled_from([0.0, 5e-324, 1e-9, ELAPSED_S]), st.floats(0, ELAPSED_S))
BYTES = st.one_of(st.sampled_from([0, 1, 2**40]), st.integers(0, 10**6))
WEIGHTS = small_model().weights()
FLEET = [view("a", 10, 1.0), view("b", 3, 0.5), view("c", 7, 0.2)]

OTHERS = ("throttled_s", "reference_s")
"""Fields that are no number of seconds."""


@st.composite
def reports(draw: st.DrawFn) -> Report:
    seconds = {name: draw(SECONDS) for name in Report.__struct_fields__ if name.endswith("_s") and name not in OTHERS}
    traffic = {"download_bytes": draw(BYTES), "upload_bytes": draw(BYTES)}
    batches, loss = draw(st.integers(0, 3)), draw(st.floats(-1e300, 1e300))
    return Report(samples=0, batches=batches, loss=loss, throttled_s=draw(st.none() | SECONDS), **seconds, **traffic)


@pytest.mark.parametrize("name", sorted(METHODS.classes()))
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_the_next_plan_is_made(name: str, data: st.DataObject) -> None:
    method = make_method(name)
    for round in range(3):
        lane = next(views for views in method.lanes(FLEET).values() if views)
        views = method.draw(round, lane, 1.0, SCHEDULE.seed)
        plan = method.plan(round, views, SCHEDULE)
        assert all(seconds >= 0 for seconds in plan.predicted_s.values())
        outcomes, contributions = [], []
        for each in views:
            assignment = plan.assignments[each.name]
            held = method.task_weights(WEIGHTS, assignment)
            trained = {name: held[name] for name in method.update_names(assignment, {})}
            report = msgspec.structs.replace(data.draw(reports()), samples=each.samples)
            if report_fault(bounds_of(method, assignment, each.samples), report, ELAPSED_S):
                continue
            link_bytes_s = data.draw(st.sampled_from([0.0, 1e-12, 1e12]))
            outcomes.append(
                Outcome(each.name, assignment, report, ELAPSED_S, report.upload_s, link_bytes_s, data.draw(SECONDS))
            )
            extra = {n: torch.zeros(stream.shape, dtype=stream.dtype) for n, stream in method.extra(assignment).items()}
            given = each.name, each.samples, assignment, trained, {}, extra
            contributions.append(Contribution(*given, report, WEIGHTS))
        if contributions:
            method.merge(WEIGHTS, contributions)
        method.observe(round, outcomes)
        method.restore(method.state(), method.tensors())
