"""What a device may send: from its assignment, checked before anything is spent on it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgebed.methods.base import Stream
from edgebed.wire.codecs import DTYPES, encode_tensors
from edgebed.wire.messages import Report
from edgebed.wire.piece_times import PieceTimes
from edgebed.wire.settings import Codec
from orchestrator.rounds.bounds import (
    Bounds,
    bounds_of,
    misfit,
    report_fault,
    traffic_fault,
    update_bytes,
    upload_bytes,
    upload_fault,
    values_fault,
)
from orchestrator.testing.rounds import BATCH, CLASSES, SCHEDULE, make_method, small_model, view

HONEST = Report(9, 2, 0.5, 1.0, 0.9, None, 1000, 0.1, 2000, 0.2, 0.0, memory_mib=200.0)


def bounds(method: str = "dtfl", samples: int = 9, **options: Any) -> Bounds:
    """Of one device with batches of 4; 9 samples give batches of 4 and 5."""
    made = make_method(method, **({"tier": 1} if method == "dtfl" else {}), **options)
    return bounds_of(made, made.plan(0, [view("a", samples)], SCHEDULE).assignments["a"], samples)


def test_uploads_follow_from_shard_and_schedule() -> None:
    made = bounds()
    assert (made.samples, made.batches, made.uploads, made.rows) == (9, 2, 2, 5)
    assert set(made.streams) == {"features", "labels"}
    assert bounds("fedavg").uploads == 0
    assert set(bounds("fedgkt", cut=1).streams) == {"features", "labels", "logits"}


def test_steps_count_instead_of_epochs() -> None:
    made = make_method("fedavg")
    assignment = made.plan(0, [view("a")], SCHEDULE).assignments["a"]
    assert bounds_of(made, msgspec.structs.replace(assignment, steps=17), 10).batches == 17
    assert bounds_of(made, msgspec.structs.replace(assignment, epochs=3, max_batches=2), 10).batches == 6


@given(st.sampled_from(DTYPES), st.booleans(), st.integers(0, 1), st.floats(0, 1e30))
def test_every_honest_upload_fits_its_bounds(dtype: Any, zstd: bool, batch: int, scale: float) -> None:
    made, rows = bounds("fedgkt", cut=1), BATCH + batch
    shape = small_model().feature_shape(1)
    noise = {"features": torch.randn(rows, *shape) * scale, "logits": torch.randn(rows, CLASSES)}
    tensors = {**noise, "labels": torch.zeros(rows, dtype=torch.int64)}
    size = len(encode_tensors(tensors, Codec(dtype, zstd)))
    assert upload_fault(made, batch, size) == ""
    assert misfit(made, batch, tensors) == ""


@given(st.sampled_from(DTYPES), st.integers(1, 3000), st.integers(1, 4))
def test_wide_and_narrow_features_fit_in_every_number_format(dtype: Any, channels: int, side: int) -> None:
    shape = (channels, side, side)
    body = encode_tensors({"features": torch.randn(1, *shape)}, Codec(dtype))
    assert len(body) <= upload_bytes({"features": Stream(shape, torch.float32)}, 1)


@pytest.mark.parametrize(
    ("batch", "size", "said"),
    [(-1, 10, "2 uploads"), (2, 10, "2 uploads"), (2**40, 10, "2 uploads"), (0, 10 * 10**9, "at most")],
)
def test_an_upload_that_the_assignment_has_not_is_refused_by_name(batch: int, size: int, said: str) -> None:
    assert said in upload_fault(bounds(), batch, size)


def test_a_method_without_uploads_takes_none() -> None:
    assert "has none" in upload_fault(bounds("fedavg"), 0, 10)


def honest() -> dict[str, torch.Tensor]:
    shape = small_model().feature_shape(1)
    return {"features": torch.zeros(BATCH, *shape), "labels": torch.zeros(BATCH, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": torch.zeros(BATCH, 7)}, "instead of torch.float32"),
        ({"features": torch.zeros(BATCH, *small_model().feature_shape(1), dtype=torch.float64)}, "float64"),
        ({"features": torch.zeros(())}, "instead of torch.float32"),
        ({"labels": torch.zeros(BATCH)}, "labels is torch.float32"),
        ({"labels": torch.zeros(BATCH + 1, dtype=torch.int64)}, "of 4, 5 samples"),
        ({"more": torch.zeros(1)}, "features, labels, more"),
    ],
)
def test_tensors_that_the_cut_cannot_give_are_named(change: dict[str, torch.Tensor], said: str) -> None:
    assert misfit(bounds(), 0, honest()) == ""
    assert said in misfit(bounds(), 0, {**honest(), **change})


@pytest.mark.parametrize("times", [0, 1 / BATCH, 0.5, 2])
def test_more_or_fewer_samples_than_the_batch_has_are_refused(times: float) -> None:
    """FedGKT's server would put the logits of some on the rows of others."""
    other = {name: torch.cat([value, value])[: int(times * BATCH)] for name, value in honest().items()}
    assert "its batch is of 4" in misfit(bounds(), 0, other)


def test_an_honest_report_is_believed() -> None:
    assert report_fault(bounds(), HONEST, 2.0) == ""


@pytest.mark.parametrize("name", ["cpu_s", "compute_cpu_s", "encode_cpu_s"])
def test_a_device_of_several_cores_uses_more_cpu_time_than_passes(name: str) -> None:
    assert report_fault(bounds(), msgspec.structs.replace(HONEST, **{name: 8.0}), 2.0) == ""
    assert name in report_fault(bounds(), msgspec.structs.replace(HONEST, **{name: 1e9}), 2.0)


def test_a_quota_of_many_cpus_is_believed_after_a_task_that_was_shorter_than_its_period() -> None:
    """It is a setting: on a busy host ceilings are high, and 19 CPUs in 0.1 s are 1.9 s."""
    assert report_fault(bounds(), msgspec.structs.replace(HONEST, quota_s=1.9), 0.5) == ""
    assert "quota_s" in report_fault(bounds(), msgspec.structs.replace(HONEST, quota_s=1e9), 0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 10**12}, "its shard has 9"),
        ({"samples": 0}, "its shard has 9"),
        ({"samples": -5}, "its shard has 9"),
        ({"batches": 2**40}, "its assignment has 2"),
        ({"batches": -1}, "its assignment has 2"),
        ({"loss": math.nan}, "loss"),
        ({"compute_s": math.inf}, "compute_s"),
        ({"compute_s": 1e9}, "compute_s"),
        ({"upload_s": -1.0}, "upload_s"),
        ({"reply_s": math.nan}, "reply_s"),
        ({"compute_cpu_s": 1e9}, "compute_cpu_s"),
        ({"throttled_s": -1.0}, "throttled_s"),
        ({"upload_bytes": -1}, "upload_bytes"),
        ({"memory_mib": 1e30}, "memory_mib"),
        ({"notes": {"train_from": math.nan}}, "train_from"),
        ({"notes": {str(n): 0.0 for n in range(1000)}}, "1000 notes"),
        ({"notes": {"\x1b]52;c;ZXZpbA==\x1b": 0.0}}, "1 notes"),
        ({"notes": {"\x1b[2K": math.nan}}, "1 notes"),
    ],
)
def test_a_report_that_cannot_be_true_is_named(change: dict[str, Any], said: str) -> None:
    report = msgspec.structs.replace(HONEST, **change)
    why = report_fault(bounds(), report, 2.0)
    assert said in why
    assert why.isprintable()


def test_bytes_are_compared_with_what_was_seen() -> None:
    assert traffic_fault(HONEST, 2100, 1100) == ""
    assert "upload_bytes" in traffic_fault(msgspec.structs.replace(HONEST, upload_bytes=10**10), 2100, 1100)
    assert "download_bytes" in traffic_fault(msgspec.structs.replace(HONEST, download_bytes=10**10), 2100, 1100)


def test_the_bound_of_an_update_holds_every_model() -> None:
    weights = small_model().weights()
    body = encode_tensors(weights, Codec())
    assert len(body) <= update_bytes((name, value.nbytes) for name, value in weights.items()) < 12 * len(body)


PIECE = PieceTimes("batch", 4, 2, 0.5, (250_000, 250_000))


@pytest.mark.parametrize(
    "changes",
    [
        {"work": (msgspec.structs.replace(PIECE, kind="nothing"),)},
        {"work": (PIECE,) * 257},
        {"work": (msgspec.structs.replace(PIECE, cpu_s=-1.0),)},
        {"work": (msgspec.structs.replace(PIECE, cpu_s=math.nan),)},
        {"work": (msgspec.structs.replace(PIECE, count=0),)},
        {"work": (msgspec.structs.replace(PIECE, each_us=(-1,)),)},
        {"work": (msgspec.structs.replace(PIECE, each_us=(1,) * 65),)},
        {"reference_s": {"recorded": -1.0}},
        {"reference_s": {"recorded": math.inf}},
        {"reference_s": {"recorded": 1e308}},
        {"reference_s": {"guessed": 1.0}},
        {"reference_s": {}},
        {"late_s": math.inf},
    ],
)
def test_pieces_of_work_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    held = msgspec.structs.replace(bounds(), held=True)
    true = msgspec.structs.replace(HONEST, work=(PIECE,), reference_s={"recorded": 1.0}, late_s=0.1)
    assert report_fault(held, true, 2.0) == ""
    assert report_fault(held, msgspec.structs.replace(true, **changes), 2.0)


def test_a_device_that_keeps_no_reference_reports_none() -> None:
    assert report_fault(bounds(), msgspec.structs.replace(HONEST, reference_s={"recorded": 1.0}), 2.0)


@pytest.mark.parametrize(
    "change",
    [{"work": (PieceTimes("\x1b[2K", 1, 1, 0.1),)}, {"reference_s": {"\x1b[2K": 1.0}}, {"notes": {"\x1b[2K": 1.0}}],
)
def test_names_that_a_terminal_obeys_are_in_no_report(change: dict[str, Any]) -> None:
    """Also in that of a serving node, which has no bounds of a task."""
    assert values_fault(HONEST, 2.0) == ""
    assert values_fault(msgspec.structs.replace(HONEST, **change), 2.0).isprintable()
    assert values_fault(msgspec.structs.replace(HONEST, **change), 2.0)
