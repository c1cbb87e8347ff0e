"""What one hostile device can make the orchestrator keep, write or show: bounded, and printable."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edgebed.errors import WireError
from edgebed.link.endpoint import MAX_CONTROL_BYTES, TOO_LONG, TransferEndpoint
from edgebed.timeouts import timeout
from edgebed.wire.boards import BoardState, decode_json
from edgebed.wire.frames import Mark, pack_mark, unpack
from edgebed.wire.messages import (
    Control,
    Credit,
    Pong,
    Presence,
    ProbeResult,
    Query,
    Refuse,
    Status,
    decode_control,
    encode,
)
from edgebed.wire.piece_times import Phase
from edgebed.wire.protocol import PROTOCOL
from edgebed.wire.reading import Readings
from edgebed.wire.texts import MOST_TEXT
from edgebed.wire.topics import ORCHESTRATOR, Topics
from orchestrator.export.columns import write_csv
from orchestrator.fleet.control.member import JOINS_MINUTE, RECORD_BYTES
from orchestrator.fleet.control.membership import RIVAL_BEATS, Membership
from orchestrator.records.compare.tabulate import to_csv
from orchestrator.records.types import DeviceJoined, DeviceLeft, Fault, Record
from tests.memory_link import MemoryHub, MemoryLink

LONG = "x" * 501
PHASE = Phase("compute", "t", 0, 1)
STATUS = Status("a", "1", 0, "t", "compute", 1, 0.0, 0)
ESCAPE = "\x1b]52;c;ZXZpbA==\x1b\\\x1b[2K\x1b[32mall is well\u202e\u200b\x9b"


async def test_a_control_message_of_more_than_64_kib_is_dropped_and_named_once() -> None:
    hub, topics = MemoryHub(), Topics("f1")
    heard: list[Control] = []
    dropped: list[tuple[str, str]] = []

    told = asyncio.Event()

    async def deliver(inbound: object) -> None: ...

    def on_dropped(name: str, why: str) -> None:
        dropped.append((name, why))
        told.set()

    control, data, link = MemoryLink(hub), MemoryLink(hub), MemoryLink(hub)
    endpoint = TransferEndpoint(
        ORCHESTRATOR,
        topics,
        control,
        data,
        deliver=deliver,
        on_control=lambda peer, message: heard.append(message),
        on_dropped=on_dropped,
    )
    payload = msgspec.msgpack.encode({"type": "pong", "device": "a", "seq": 1, "sent_ns": 1, "device_ns": 1, "x": ""})
    padded = msgspec.msgpack.encode({**msgspec.msgpack.decode(payload), "x": "x" * (MAX_CONTROL_BYTES - 200)})
    too_long = msgspec.msgpack.encode({**msgspec.msgpack.decode(payload), "x": "x" * MAX_CONTROL_BYTES})
    endpoint.start()
    for each in (control, data, link):
        await each.open()
    for each in (padded, too_long, too_long):
        link.publish(topics.control_from("a"), each)
    async with timeout(5):
        await told.wait()
    assert [type(each) for each in heard] == [Pong]
    assert dropped == [("a", TOO_LONG)]
    await endpoint.close()


@pytest.mark.parametrize(
    "message",
    [
        Presence("a", LONG, True, PROTOCOL),
        Presence("a", "1", True, PROTOCOL, shard=LONG),
        Presence("a", "1", True, PROTOCOL, labels=(1,) * 10_001),
        Presence("a", "1", True, PROTOCOL, host={str(n): "" for n in range(65)}),
        Presence("a", "1", True, PROTOCOL, host={"kernel": LONG}),
        Presence("a", "1", True, PROTOCOL, host={LONG: "6.1"}),
        msgspec.structs.replace(STATUS, phases=(PHASE,) * 1001),
        msgspec.structs.replace(STATUS, task=LONG),
        msgspec.structs.replace(STATUS, phase=LONG),
        msgspec.structs.replace(STATUS, incarnation=LONG),
        msgspec.structs.replace(STATUS, phases=(Phase(LONG, "t", 0, 1),)),
        msgspec.structs.replace(STATUS, phases=(Phase("compute", LONG, 0, 1),)),
        Pong(LONG, 1, 1, 1),
        ProbeResult("a", LONG),
        ProbeResult("a", "1", runs_s=(0.1,) * 101),
        ProbeResult("a", "1", gaps_s=(0.1,) * 101),
        Credit(LONG, "o", "t", 1, 1),
        Refuse("a", "o", LONG, ""),
        Query("a", LONG, "t", 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_every_text_and_list_of_a_device_has_a_longest(message: Control) -> None:
    with pytest.raises(WireError, match="not a message"):
        decode_control(encode(message))


def test_the_name_of_a_transfer_has_a_longest() -> None:
    with pytest.raises(WireError, match="not a frame"):
        unpack(pack_mark(Mark("x" * 101, "", 1, 1, 1)))


def raw(tag: str, **fields: object) -> bytes:
    """A message as a hostile device writes it."""
    return msgspec.msgpack.encode({"type": tag, "device": "a", **fields})


def test_texts_for_people_are_printable_and_short_when_they_come_in() -> None:
    presence = decode_control(
        raw("presence", incarnation="1", online=True, protocol=PROTOCOL, host={"os" + ESCAPE: ESCAPE})
    )
    result = decode_control(raw("probe_result", id="1", error=ESCAPE + "x" * 9999))
    refuse = decode_control(raw("refuse", sender="a", receiver="b", transfer="t", why=ESCAPE + "x" * 9999))
    at = {"at_ns": 1, "governor": ESCAPE, "power_mode": ESCAPE}
    (reading,) = msgspec.convert([at], Readings)
    board = msgspec.json.encode({"online": True, "error": ESCAPE + "x" * 9999, "version": ESCAPE, "unheld": ESCAPE})
    state = decode_json(board, BoardState)
    assert isinstance(presence, Presence)
    assert isinstance(result, ProbeResult)
    assert isinstance(refuse, Refuse)
    texts = [*presence.host, *presence.host.values(), result.error, refuse.why, state.error, state.version]
    for text in (*texts, state.unheld, reading.governor or "", reading.power_mode or ""):
        assert text.isprintable()
        assert "all is well" in text
        assert len(text) <= MOST_TEXT + 1


def test_the_state_of_a_board_has_a_longest_and_what_it_holds_is_printable() -> None:
    """Its broker takes 8 MiB; so many details took a second to decode, of the service and of each run."""
    limits = {"cpus": 1.0, "uplink_bit_s": 1, "downlink_bit_s": 1, "memory_mib": 1}
    rest: dict[str, object] = dict.fromkeys(("cpu_s", "throttled_s", "throttled_periods", "memory_used_mib"), 0)
    rest |= {"uplink_bytes": 0, "downlink_bytes": 0, "alive": True, "device": "a", "requested": limits}
    held: dict[str, object] = {**limits, **rest, "details": {"qdisc" + ESCAPE: ESCAPE}}
    state = decode_json(msgspec.json.encode({"online": True, "held": held}), BoardState)
    assert state.held is not None
    for text in (*state.held.details, *state.held.details.values()):
        assert text.isprintable()
        assert "all is well" in text
    held["details"] = {str(number): "" for number in range(100_000)}
    with pytest.raises(WireError, match="at most 65536 bytes"):
        decode_json(msgspec.json.encode({"online": True, "held": held}), BoardState)


@pytest.mark.parametrize("fields", [{"task": ESCAPE}, {"phase": ESCAPE}, {"phases": [[ESCAPE, "t", 0, 1]]}])
def test_names_that_cannot_be_printed_are_refused(fields: dict[str, object]) -> None:
    honest = {"incarnation": "1", "configured": 0, "task": "t", "phase": "compute", "progress": 1}
    with pytest.raises(WireError):
        decode_control(raw("status", **{**honest, "cpu_s": 0.0, "sent_ns": 0, **fields}))


def test_a_cell_of_a_table_is_never_a_formula(tmp_path: Path) -> None:
    attack = '=HYPERLINK("http://evil","x")'
    (path,) = write_csv([Fault(1, "a", attack), Fault(1, "a", "-1+2"), Fault(1, "a", f"say {ESCAPE}")], tmp_path)
    cells = [row["what"] for row in csv.DictReader(path.open(newline=""))]
    assert cells[:2] == ["'" + attack, "'-1+2"]
    assert cells[2].isprintable()
    assert [row["method"] for row in csv.DictReader(to_csv([{"method": "@x", "seed": -1}]).splitlines())] == ["'@x"]
    assert [row["seed"] for row in csv.DictReader(to_csv([{"method": "@x", "seed": -1}]).splitlines())] == ["-1"]


def fleet(kept: Callable[[Record], None], *, pinned: bool = False) -> Membership:
    return Membership(["a"], lambda name, message: None, kept, pinned=lambda name: pinned)


def test_phases_of_a_device_fill_the_records_to_a_bound_and_no_further() -> None:
    records: list[Record] = []
    members = fleet(records.append)
    members.on_control("a", Presence("a", "1", True, PROTOCOL))
    phases = (Phase("x" * 400, "t" * 400, 0, 1),) * 50
    sent = 0
    while sent < 4 * RECORD_BYTES:
        status = msgspec.structs.replace(STATUS, phases=phases, first_phase=members.devices["a"].phases_upto)
        members.on_control("a", status)
        sent += len(encode(status))
    written = sum(len(msgspec.json.encode(record)) for record in records)
    assert written < 1.5 * RECORD_BYTES
    assert sum("KiB of records a second" in each.what for each in records if isinstance(each, Fault)) == 1


def test_an_agent_of_another_protocol_does_not_fill_the_records() -> None:
    records: list[Record] = []
    members = fleet(records.append)
    for _ in range(200_000):
        members.on_control("a", Presence("a", "1", True, 99))
    assert sum(len(each.what) for each in records if isinstance(each, Fault)) < 1.5 * RECORD_BYTES


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_device_comes_back_a_few_times_a_minute(pinned: bool, fresh: bool) -> None:
    """With the same agent, or a new one each time, and heartbeats between."""
    records: list[Record] = []
    members = fleet(records.append, pinned=pinned)
    for number in range(500):
        name = str(number) if fresh else "1"
        members.on_control("a", Presence("a", name, True, PROTOCOL))
        for _ in range(RIVAL_BEATS):
            members.on_control("a", msgspec.structs.replace(STATUS, incarnation=name))
        members.on_control("a", Presence("a", name, False, PROTOCOL))
    times = sum(isinstance(each, DeviceJoined | DeviceLeft) for each in records)
    assert times <= 2 * (JOINS_MINUTE + 3)


def test_a_device_that_came_back_too_often_is_taken_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    members = fleet(lambda record: None)
    for _ in range(50):
        members.on_control("a", Presence("a", "1", True, PROTOCOL))
        members.on_control("a", Presence("a", "1", False, PROTOCOL))
    members.on_control("a", Presence("a", "1", True, PROTOCOL))
    assert members.present() == []
    now += 10
    members.on_control("a", msgspec.structs.replace(STATUS, incarnation="1"))
    assert members.present() == ["a"]
