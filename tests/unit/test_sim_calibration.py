"""From records of real runs to a calibration, and from its file to seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.errors import UsageError
from edgebed.methods.base import CutCost
from edgebed.models.width import Keep
from edgebed.wire.messages import Assignment, Phase, Report
from edgebed.wire.settings import Codec
from orchestrator.fleet.spec.profile import Limits
from orchestrator.records import types as t
from orchestrator.records.run_index import RunFacts, sort
from orchestrator.references.layer_costs import WidthLaw
from orchestrator.references.lines import line_through, relative_law
from orchestrator.references.work_laws import BatchLaw, SizeLaw, WorkLaws
from orchestrator.simulation.calibrated import CalibratedCosts
from orchestrator.simulation.calibration import Calibration, load_calibration, save_calibration
from orchestrator.simulation.costs import Device, ServerTurns
from orchestrator.simulation.cpu import PlainCpu, QuotaCpu
from orchestrator.simulation.fitting import (
    STRETCH,
    Seen,
    UnseenLaw,
    encode_laws,
    fit,
    link_fit,
    profile_costs,
    unseen_law,
    with_bytes,
)
from orchestrator.simulation.server_fit import orchestrator_work, server_factors, server_turns
from tests.component._fleet import model
from tests.unit._assignments import assignment

SECOND = 1_000_000_000
RATE = 1_000_000
WORK = assignment(objective="output", stages=8, uploads=("weights",))
DEVICE = Device("a", "slow", Limits(0.1, RATE, RATE, 256))


def reference() -> WorkLaws:
    """Laws as if they had been measured: 10 ms a batch, nothing for samples."""
    law = BatchLaw(0.010, 0.0, 0.3)
    laws = {"output · cut 8": law, "head · cut 2": law}
    encode = {"float32": SizeLaw(0.0, 0.0), "uint8": SizeLaw(0.0, 0.0)}
    return WorkLaws(model(), (None, None), device=laws, server={"cut 2": law}, encode=encode)  # type: ignore[arg-type]


def real(rounds: int = 3, *, enforcement: str = "kernel") -> RunFacts:
    """FedAvg on one device of profile `slow`: two batches of 15 ms CPU each, 1 s of link down and 2 s up."""
    head = t.RunStarted(SECOND, "", "r", "x", "fedavg", 1, "local", enforcement, 3.0, True, 0, 1.0)
    limits = t.LimitsSet(SECOND, "a", "start", "slow", 0.1, RATE, RATE, 0.1, RATE, RATE)
    records: list[t.Record] = [head, t.DeviceJoined(SECOND, "a", "i", False), t.ClockOffset(SECOND, "a", 0, 0), limits]
    for number in range(rounds):
        records += one_round(number, (10 + 10 * number) * SECOND)
    return sort([*records, t.RunFinished(100 * SECOND, "rounds done")])


def one_round(number: int, at: int) -> list[t.Record]:
    task, ms = f"t{number}", SECOND // 1000
    sent, delivered, tail, update, end = at + 4 * ms, at + 1004 * ms, at + 4000 * ms, at + 6000 * ms, at + 6009 * ms
    build = 30 if number == 0 else 0
    phases = (
        Phase("decode", task, delivered, delivered + ms, (2 + build) * ms),
        Phase("compute", task, delivered + ms, tail, 36 * ms),
        Phase("upload_tail", task, tail, update, 0),
    )
    report = Report(16, 2, 0.0, 2.9, 0.030, None, 0, 0.0, 0, 0.0, 0.0)
    return [
        t.RoundStarted(at, number, 0.0, 0.1, ("a",), {"a": WORK}),
        t.OrchestratorPhase(at, at + ms, number, "plan"),
        t.TaskSent(sent, number, "a", task, 119_500),
        t.TaskDelivered(delivered, number, "a", task, 119_600),
        t.UpdateReceived(update, update, number, "a", task, 239_000, report),
        t.DevicePhases(end, "a", "i", phases),
        t.DeviceDone(end, number, "a", 6.0, 0.0, 0.0, 0.0),
        t.OrchestratorPhase(end, end + 5 * ms, number, "merge"),
        t.RoundFinished(end + 5 * ms, number, 6.014, ("a",), "all done"),
    ]


def test_what_a_fleet_took_is_found_in_its_records() -> None:
    made = fit([real()], reference())
    slow = made.profiles["slow"]
    assert slow.work == {"output · cut 8": pytest.approx(1.5)}  # 15 ms where the reference takes 10
    assert slow.build_cpu_s == pytest.approx(0.030)
    assert slow.decode_cpu_s == pytest.approx(0.002)
    assert slow.update_cpu_s == pytest.approx(0.006)  # 36 ms in compute, of which training had 30
    assert slow.downlink.stretch == pytest.approx(STRETCH)
    assert slow.uplink.latency_s == pytest.approx(2.0 - STRETCH * 1.912, abs=1e-3)
    assert made.orchestrator == {
        "plan": pytest.approx(0.001),
        "merge": pytest.approx(0.005),
        "dispatch": pytest.approx(0.003),
    }
    assert made.receive.seconds(239_000) == pytest.approx(0.009)
    assert made.dilation == 3.0


def test_a_simulation_cannot_calibrate_another_and_nothing_cannot_either() -> None:
    with pytest.raises(UsageError, match="is a simulation"):
        fit([real(enforcement="simulated")], reference())
    with pytest.raises(UsageError, match="no finished work"):
        fit([real(0)], reference())


def test_the_file_gives_back_what_was_kept(tmp_path: Path) -> None:
    made = fit([real()], reference())
    path = tmp_path / "costs.yaml"
    save_calibration(made, path)
    read = load_calibration(path)
    assert read.profiles["slow"].work == {"output · cut 8": pytest.approx(1.5)}
    assert read.orchestrator == made.orchestrator
    path.write_text(path.read_text().replace("version: 2", "version: 99"))
    with pytest.raises(UsageError, match="version 99"):
        load_calibration(path)


def costs(made: Calibration) -> CalibratedCosts:
    return CalibratedCosts(made, reference(), lambda: 0.0)


def test_paced_devices_take_cpu_seconds_over_cpus_and_others_run_under_the_quota() -> None:
    made = fit([real()], reference())
    paced = CalibratedCosts(made, reference(), lambda: 0.0, "pacing")
    assert isinstance(paced.cpu(lambda: DEVICE), PlainCpu)
    assert isinstance(costs(made).cpu(lambda: DEVICE), QuotaCpu)


def test_seconds_come_from_the_profile_and_unknown_work_from_its_ratio() -> None:
    known = costs(fit([real()], reference()))
    assert known.batch(DEVICE, WORK, 8).total_s == pytest.approx(0.015)
    assert known.batch(DEVICE, WORK, 8).forward_s == pytest.approx(0.0045)
    assert known.batch(DEVICE, assignment(), 8).total_s == pytest.approx(0.015)  # head: not seen, same ratio
    stranger = Device("b", "never seen", Limits(1.0, 2 * RATE, RATE, 256))
    assert known.batch(stranger, WORK, 8).total_s == pytest.approx(0.015)
    assert known.uplink(stranger).byte_s == pytest.approx(known.uplink(DEVICE).byte_s / 2)
    assert known.decode_s(DEVICE, WORK, 9, True) == pytest.approx(0.032)
    assert known.encode_s(DEVICE, WORK, 9, Codec()) == 0


def test_a_method_plans_with_the_profiled_cuts_only_where_all_are_known() -> None:
    made = fit([real()], reference())
    assert costs(made).cut_costs(model()) == {}
    cuts = {cut: CutCost(cut, 1, 1, 1.0, 1.0) for cut in model().cuts_with_head}
    assert costs(msgspec.structs.replace(made, cuts=cuts)).cut_costs(model()) == cuts


def test_a_line_has_no_negative_part() -> None:
    assert line_through([]) == SizeLaw(0.0, 0.0)
    assert line_through([(1000.0, 1.0), (3000.0, 2.0)]) == SizeLaw(pytest.approx(0.5), pytest.approx(0.0005))
    assert line_through([(1000.0, 2.0), (3000.0, 1.0)]).byte_s == 0.0
    assert line_through([(5000.0, 1.0)]) == SizeLaw(1.0, 0.0)


def test_a_link_is_never_faster_than_its_wire() -> None:
    quick = link_fit([(125_000, 0.9, RATE)])
    assert (quick.latency_s, quick.stretch) == (0.0, STRETCH)


def work(**changes: Any) -> Seen:
    """A settled task of FedAvg: 2 ms to decode, 5 ms for the agent besides training."""
    usual: dict[str, Any] = {
        "profile": "slow", "assignment": WORK, "first": False, "limits": DEVICE.limits, "batches": (8, 8),
        "compute_cpu_s": 0.030, "other_cpu_s": 0.005, "decode_cpu_s": 0.002, "encode_cpu_s": 0.0,
        "replies": 0, "uploads": 0, "upload_bytes": 0, "update_bytes": 1000, "sent_bytes": 1000,
        "down_s": 0.01, "up_s": 0.01, "received": [],
    }  # fmt: skip
    return Seen(**{**usual, **changes})


def test_uploads_replies_and_narrow_models_have_their_own_cost() -> None:
    split = assignment(batch_size=8)
    tasks = [
        work(),
        work(assignment=split, uploads=10, other_cpu_s=0.015),
        work(assignment=split, uploads=10, replies=10, other_cpu_s=0.035, decode_cpu_s=0.012),
        work(assignment=msgspec.structs.replace(WORK, keep={"md1": (0,)}), decode_cpu_s=0.022),
    ]
    made = profile_costs(tasks, NarrowLaws(), ONE)
    assert (made.update_cpu_s, made.upload_cpu_s) == (pytest.approx(0.005), pytest.approx(0.001))
    assert made.reply_cpu_s == pytest.approx(0.002 + 0.001)  # heard and decoded
    assert (made.decode_cpu_s, made.narrow_cpu_s) == (pytest.approx(0.002), pytest.approx(0.020))


ONE = UnseenLaw()
"""Unseen work takes what the reference takes."""


def test_a_reply_that_was_not_seen_costs_as_much_as_an_upload_and_narrow_models_are_not_known() -> None:
    tasks = [work(), work(assignment=assignment(batch_size=8), uploads=10, other_cpu_s=0.015)]
    made = profile_costs(tasks, NarrowLaws(), ONE)
    assert made.reply_cpu_s == made.upload_cpu_s == pytest.approx(0.001)
    assert made.narrow_cpu_s is None
    known = CalibratedCosts(
        msgspec.structs.replace(fit([real()], reference()), profiles={"slow": made}), NarrowLaws(), lambda: 0.0
    )
    narrow = msgspec.structs.replace(WORK, keep={"md1": (0,)})
    assert known.decode_s(DEVICE, narrow, 0, False) == pytest.approx(made.decode_cpu_s + 0.004 * made.other)


def test_batches_of_unseen_work_cost_what_all_seen_work_has_in_common() -> None:
    """2 ms a batch, 1 ms more if it uploads its features, three times the reference; the profile is a tenth slower."""
    whole = [work(batches=(n,) * 4, compute_cpu_s=4 * (0.002 + 0.003 * n)) for n in (1, 2, 8)]
    split = assignment(batch_size=8, uploads=("features", "weights"))
    law = unseen_law([*whole, work(assignment=split, batches=(4, 4), compute_cpu_s=2 * (0.003 + 0.012))], Linear())
    assert msgspec.structs.astuple(law) == pytest.approx((0.002, 0.001, 3.0))
    slower = profile_costs([work(batches=(4,), compute_cpu_s=1.1 * (0.002 + 0.012))], Linear(), law)
    found = (slower.batch_cpu_s, slower.features_cpu_s, slower.other)
    assert found == pytest.approx((0.0022, 0.0011, 3.3))
    assert relative_law([]) == WidthLaw(1.0, 0.0, 1.0)


def test_a_slow_device_that_does_small_work_does_not_make_batches_look_dear() -> None:
    """No seconds a batch, three times the reference; the slow profile does small batches only, and is twice as slow."""
    fast = [work(batches=(n,) * 4, compute_cpu_s=4 * 0.003 * n) for n in (2, 4, 8)]
    slow = [msgspec.structs.replace(work(batches=(n,) * 4, compute_cpu_s=8 * 0.003 * n), profile="z") for n in (1, 2)]
    law = unseen_law([*fast, *slow], Linear())
    assert law.batch_s == pytest.approx(0.0, abs=1e-4)
    assert profile_costs(slow, Linear(), law).other / profile_costs(fast, Linear(), law).other == pytest.approx(
        2, rel=0.02
    )


def test_the_least_latency_of_tasks_is_that_of_the_link() -> None:
    fit = link_fit([(1000, STRETCH * 0.008 + beyond, RATE) for beyond in (0.002, 0.010, 0.030)])
    assert (fit.latency_s, fit.least_s) == (pytest.approx(0.010), pytest.approx(0.002))


def test_a_device_needs_more_to_encode_than_the_reference() -> None:
    tasks = [work(assignment=assignment(batch_size=8), uploads=2, encode_cpu_s=0.004)]
    assert encode_laws(tasks, Linear()) == {"float32": SizeLaw(pytest.approx(0.002), 0.0)}
    assert encode_laws([work()], Linear()) == {}


class NarrowLaws(WorkLaws):
    """A law for every kind of work."""

    def __init__(self) -> None:
        known = reference()
        super().__init__(model(), (None, None), encode=known.encode_laws)  # type: ignore[arg-type]

    def device_law(self, assignment: Assignment) -> BatchLaw:
        return BatchLaw(0.010, 0.0, 0.3)

    def narrow_s(self, keep: Keep) -> float:
        return 0.004


def test_unseen_work_takes_the_factor_of_other_profiles_then_the_common_law() -> None:
    made = fit([real()], reference())
    slow = made.profiles["slow"]
    slow = msgspec.structs.replace(slow, work={"output · cut 8": 2.0}, other=1.5, batch_cpu_s=0.5, features_cpu_s=0.25)
    quick = msgspec.structs.replace(slow, work={"output · cut 8 · from 4": 3.0})
    both = msgspec.structs.replace(made, profiles={"slow": slow, "quick": quick})
    assert both.batch_s("slow", "output · cut 8", 1.0, uploads=False) == 2.0
    assert both.batch_s("slow", "output · cut 8 · from 4", 1.0, uploads=False) == 3.0
    assert both.batch_s("slow", "head · cut 5", 1.0, uploads=False) == 2.0
    assert both.batch_s("slow", "head · cut 5", 1.0, uploads=True) == 2.25


def test_a_groups_step_has_a_factor_of_its_own() -> None:
    work, step = {name: assignment(batch_size=8) for name in "ab"}, SECOND // 100
    head = t.RunStarted(SECOND, "", "r", "x", "s2fl", 1, "local", "kernel", 1.0, True, 0, 1.0)
    records: list[t.Record] = [
        head,
        t.RoundStarted(2 * SECOND, 0, 0.0, 0.1, ("a", "b"), work),
        t.ServerStep(2 * SECOND, 2 * SECOND + 2 * step, 0, ("a",), 0),
        t.ServerStep(3 * SECOND, 3 * SECOND + 3 * step, 0, ("a", "b"), 1),
        t.RoundFinished(5 * SECOND, 0, 3.0, ("a", "b"), "all done"),
    ]
    factors, other, group = server_factors([sort([*records, t.RunFinished(6 * SECOND, "rounds done")])], reference())
    assert factors == {"cut 2": pytest.approx(2.0)}  # 20 ms where the reference takes 10
    assert other.call_s + 0.010 * other.unit_s == pytest.approx(0.020)
    assert group == pytest.approx(30 / 40)


def test_the_turns_of_the_server_and_the_seconds_until_a_reply_goes() -> None:
    """Two halves take 60 ms to make, and the first uploads wait for them; between two steps are 2 ms."""
    work, ms, at = {name: assignment(batch_size=8) for name in "ab"}, SECOND // 1000, 2 * SECOND
    head = t.RunStarted(SECOND, "", "r", "x", "splitfed", 1, "local", "kernel", 1.0, True, 0, 1.0)
    records: list[t.Record] = [
        head,
        t.RoundStarted(at, 0, 0.0, 0.1, ("a", "b"), work),
        *(t.TaskSent(at, 0, name, name, 100) for name in "ab"),
        *(t.UploadReceived(at + 10 * ms, at + 10 * ms, 0, name, name, 0, 100) for name in "ab"),
        t.ServerStep(at + 60 * ms, at + 70 * ms, 0, ("a",), 0, at + 60 * ms),
        t.ServerStep(at + 72 * ms, at + 82 * ms, 0, ("b",), 0, at + 61 * ms),
        t.ReplyDelivered(at + 90 * ms, at + 75 * ms, 0, "a", 0, 100),
        t.RoundFinished(at + SECOND, 0, 1.0, ("a", "b"), "all done"),
    ]
    runs = [sort([*records, t.RunFinished(6 * SECOND, "rounds done")])]
    assert server_turns(runs) == ServerTurns(pytest.approx(0.030), pytest.approx(0.002))
    assert orchestrator_work(runs)["encode"] == pytest.approx(0.005)
    assert server_turns([real()]) == ServerTurns()


def test_the_agents_parts_are_found_from_tasks_of_many_sizes() -> None:
    """2 ms a task, 1 ms an upload, 3 ms a reply, 4 ms an MB sent; 1 ms to decode, 2 ms an MB of the task's body."""
    split = assignment(batch_size=8)
    tasks = [
        work(
            assignment=split, uploads=ups, replies=replies, upload_bytes=sent, update_bytes=0, sent_bytes=down,
            other_cpu_s=0.002 + 0.001 * ups + 0.003 * replies + 4e-9 * sent, decode_cpu_s=0.001 + 2e-9 * down,
        )
        for ups, replies, sent, down in (
            (0, 0, 10**6, 10**5), (4, 0, 10**5, 10**6), (4, 4, 10**4, 10**4), (9, 2, 5 * 10**6, 10**6),
        )
    ]  # fmt: skip
    free = FreeReference()
    plain = {"slow": profile_costs(tasks, free, ONE)}
    made = with_bytes(plain, tasks, free)["slow"]
    assert (made.update_cpu_s, made.upload_cpu_s) == (pytest.approx(0.002), pytest.approx(0.001))
    assert made.reply_cpu_s == pytest.approx(0.003)
    assert (made.send_byte_cpu_s, made.decode_byte_cpu_s) == (pytest.approx(4e-9), pytest.approx(2e-9))
    assert made.decode_cpu_s == pytest.approx(0.001)
    assert made.work == plain["slow"].work


class Linear(NarrowLaws):
    """1 ms a sample."""

    def device_law(self, assignment: Assignment) -> BatchLaw:
        return BatchLaw(0.0, 0.001, 0.3)


class FreeReference(NarrowLaws):
    """Encoding costs nothing, and features have no bytes."""

    def upload_bytes(self, assignment: Assignment, batches: Sequence[int]) -> list[int]:
        return []


def test_the_costs_of_a_host_are_scaled_to_the_model_that_is_simulated() -> None:
    made = fit([real()], reference())
    of_host = msgspec.structs.replace(made, host="h", model_bytes=made.model_bytes // 2)
    here, there = costs(made), costs(of_host)
    assert (here.kind, there.kind) == ("calibrated from r", "calibrated from the costs of host h")
    assert (here.dilation, there.dilation) == (3.0, 1.0)
    assert there.orchestrator_s("merge", 0) == pytest.approx(2 * here.orchestrator_s("merge", 0))
    assert there.orchestrator_s("plan", 0) == here.orchestrator_s("plan", 0)
    built = here.decode_s(DEVICE, WORK, 0, True) - here.decode_s(DEVICE, WORK, 0, False)
    assert there.decode_s(DEVICE, WORK, 0, True) - there.decode_s(DEVICE, WORK, 0, False) == pytest.approx(2 * built)
