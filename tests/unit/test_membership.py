"""The membership: joins, returns, phases recorded once, probes answered, foreign messages without effect."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from edgebed.errors import FleetError
from edgebed.wire.messages import (
    Configure,
    Control,
    PhasesSeen,
    Ping,
    Pong,
    Presence,
    Probe,
    ProbeResult,
    Shutdown,
    Status,
)
from edgebed.wire.piece_times import Phase
from edgebed.wire.protocol import PROTOCOL
from orchestrator.fleet.control import membership
from orchestrator.fleet.control.member import DeviceEvent, Joined, Left
from orchestrator.fleet.control.membership import RIVAL_BEATS, Membership
from orchestrator.records.types import DeviceJoined, DeviceLeft, DevicePhases, Fault, Record


class RecordedMembership:
    """A membership with everything it says and records in lists, and devices that answer when told to."""

    def __init__(self, pinned: bool = False) -> None:
        self.said: list[tuple[str, Control]] = []
        self.records: list[Record] = []
        self.events: list[DeviceEvent] = []
        self.answer = lambda device, message: None
        self.membership = Membership(["a", "b"], self.notify, self.records.append, pinned=lambda name: pinned)
        self.membership.listen(self.events.append)

    def notify(self, device: str, message: Control) -> None:
        self.said.append((device, message))
        reply = self.answer(device, message)
        if reply is not None:
            asyncio.get_running_loop().call_soon(self.membership.on_control, device, reply)

    def of(self, kind: type) -> list[object]:
        return [record for record in self.records if isinstance(record, kind)]


def presence(device: str = "a", incarnation: str = "1", online: bool = True, protocol: int = PROTOCOL) -> Presence:
    return Presence(device, incarnation, online, protocol, samples=7)


def status(incarnation: str = "1", configured: int = 0, progress: int = 0, first: int = 0, phases: int = 0) -> Status:
    made = tuple(Phase("compute", "t", i, i + 1) for i in range(first, first + phases))
    return Status("a", incarnation, configured, "t", "compute", progress, 0.0, 0, made, first)


def test_a_device_joins_leaves_and_returns() -> None:
    recorded = RecordedMembership()
    for message in (presence(), presence(), presence(online=False), presence(incarnation="2")):
        recorded.membership.on_control("a", message)
    assert [e for e in recorded.events if not hasattr(e, "moved")] == [
        Joined("a", False, False),
        Left("a", "its connection ended (last will)"),
        Joined("a", True, True),
    ]
    assert recorded.membership.present() == ["a"]


def test_the_will_of_an_earlier_agent_changes_nothing() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence(incarnation="2"))
    recorded.membership.on_control("a", presence(incarnation="1", online=False))
    assert recorded.membership.present() == ["a"]
    assert not recorded.of(DeviceLeft)


def test_a_device_that_speaks_after_its_will_is_back() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    recorded.membership.on_control("a", presence(online=False))
    recorded.membership.on_control("a", status())
    assert recorded.membership.present() == ["a"]
    assert Joined("a", True, False) in recorded.events


def test_a_second_agent_with_a_device_s_name_is_sent_away_and_named() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence(incarnation="first"))
    recorded.membership.on_control("a", presence(incarnation="second"))
    recorded.membership.on_control("a", status("second", progress=9))
    recorded.membership.on_control("a", status("first"))
    (fault,) = recorded.of(Fault)
    assert "two agents call themselves a" in fault.what
    assert [m.incarnation for _, m in recorded.said if isinstance(m, Shutdown)] == ["second"]
    assert recorded.membership.devices["a"].incarnation == "first"
    assert [e for e in recorded.events if isinstance(e, Joined | Left)] == [Joined("a", False, False)]


def test_a_second_agent_that_did_not_hear_is_told_again_but_named_once() -> None:
    recorded = RecordedMembership()
    for message in (presence(incarnation="1"), presence(incarnation="2"), status("1")):
        recorded.membership.on_control("a", message)
    for message in (presence(incarnation="2"), *[status("2")] * 5, status("1"), status("1")):
        recorded.membership.on_control("a", message)
    assert [m.incarnation for _, m in recorded.said if isinstance(m, Shutdown)] == ["2"] * 7
    assert len(recorded.of(Fault)) == 1
    assert recorded.membership.devices["a"].incarnation == "1"


def test_a_second_agent_takes_the_place_of_a_silent_one() -> None:
    recorded = RecordedMembership()
    for message in (presence(incarnation="1"), status("1"), presence(incarnation="2"), *[status("2")] * RIVAL_BEATS):
        recorded.membership.on_control("a", message)
    assert recorded.membership.devices["a"].incarnation == "2"
    assert [e for e in recorded.events if isinstance(e, Joined | Left)][1:] == [
        Left("a", f"silent for {RIVAL_BEATS} heartbeats of a second agent with its name"),
        Joined("a", True, True),
    ]
    assert not recorded.of(Fault)


def test_an_old_presence_that_is_sent_again_changes_nothing_and_is_named_once() -> None:
    recorded = RecordedMembership()
    for message in (presence(incarnation="1"), presence(online=False), presence(incarnation="2")):
        recorded.membership.on_control("a", message)
    for message in (*[presence(incarnation="1")] * 2, presence(incarnation="2", online=False), presence("a", "1")):
        recorded.membership.on_control("a", message)
    assert recorded.membership.devices["a"].incarnation == "2"
    assert not recorded.membership.present()
    (fault,) = recorded.of(Fault)
    assert "announced itself as a again" in fault.what
    recorded.membership.on_control("a", status("1"))
    assert not recorded.membership.present()
    recorded.membership.on_control("a", status("2"))
    assert recorded.membership.present() == ["a"]


@pytest.mark.parametrize("away", [False, True])
def test_a_pinned_device_has_no_other_agent_until_the_fleet_starts_one(away: bool) -> None:
    recorded = RecordedMembership(pinned=True)
    recorded.membership.on_control("a", presence(incarnation="1"))
    if away:
        recorded.membership.on_control("a", presence(incarnation="1", online=False))
    for message in (presence(incarnation="2"), *[status("2")] * (RIVAL_BEATS + 1)):
        recorded.membership.on_control("a", message)
    assert recorded.membership.devices["a"].incarnation == "1"
    assert recorded.membership.present() == ([] if away else ["a"])
    assert [m.incarnation for _, m in recorded.said if isinstance(m, Shutdown)] == ["2"] * (RIVAL_BEATS + 2)
    (fault,) = recorded.of(Fault)
    assert "two agents call themselves a" in fault.what
    recorded.membership.expect("a")
    recorded.membership.on_control("a", status("1"))  # sent before its end
    recorded.membership.on_control("a", presence(incarnation="3"))
    assert (recorded.membership.devices["a"].incarnation, recorded.membership.present()) == ("3", ["a"])


def test_the_same_agent_connects_again() -> None:
    recorded = RecordedMembership(pinned=True)
    for message in (presence(), presence(online=False), presence(), presence()):
        recorded.membership.on_control("a", message)
    assert recorded.membership.present() == ["a"]
    assert not recorded.of(Fault)


async def test_settings_are_meant_for_the_agent_that_joined() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence(incarnation="1"))
    recorded.answer = lambda device, message: status("1", configured=message.seq)
    await recorded.membership.configure("a", Configure(0, 1, 1.0))
    assert [m.incarnation for _, m in recorded.said if isinstance(m, Configure)] == ["1"]


def test_another_protocol_is_refused_with_a_fault() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence(protocol=99))
    assert not recorded.membership.present()
    (fault,) = recorded.of(Fault)
    assert isinstance(fault, Fault)
    assert "update" in fault.what


def with_plugins() -> RecordedMembership:
    made = RecordedMembership()
    made.membership = Membership(["a", "b"], made.notify, made.records.append, plugins={"mine": "0" * 64})
    return made


def announced(incarnation: str, sha256: str) -> Presence:
    return msgspec.structs.replace(presence(incarnation=incarnation), plugins={"mine": sha256})


def test_an_agent_with_other_code_is_refused_and_one_with_the_right_code_may_follow() -> None:
    made = with_plugins()
    made.membership.on_control("a", announced("1", "f" * 64))
    assert not made.membership.devices["a"].online
    assert "has other code of the plug-in 'mine'" in made.membership.devices["a"].hopeless
    made.membership.on_control("a", announced("2", "0" * 64))
    assert made.membership.devices["a"].online
    assert not made.membership.devices["a"].hopeless


def test_a_presence_with_other_code_does_not_end_the_agent_that_is_there() -> None:
    made = with_plugins()
    made.membership.on_control("a", announced("1", "0" * 64))
    made.membership.on_control("a", announced("1", "f" * 64))  # who heard the incarnation says something else
    assert made.membership.devices["a"].online
    assert not [message for _, message in made.said if isinstance(message, Shutdown)]


def test_plug_ins_in_a_presence_can_be_printed() -> None:
    told = msgspec.structs.replace(presence(), plugins={"mine\x1b[2K": "\x1b[8m"})
    assert all(text.isprintable() for pair in told.plugins.items() for text in pair)


def test_foreign_devices_and_false_names_change_nothing() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("stranger", presence("stranger"))
    recorded.membership.on_control("b", presence("a"))
    assert not recorded.membership.present()
    assert not recorded.records


def test_phases_are_recorded_once_and_acknowledged() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    recorded.membership.on_control("a", status(first=0, phases=3))
    recorded.membership.on_control("a", status(first=0, phases=5))  # the acknowledgement was lost: repeated and more
    recorded.membership.on_control("a", status(first=2, phases=2))  # late
    recorded.membership.on_control(
        "a", status(first=9, phases=2)
    )  # a gap cannot be: the device repeats from what is missing
    starts = [phase.start_ns for record in recorded.of(DevicePhases) for phase in record.phases]  # type: ignore[attr-defined]
    assert starts == [0, 1, 2, 3, 4]
    assert recorded.said[-1] == ("a", PhasesSeen("1", 5))


async def test_configure_repeats_until_the_device_has_it() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    tries = 0

    def answer(device: str, message: Control) -> Control | None:
        nonlocal tries
        tries += isinstance(message, Configure)
        return status(configured=message.seq) if isinstance(message, Configure) and tries > 1 else None

    recorded.answer = answer
    await recorded.membership.configure("a", Configure(0, threads=1, heartbeat_s=1.0))
    assert tries == 2


async def test_probe_and_clock() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())

    def answer(device: str, message: Control) -> Control | None:
        match message:
            case Probe():
                return ProbeResult("a", message.id, wall_s=2.0)
            case Ping(seq, sent):
                return Pong("a", seq, sent, sent + 5_000_000_000)
        return None

    recorded.answer = answer
    assert (await recorded.membership.probe("a", Probe("", "busy"))).wall_s == 2.0
    offset = await recorded.membership.measure_clock("a", rounds=2)
    assert offset.offset_ns == pytest.approx(5_000_000_000, abs=offset.uncertainty_ns)


@pytest.mark.parametrize("hopeless", [True, False])
async def test_a_probe_of_a_device_that_is_gone_ends(monkeypatch: pytest.MonkeyPatch, hopeless: bool) -> None:
    monkeypatch.setattr(membership, "REPEAT_S", 0.01)
    monkeypatch.setattr(membership, "ABSENT_S", 0.05)
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    probing = asyncio.create_task(recorded.membership.probe("a", Probe("", "busy")))
    await asyncio.sleep(0)
    recorded.membership.left("a", "the board is revoked")
    if hopeless:
        recorded.membership.give_up("a", "the board is revoked")
    with pytest.raises(FleetError, match="a is gone: the board is revoked" if hopeless else "a is gone: it was away"):
        await asyncio.wait_for(probing, 10)


async def test_waiting_names_the_devices_that_do_not_come() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    with pytest.raises(FleetError, match=r"1 of 2 devices did not join .*: b"):
        await recorded.membership.wait_joined(0.05)
    assert msgspec.structs.asdict(recorded.of(DeviceJoined)[0])["device"] == "a"  # type: ignore[call-overload]


def resting(task: str = "", progress: int = 0) -> Status:
    return msgspec.structs.replace(status(progress=progress), task=task, phase="waiting", sent_ns=1 << 62)


async def every_turn() -> None:
    """Lets all tasks run until they wait: one may wait for another that waits for a third."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_fleet_rests_once_every_device_that_is_present_says_that_it_has_no_task() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    recorded.membership.on_control("a", msgspec.structs.replace(resting(), sent_ns=0))
    wait = asyncio.create_task(recorded.membership.rest(60.0))
    await every_turn()
    for message in (status(), resting("a task that was cancelled")):
        recorded.membership.on_control("a", message)
        await every_turn()
        assert not wait.done()
    recorded.membership.on_control("a", resting())
    assert await asyncio.wait_for(wait, 10) == []


async def test_a_device_that_stays_at_work_without_progress_is_named() -> None:
    recorded = RecordedMembership()
    recorded.membership.on_control("a", presence())
    recorded.membership.on_control("a", resting("t"))
    assert await recorded.membership.rest(0.0) == ["a"]
    recorded.membership.left("a", "gone")
    assert await recorded.membership.rest(0.0) == []
