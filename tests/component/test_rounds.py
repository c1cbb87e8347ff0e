"""Whole runs in one process: the weights to the bit, what costs a device its round, what changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from edgebed.datasets.shard import Shard
from edgebed.errors import RunError, TransferRefused
from edgebed.link.endpoint import TransferEndpoint
from edgebed.methods.base import (
    HALVES,
    Batch,
    Contribution,
    DeviceHalf,
    DeviceView,
    Method,
    Plan,
    Schedule,
    ServerHalf,
    assign,
)
from edgebed.methods.dtfl import Dtfl
from edgebed.methods.parts.aggregation import merge_by_name
from edgebed.methods.parts.local_training import Half, UpperHalf, output_half
from edgebed.models.staged import StagedModel, Weights
from edgebed.wire.codecs import encode_tensors
from edgebed.wire.messages import Assignment, Pong, Report, Update, Upload, encode
from edgebed.wire.order import assignment_seed
from edgebed.wire.settings import Codec
from edgebed.wire.topics import Topics
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.spec.profile import Limits, ProfileSpec
from orchestrator.records.shown.loglines import failure_line
from orchestrator.records.types import (
    DeviceOut,
    DevicePhases,
    Fault,
    ReplyDelivered,
    RoundFinished,
    RoundStarted,
    TaskSent,
    UpdateReceived,
    UploadReceived,
)
from orchestrator.rounds.replay import Replay
from tests.component._fleet import FLEET, Fleet, buggy, fleet, model, start_weights, training
from tests.memory_link import MemoryHub, MemoryLink

THREE = {"dev-1": 24, "dev-2": 16, "dev-3": 20}
FEDAVG = {"name": "fedavg"}
DTFL = {"name": "dtfl", "tier": 3}


def assert_same(some: Weights, others: Mapping[str, torch.Tensor]) -> None:
    assert set(some) == set(others)
    different = [name for name, value in some.items() if not torch.equal(value, others[name])]
    assert not different


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


# ---- the right weights ----


def plain_fedavg(shard: Shard, rounds: int) -> Weights:
    """One device without Edgebed: a new optimizer each round, as the assignment says."""
    whole = model()
    whole.train()
    for number in range(rounds):
        optimizer = sgd([p for name, p in whole.named_parameters() if not name.startswith("head")])
        for x, y in shard.batches(8, 1, 0, assignment_seed(7, "dev-1", number)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(whole(x), y).backward()
            optimizer.step()
    return whole.weights()


def plain_dtfl(shard: Shard, cut: int, rounds: int) -> Weights:
    """One device without Edgebed: lower stages with head, upper stages on detached features."""
    whole = model()
    whole.train()
    lower, head, upper = whole.lower(cut), whole.head(cut), whole.upper(cut)
    for number in range(rounds):
        device, server = sgd([*lower.parameters(), *head.parameters()]), sgd(list(upper.parameters()))
        for x, y in shard.batches(8, 1, 0, assignment_seed(7, "dev-1", number)):
            z = lower(x)
            device.zero_grad()
            nn.functional.cross_entropy(head(z), y).backward()
            device.step()
            server.zero_grad()
            nn.functional.cross_entropy(upper(z.detach()), y).backward()
            server.step()
    return whole.weights()


async def test_fedavg_of_one_device_is_plain_torch_to_the_bit(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"dev-1": 24}) as made:
        assert_same(await made.play(FEDAVG, training()), plain_fedavg(made.shards["dev-1"], 2))


async def test_dtfl_of_one_device_is_plain_torch_to_the_bit(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"dev-1": 24}) as made:
        tier = {"name": "dtfl", "tier": 4}
        assert_same(await made.play(tier, training()), plain_dtfl(made.shards["dev-1"], 4, 2))


@pytest.mark.parametrize("name", ["s2fl", "feddrop", "heterofl", "fjord", "early-exit"])
async def test_a_method_that_keeps_something_of_its_plan_repeats_a_recorded_one_to_the_bit(
    name: str, tmp_path: Path
) -> None:
    wanted = training(rounds=3)
    async with fleet(tmp_path, THREE) as made:
        whole, records = await made.play({"name": name}, wanted), made.records
    (tmp_path / "again").mkdir()
    encoded = (msgspec.json.encode(record) for record in records if isinstance(record, RoundStarted))
    plan = [msgspec.json.decode(line, type=RoundStarted) for line in encoded]
    async with fleet(tmp_path / "again", THREE) as made:
        async with asyncio.timeout(60):
            assert_same(await made.play({"name": name}, wanted, replay=Replay(plan)), whole)


async def test_dtfl_ended_in_mid_round_and_gone_on_with_is_the_same_to_the_bit_under_a_recorded_plan(
    tmp_path: Path,
) -> None:
    """Its plans follow from measured times, so two runs of it differ as they are."""
    wanted, dynamic = training(rounds=4), {"name": "dtfl", "tiers": 3}
    async with fleet(tmp_path, THREE) as made:
        whole = await made.play(dynamic, wanted)
        plan = made.records
    for name in ("cut", "rest"):
        (tmp_path / name).mkdir()
    async with fleet(tmp_path / "cut", THREE) as made:
        run = asyncio.create_task(made.play(dynamic, wanted, replay=Replay(plan)))
        await made.expect(UploadReceived, lambda record: record.round == 2)
        run.cancel()  # what a kill leaves: the checkpoint of the round before
        await asyncio.wait([run])
        checkpoint = made.checkpoint
    assert checkpoint is not None
    assert checkpoint.progress.round == 2
    async with fleet(tmp_path / "rest", THREE) as made:
        assert_same(await made.play(dynamic, wanted, saved=checkpoint, replay=Replay(plan)), whole)
        begun = made.of(RoundStarted)
    recorded = [record for record in plan if isinstance(record, RoundStarted)]
    assert [(r.round, r.assignments) for r in begun] == [(r.round, r.assignments) for r in recorded[2:]]


async def test_the_order_of_arrival_and_a_bad_network_change_no_bit(tmp_path: Path) -> None:
    """The same seed twice: a good network, then one that repeats and swaps messages, with another device held back."""
    results = []
    for held, hub in (("dev-1", MemoryHub()), ("dev-3", MemoryHub(repeat=0.3, swap=0.3, seed=5))):
        folder = tmp_path / held
        folder.mkdir()
        async with fleet(folder, THREE, hub=hub) as made:
            made.trainers[held].gate.clear()
            run = asyncio.create_task(made.play(DTFL, training()))
            for other in set(THREE) - {held}:
                await made.expect(UpdateReceived, lambda r, other=other: r.device == other)
            made.trainers[held].gate.set()
            results.append(await run)
            assert [r.merged for r in made.of(RoundFinished)] == [tuple(THREE)] * 2
    assert_same(*results)


class SplitFed(Method):
    """Waits for the gradient of its features."""

    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        how = {"stages": 2, "objective": "server", "uploads": ("features", "weights")}
        return Plan({d.name: assign(self.context, d, schedule, round, **how) for d in devices})  # type: ignore[arg-type]

    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [UpperHalf(self.context.model, weights, a, accelerator, gradient=True) for a in assignments.values()]

    def merge(self, weights: Weights, contributions: Sequence[Contribution]) -> Weights:
        return merge_by_name(weights, contributions, "samples")


async def test_gradients_come_back_and_make_end_to_end_training(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"dev-1": 24}) as made:
        trained = await made.play(SplitFed(), training())
        assert_same(trained, plain_fedavg(made.shards["dev-1"], 2))
        replies = made.of(ReplyDelivered)
        assert [(r.round, r.batch) for r in replies] == [(n, b) for n in range(2) for b in range(3)]
        assert all(r.first_ns < r.at_ns and r.bytes > 8 * 4 * 64 * 4 for r in replies)
        (report,) = (r.report for r in made.of(UpdateReceived) if r.round == 1)
        assert report.reply_s > 0


# ---- what costs a device its round ----


async def left_out(made: Fleet, device: str) -> DeviceOut:
    """Play one round and a second; the one device is left out of the first and nothing else is lost."""
    weights = await made.play(FEDAVG, training(rounds=1))
    (out,) = made.of(DeviceOut)
    assert out.device == device
    (finished,) = made.of(RoundFinished)
    assert finished.merged == tuple(name for name in THREE if name != device)
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())
    return out


def poisoned(weights: Weights) -> Weights:
    weights["md1.0.conv.weight"].view(-1)[3] = torch.nan
    return weights


def misshapen(weights: Weights) -> Weights:
    return {**weights, "md1.0.conv.weight": torch.zeros(2, 2)}


def incomplete(weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if name != "md1.0.conv.weight"}


@pytest.mark.parametrize(
    ("change", "how", "said"),
    [(poisoned, "diverged", "not finite"), (misshapen, "refused", "model's is"), (incomplete, "refused", "missing")],
)
async def test_an_update_that_may_not_be_merged_is_named_and_left_out(
    tmp_path: Path, change: object, how: str, said: str
) -> None:
    async with fleet(tmp_path, THREE) as made:
        made.trainers["dev-2"].change = change  # type: ignore[assignment]
        out = await left_out(made, "dev-2")
        assert out.how == how
        assert "md1.0.conv.weight" in out.why
        assert said in out.why


async def test_a_device_that_cannot_do_its_assignment_says_why(tmp_path: Path) -> None:
    async with fleet(tmp_path, THREE, shapes={"dev-3": (3, 8, 8)}) as made:
        out = await left_out(made, "dev-3")
        assert out.how == "failed"
        assert "3 channels" in out.why


async def test_an_error_that_nobody_foresaw_costs_the_device_its_round_and_brings_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(tmp_path, THREE) as made:
        monkeypatch.setitem(HALVES, "output", buggy("dev-2", HALVES["output"]))
        out = await left_out(made, "dev-2")
        assert (out.how, out.why) == ("failed", "KeyError: 'a bug'")
        assert 'raise KeyError("a bug")' in out.trace
        line = failure_line(out)
        assert line == "round 1: dev-2 failed: KeyError: 'a bug' (its traceback is in records.jsonl)"


async def test_training_that_diverges_on_a_device_is_called_so(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"dev-1": 24}) as made:
        with pytest.raises(RunError, match=r"no work was merged in 1 round: .*optimizer.lr"):
            await made.play(FEDAVG, training(rounds=1, optimizer={"name": "sgd", "lr": 1e30}))
        (out,) = made.of(DeviceOut)
        assert out.how == "diverged"
        assert "optimizer.lr" in out.why
        assert_same(made.saved[-1], start_weights())


# ---- deadline, lateness ----


def hold(made: Fleet, *devices: str) -> None:
    """Let no more of these begin to train: on a slow host they would end the next round at its deadline."""
    for device in devices:
        made.trainers[device].gate.clear()


async def release(made: Fleet, device: str) -> None:
    """Once `device` has sent its update of the second round, the others may train."""
    await made.expect(UpdateReceived, lambda r: (r.device, r.round) == (device, 1))
    for hooked in made.trainers.values():
        hooked.gate.set()


async def test_a_late_update_changes_nothing_and_the_device_works_again(tmp_path: Path) -> None:
    async with fleet(tmp_path, THREE) as made:
        made.trainers["dev-3"].gate.clear()
        run = asyncio.create_task(made.play(FEDAVG, training(deadline_s=1.0, quorum=2, liveness_s=60)))
        out = await made.expect(DeviceOut)
        assert (out.device, out.how) == ("dev-3", "late")
        hold(made, "dev-1", "dev-2")
        late = next(r.task for r in made.of(TaskSent) if r.device == "dev-3")
        with pytest.raises(TransferRefused, match="over"):
            await imposter(made, "dev-3", lambda port: port.send("orchestrator", update("dev-3", late), poison()))
        made.trainers["dev-3"].gate.set()
        await release(made, "dev-3")
        await run
        merged = [r.merged for r in made.of(RoundFinished)]
        assert merged[0] == ("dev-1", "dev-2")
        assert "dev-3" in merged[1]
        assert made.of(RoundFinished)[0].why == "deadline"
        first = made.saved[0]
    folder = tmp_path / "without"
    folder.mkdir()
    async with fleet(folder, {name: THREE[name] for name in ("dev-1", "dev-2")}) as made:
        assert_same(first, await made.play(FEDAVG, training(rounds=1)))


async def imposter(made: Fleet, device: str, act: object) -> None:
    """Somebody else who speaks on a device's topics."""
    link = MemoryLink(made.hub)
    port = TransferEndpoint(device, Topics(FLEET), link, link, deliver=_nothing, on_control=lambda peer, message: None)
    port.start()
    await link.open()
    try:
        async with asyncio.timeout(10):
            await act(port)  # type: ignore[operator]
    finally:
        await port.close()
        await link.close()


async def _nothing(inbound: object) -> None: ...


def update(device: str, task: str) -> Update:
    return Update(device, task, Report(10**6, 1, 0.0, 0.0, 0.0, None, 0, 0.0, 0, 0.0, 0.0))


def poison() -> bytes | bytearray:
    return encode_tensors({name: value * 0 for name, value in start_weights().items()}, Codec())


async def test_foreign_tasks_devices_and_names_change_nothing(tmp_path: Path) -> None:
    """While a round is open: an unknown task, a device that speaks for another, an upload that no server half wants,
    and a device that is not of the fleet, which gets no answer and is named once."""
    async with fleet(tmp_path, THREE) as made:
        expected = await made.play(FEDAVG, training(rounds=1))
        made.records.clear()
        made.trainers["dev-1"].gate.clear()
        run = asyncio.create_task(made.play(FEDAVG, training(rounds=1)))
        await made.expect(UpdateReceived, lambda r: r.device == "dev-2")
        task = next(r.task for r in made.of(TaskSent) if r.device == "dev-1")
        cases = [
            ("dev-1", update("dev-1", "run/0/dev-1/0")),
            ("dev-3", update("dev-1", task)),
            ("dev-2", Upload("dev-2", next(r.task for r in made.of(TaskSent) if r.device == "dev-2"), 9, 8)),
        ]
        for sender, header in cases:
            with pytest.raises(TransferRefused):
                await imposter(made, sender, lambda port, header=header: port.send("orchestrator", header, poison()))
        link = MemoryLink(made.hub)
        await link.open()
        for n in range(1000):
            link.publish(Topics(FLEET).control_from(f"stranger-{n}"), encode(Pong(f"stranger-{n}", 1, 2, 3)))
        await link.close()
        made.trainers["dev-1"].gate.set()
        assert_same(await run, expected)
        assert not made.of(DeviceOut)
        (fault,) = made.of(Fault)
        assert "'stranger-0' is not a device of this fleet" in fault.what
        assert made.endpoint.dropped == 1000


# ---- time ----


def narrow(cpus: float, uplink_bit_s: int, downlink_bit_s: int = 10**8) -> ProfileSpec:
    return ProfileSpec("narrow", Limits(cpus, uplink_bit_s, downlink_bit_s, 256))


async def test_a_narrow_uplink_blocks_the_device_and_every_second_has_a_name(tmp_path: Path) -> None:
    profiles = {"dev-1": narrow(8.0, 50_000)}
    async with fleet(tmp_path, THREE, profiles=profiles, enforcement=Enforcement.SOFTWARE) as made:
        await made.play({"name": "dtfl", "tier": 1}, training(rounds=1, batch_size=2, max_batches=8))
        reports = {r.device: r.report for r in made.of(UpdateReceived)}
        assert list(reports)[-1] == "dev-1"
        slow = reports["dev-1"]
        wire_s = slow.upload_bytes * 8 / profiles["dev-1"].limits.uplink_bit_s
        # All but the uploads that the queue holds were sent while it trained, and it trained or stood still meanwhile.
        assert slow.blocked_s + slow.compute_s + slow.encode_s > wire_s / 2
        assert slow.upload_s > slow.blocked_s
        for device in THREE:
            phases = [p for r in made.of(DevicePhases) if r.device == device for p in r.phases]
            assert all(one.end_ns == next_.start_ns for one, next_ in itertools.pairwise(phases))
            assert {"download", "decode", "compute", "encode", "upload_tail", "waiting"} <= {p.name for p in phases}


async def test_without_overlap_a_device_computes_first_and_sends_then(tmp_path: Path) -> None:
    """The same weights as streaming; no upload has left before the last batch was computed, and nothing blocked it."""
    weights = []
    for overlap in (True, False):
        folder = tmp_path / str(overlap)
        folder.mkdir()
        async with fleet(folder, THREE) as made:
            weights.append(await made.play({**DTFL, "overlap": overlap}, training(rounds=1, batch_size=2)))
    assert_same(*weights)
    reports = {r.device: r.report for r in made.of(UpdateReceived)}
    for device in THREE:
        phases = [p for r in made.of(DevicePhases) if r.device == device for p in r.phases]
        computed_ns = max(p.end_ns for p in phases if p.name == "compute")  # one clock: all is in this process
        assert all(r.first_ns > computed_ns for r in made.of(UploadReceived) if r.device == device)
        assert reports[device].blocked_s == 0
        assert reports[device].upload_bytes > 0


class HeldSplitFed(SplitFed):
    def plan(self, round: int, devices: Sequence[DeviceView], schedule: Schedule) -> Plan:
        plan = super().plan(round, devices, schedule)
        return Plan({name: msgspec.structs.replace(each, hold=True) for name, each in plan.assignments.items()})


async def test_uploads_that_a_device_waits_for_cannot_be_kept(tmp_path: Path) -> None:
    async with fleet(tmp_path, {"dev-1": 24}) as made:
        with pytest.raises(RunError, match="no work was merged"):
            await made.play(HeldSplitFed(), training(rounds=1))
        (out,) = made.of(DeviceOut)
        assert out.how == "failed"
        assert "hold" in out.why


async def test_a_device_that_is_slow_for_longer_than_liveness_is_kept(tmp_path: Path) -> None:
    """At a small share of a CPU training rests most of the time; the other's update is one chunk of many seconds."""
    profiles = {"dev-1": narrow(1.0, 60_000), "dev-2": narrow(0.08, 10**9, 10**9)}
    async with fleet(tmp_path, {"dev-1": 8, "dev-2": 8}, profiles=profiles, enforcement=Enforcement.SOFTWARE) as made:
        await made.play(FEDAVG, training(rounds=1, liveness_s=1.0))
        assert not made.of(DeviceOut)
        (finished,) = made.of(RoundFinished)
        assert finished.merged == ("dev-1", "dev-2")
        assert finished.seconds > 2.0


async def test_a_download_cut_short_by_the_deadline_does_not_stop_the_next(tmp_path: Path) -> None:
    async with fleet(tmp_path, THREE) as made:
        whole, arrived = made.data["dev-1"].receive, 0

        def two_chunks(topic: str, payload: bytes, *, early: bool = False) -> None:
            nonlocal arrived
            arrived += 1
            if arrived <= 2:
                whole(topic, payload, early=early)

        made.data["dev-1"].receive = two_chunks  # type: ignore[method-assign]
        run = asyncio.create_task(made.play(FEDAVG, training(deadline_s=1.0, quorum=2, liveness_s=60)))
        out = await made.expect(DeviceOut)
        assert (out.device, out.how) == ("dev-1", "late")
        hold(made, "dev-2", "dev-3")
        assert arrived > 2
        made.data["dev-1"].receive = whole  # type: ignore[method-assign]
        await release(made, "dev-1")
        await run
        merged = [r.merged for r in made.of(RoundFinished)]
        assert merged[0] == ("dev-2", "dev-3")
        assert "dev-1" in merged[1]


def busy(seconds: float) -> None:
    """So much CPU time of this thread, in which nobody is called back."""
    end, x = time.thread_time() + seconds, torch.ones(256, 256)
    while time.thread_time() < end:
        x = (x @ x).clamp(0, 1)


def still(seconds: float) -> None:
    threading.Event().wait(seconds)


def long_batch(spend: Callable[[float], None]) -> DeviceHalf:
    """FedAvg's device half, but dev-1 spends two seconds before its first step."""

    def half(whole: StagedModel, assignment: Assignment, batches: Iterable[Batch]) -> Half:
        if assignment.device == "dev-1":
            spend(2.0)
        return output_half(whole, assignment, batches)

    return half


async def test_a_device_that_computes_one_batch_for_longer_than_liveness_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HALVES, "output", long_batch(busy))
    async with fleet(tmp_path, {"dev-1": 8, "dev-2": 8}) as made:
        await made.play(FEDAVG, training(rounds=1, liveness_s=0.8))
        assert not made.of(DeviceOut)
        assert made.of(RoundFinished)[0].seconds > 2.0


async def test_a_device_that_stands_still_for_longer_than_liveness_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HALVES, "output", long_batch(still))
    async with fleet(tmp_path, {"dev-1": 8, "dev-2": 8}) as made:
        await made.play(FEDAVG, training(rounds=1, liveness_s=0.8))
        (out,) = made.of(DeviceOut)
        assert (out.device, out.how) == ("dev-1", "lost")
        assert "no progress" in out.why
        assert [r.merged for r in made.of(RoundFinished)] == [("dev-2",)]


class SlowHalf(UpperHalf):
    """A server half that takes longer than liveness for a step."""

    def step(self, uploads: Mapping[str, Weights]) -> Mapping[str, Weights]:
        threading.Event().wait(1.6)
        return super().step(uploads)


class SlowSplitFed(SplitFed):
    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [SlowHalf(self.context.model, weights, a, accelerator, gradient=True) for a in assignments.values()]


class SlowDtfl(Dtfl):
    def server_halves(
        self, weights: Weights, assignments: Mapping[str, Assignment], accelerator: torch.device
    ) -> list[ServerHalf]:
        return [SlowHalf(self.context.model, weights, a, accelerator) for a in assignments.values()]


@pytest.mark.parametrize("slow", [SlowSplitFed(), SlowDtfl(Dtfl.Options(tier=3))], ids=["waits", "blocked"])
async def test_a_device_that_its_server_half_holds_up_is_kept(tmp_path: Path, slow: Method) -> None:
    async with fleet(tmp_path, {"dev-1": 8}) as made:
        await made.play(slow, training(rounds=1, batch_size=2, liveness_s=0.9), queued_uploads=1)
        assert not made.of(DeviceOut)
        assert [r.batch for r in made.of(UploadReceived)] == [0, 1, 2, 3]
        (report,) = (r.report for r in made.of(UpdateReceived))
        assert report.blocked_s + report.reply_s > 0.9, "it stood still for longer than liveness_s"
