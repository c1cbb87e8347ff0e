"""Fleet files that name boards: what they say, what is refused, the link over two brokers, one fleet at a time."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
import pytest

from edgebed.errors import CapacityError, FleetError, UsageError
from edgebed.link.base import Handler
from edgebed.link.connection import Address
from edgebed.wire.topics import Topics
from orchestrator.boards.boards_broker import BoardsBroker
from orchestrator.boards.members import Taken, board_ids, claimed, taken_boards, with_facts
from orchestrator.boards.registry import Board, Registry, Store
from orchestrator.boards.service_folder import Live, ServiceFolder, Where
from orchestrator.boards.split_link import SplitLink
from orchestrator.experiment import load
from orchestrator.fleet.base import Enforcement
from orchestrator.fleet.ownership import this_process
from orchestrator.fleet.spec.capacity import dilation_of
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet
from orchestrator.records.words.vocabulary import held_by
from orchestrator.runs import session
from orchestrator.runs.feasibility import check_fleet, experiment_fleet, simulated_fleet
from orchestrator.runs.opened_fleet import OpenedFleet
from tests.component._fleet import NoBackend

HERE = "cpus: 0.5\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 512\n"
PI = "cpus: 0.2\nuplink_mbit_s: 90\ndownlink_mbit_s: 80\nmemory_mib: 4096\n"
ID = "b" + "0" * 31
"""A board's id has 31 hexadecimal digits after the b."""


def fleet(folder: Path, devices: str) -> FleetSpec:
    (folder / "here.yaml").write_text(HERE)
    (folder / "pi.yaml").write_text(PI)
    path = folder / "fleet.yaml"
    path.write_text(f"name: f\ndevices:\n{devices}")
    return load_fleet(path)


def board(name: str, number: int, profile: str = "", **facts: str) -> Board:
    return Board(f"{ID[:-1]}{number}", name, profile, "key", 0.0, ["1"], 1e12, 0.0, facts=facts)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceFolder:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return ServiceFolder.of_user()


def keep(place: ServiceFolder, *boards: Board) -> Registry:
    with Store(place).change() as registry:
        registry.boards = list(boards)
    return Store(place).read()


# ---- fleet files ----


def test_boards_stand_beside_devices_of_this_host(tmp_path: Path) -> None:
    devices = "  - {board: b1}\n  - {board: b2, name: kitchen, profile: pi.yaml}\n  - {profile: here.yaml, count: 2}\n"
    spec = fleet(tmp_path, devices)
    assert [(each.name, each.board, each.profile.name) for each in spec.devices] == [
        ("b1", "b1", "board"),
        ("kitchen", "b2", "pi"),
        ("here-1", "", "here"),
        ("here-2", "", "here"),
    ]
    assert spec.unlimited == ["b1", "kitchen"]
    assert spec.cpus == 1.0
    assert spec.rates == (40_000_000, 40_000_000)
    assert held_by("kernel", spec.unlimited) == "limits held by kernel; unlimited: the real boards b1, kitchen"


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("  - {name: x}\n", "a device has a `profile`, or is a real `board`"),
        ("  - {board: b1, count: 2}\n", "a board is one device"),
        ("  - {board: b1}\n  - {board: b1, name: other}\n", "two devices are the board 'b1'"),
        ("  - {board: ../b1}\n", "is no name for a board"),
        ("  - {board: b1, accelerator: gpu}\n", "accelerator is 'gpu'; it must be cpu, cuda or auto"),
        ("  - {profile: here.yaml, accelerator: cpu}\n", "`accelerator` is for a real `board`"),
    ],
)
def test_wrong_entries_are_refused(tmp_path: Path, devices: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("`", ".")):
        fleet(tmp_path, devices)


def test_a_board_is_told_where_to_train_only_if_the_file_says_so(tmp_path: Path) -> None:
    spec = fleet(tmp_path, "  - {board: b1, accelerator: cuda}\n  - {board: b2}\n  - {profile: here.yaml}\n")
    assert [device.accelerator for device in spec.devices] == ["cuda", None, None]


# ---- dilation ----


def test_a_fleet_with_boards_is_never_dilated(tmp_path: Path) -> None:
    boards_only, mixed = fleet(tmp_path, "  - {board: b1}\n"), "  - {board: b1}\n  - {profile: here.yaml, count: 9}\n"
    assert dilation_of(boards_only, "auto", 2) == 1
    spec = fleet(tmp_path, mixed)
    assert dilation_of(spec, "auto", 8) == 1
    with pytest.raises(
        CapacityError, match=r"\(b1\).* want 4.5 CPUs, and this host has 2 cores of which 0.5 are reserved"
    ):
        dilation_of(spec, "auto", 2)
    with pytest.raises(CapacityError, match=r"its dilation must be 1.*The experiment asks for 4"):
        dilation_of(spec, 4.0, 8)
    assert spec.devices[0].profile.limits.dilated(4.0) == spec.devices[0].profile.limits


def test_limits_on_a_board_are_divided_by_the_fleets_dilation(tmp_path: Path) -> None:
    spec = fleet(tmp_path, "  - {board: b1, profile: pi.yaml, limit: true}\n  - {profile: here.yaml, count: 9}\n")
    assert dilation_of(spec, "auto", 2) == 3  # 4.5 CPUs on 1.5; the board needs none of this host
    limits = spec.devices[0].profile.limits.dilated(3.0)
    assert (limits.cpus, limits.uplink_bit_s) == (pytest.approx(0.2 / 3), 30_000_000)
    with pytest.raises(CapacityError, match=r"b1 would get 0.0007 CPUs at D = 300; the smallest CPU quota"):
        dilation_of(spec, 300.0, 2)
    both = fleet(
        tmp_path, "  - {board: b1, profile: pi.yaml, limit: true}\n  - {board: b2}\n  - {profile: here.yaml}\n"
    )
    with pytest.raises(CapacityError, match=r"real boards without limits \(b2\)") as refused:
        dilation_of(both, 2.0, 2)
    assert "`limit: true`" in refused.value.hint


@pytest.mark.parametrize("limit", ["false", "true"])
def test_boards_alone_need_no_cpu_of_this_host_but_a_server_does(tmp_path: Path, limit: str) -> None:
    spec = fleet(tmp_path, f"  - {{board: b1, profile: pi.yaml, limit: {limit}}}\n")
    assert dilation_of(spec, "auto", 0.25) == 1  # 0.5 are reserved
    with pytest.raises(CapacityError, match=r"leaves nothing of this host's 0\.25 cores"):
        dilation_of(msgspec.structs.replace(spec, server_cpus=1.0), "auto", 0.25)


# ---- who they are ----


def test_a_board_has_its_cores_and_the_profile_of_its_invitation(tmp_path: Path, place: ServiceFolder) -> None:
    keep(place, board("b1", 1, "pi.yaml", cores="4", memory_mib="3792"), board("b2", 2, cores="nonsense"))
    spec = with_facts(fleet(tmp_path, "  - {board: b1}\n  - {board: b2}\n  - {profile: here.yaml}\n"))
    first, second = spec.devices[0].profile, spec.devices[1].profile
    assert (first.name, first.limits.cpus, first.limits.memory_mib, first.limits.uplink_bit_s) == (
        "pi",
        4.0,
        3792,
        90_000_000,
    )
    assert (second.name, second.limits.cpus) == ("board", 1.0)
    assert first.limits.unlimited
    assert second.limits.unlimited
    assert with_facts(spec) == spec
    keep(place, board("b1", 1, "gone"), board("b2", 2))
    with pytest.raises(UsageError, match="was invited with --profile gone"):
        with_facts(fleet(tmp_path, "  - {board: b1}\n"))


def test_boards_that_cannot_take_part_are_all_named(tmp_path: Path, place: ServiceFolder) -> None:
    gone = board("gone", 1)
    gone.revoked_s, gone.revoked_why = 1.0, "by hand"
    keep(place, gone, board("b1", 2))
    with Store(place).change() as registry:
        registry.invite("late", "", 60.0, False, time.time())
    devices = "".join(f"  - {{board: {name}}}\n" for name in ("b1", "gone", "late", "never"))
    said = r"board gone is revoked \(by hand\); the board late was invited and has not joined; there is no board never"
    with pytest.raises(FleetError, match=said):
        board_ids(fleet(tmp_path, devices), Store(place).read())


def test_one_fleet_at_a_time_has_a_board(place: ServiceFolder) -> None:
    ids, taken = {"b1": f"{ID[:-1]}1", "b2": f"{ID[:-1]}2"}, Taken("lab", "f1", 7)
    with claimed(place, ids, taken):
        assert taken_boards(place) == dict.fromkeys(ids.values(), taken)
        with (
            pytest.raises(FleetError, match=r"b2 works for the fleet lab \(f1, process 7\)"),
            claimed(place, {"b2": ids["b2"]}, taken),
        ):
            pass
    assert taken_boards(place) == {}
    with claimed(place, ids, taken):
        pass


async def test_a_board_never_becomes_larger_than_it_is(tmp_path: Path, place: ServiceFolder) -> None:
    keep(place, board("b1", 1, cores="1", memory_mib="4096"))
    small = with_facts(fleet(tmp_path, "  - {board: b1, profile: pi.yaml, limit: true}\n"))
    (tmp_path / "pi.yaml").write_text(PI.replace("0.2", "2"))
    large = load_fleet(small.path)
    with pytest.raises(CapacityError, match="has 2 cores, the board b1 1"):
        async with session.standing_fleet(small, becomes=[with_facts(large)]):
            pass


# ---- one link, two brokers ----


class Noted:
    """A link that notes what it is given."""

    connected = True

    def __init__(self) -> None:
        self.published: list[str] = []
        self.handlers: list[Handler] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def subscribe(self, topic: str, handler: Handler) -> None:
        self.handlers.append(handler)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.published.append(topic)

    def on_connect(self, callback: object) -> None: ...


def test_a_board_is_called_by_its_id_on_its_own_broker_only() -> None:
    here, there, heard = Noted(), Noted(), list[tuple[str, bytes]]()
    link, topics = SplitLink(here, there, {"kitchen": ID}), Topics("f1")
    link.publish(topics.control_to("kitchen"), b"")
    link.publish(topics.control_to("cpu1"), b"")
    assert (here.published, there.published) == ([topics.control_to("cpu1")], [topics.control_to(ID)])
    link.subscribe(topics.control_from("+"), lambda topic, payload: heard.append((topic, payload)))
    there.handlers[0](topics.control_from(ID), b"board")
    there.handlers[0](topics.control_from("b" + "1" * 31), b"a board of another fleet")
    here.handlers[0](topics.control_from("cpu1"), b"device")
    here.handlers[0](topics.control_from("kitchen"), b"plays the board")
    assert heard == [(topics.control_from("kitchen"), b"board"), (topics.control_from("cpu1"), b"device")]


def test_the_topics_of_a_board_end_in_its_id() -> None:
    board = Topics("f1", ID)
    assert board.state("kitchen") == Topics("f1").state(ID)
    assert board.data_from("kitchen") == Topics("f1").data_from(ID)


# ---- what a board cannot do ----

EXPERIMENT = """
name: e
fleet: fleet.yaml
model: {name: resnet-tiny}
methods: [{name: fedavg}]
training: {rounds: 3, batch_size: 8}
"""


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("scenario: [{at_s: 1, device: b1, do: freeze}]\n", "b1 is a real board: it cannot freeze"),
        ("scenario: [{at_s: 1, device: b1, limits: {cpus: 1}}]\n", "b1 is a real board: its limits cannot be changed"),
        ("scenario: [{at_s: 1, share: 0.5, do: cut}]\n", "may fall on the real board b1"),
        ("environment: {every: 1, share: 0.5}\n", "the profiles of real boards cannot be changed"),
    ],
)
def test_what_a_board_cannot_do_is_refused_before_the_start(tmp_path: Path, rest: str, said: str) -> None:
    fleet(tmp_path, "  - {board: b1}\n  - {profile: here.yaml}\n")
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT + rest)
    experiment = load(path)
    with pytest.raises(UsageError, match=said):
        check_fleet(experiment, experiment_fleet(experiment, path), path)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("{at_s: 1, device: b1, do: freeze}", "b1 is a real board: it cannot freeze"),
        ("{at_s: 1, share: 0.5, compete_cpus: 0.1}", "may fall on the real board b1: nothing competes there"),
        ("{at_s: 1, device: b1, limits: {cpus: 0.1}}", ""),
    ],
)
def test_a_board_that_limits_itself_can_be_given_other_limits_and_no_more(
    tmp_path: Path, event: str, said: str
) -> None:
    fleet(tmp_path, "  - {board: b1, profile: pi.yaml, limit: true}\n  - {profile: here.yaml}\n")
    path = tmp_path / "experiment.yaml"
    path.write_text(f"{EXPERIMENT}scenario: [{event}]\n")
    experiment = load(path)
    with pytest.raises(UsageError, match=said) if said else contextlib.nullcontext():
        check_fleet(experiment, experiment_fleet(experiment, path), path)


def test_a_board_may_leave_and_return(tmp_path: Path) -> None:
    fleet(tmp_path, "  - {board: b1}\n  - {profile: here.yaml}\n")
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT + "scenario: [{round: 2, device: b1, do: leave, for_s: 3}]\n")
    experiment = load(path)
    check_fleet(experiment, experiment_fleet(experiment, path), path)


def test_a_board_is_simulated_by_its_profile(tmp_path: Path) -> None:
    spec = simulated_fleet(fleet(tmp_path, "  - {board: b1, profile: pi.yaml}\n"))
    assert (spec.unlimited, spec.boards, spec.devices[0].profile.limits.cpus) == ([], (), 0.2)
    with pytest.raises(UsageError, match="b1 is a real board without a profile, so nothing is known to simulate"):
        simulated_fleet(fleet(tmp_path, "  - {board: b1}\n"))
    assert msgspec.structs.replace(spec) == simulated_fleet(spec)


async def test_a_broker_of_ones_own_is_of_no_use_to_boards_only(tmp_path: Path) -> None:
    spec = fleet(tmp_path, "  - {board: b1}\n")
    address = BoardsBroker(
        ServiceFolder(tmp_path), Live(this_process(), Address("/socket", 0), 0), Where(("h",), 1, 2), started=False
    )
    opened = OpenedFleet(spec, "f1", NoBackend(Enforcement.UNLIMITED), address, {"b1": ID})
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(UsageError, match="all devices of f are boards"):
            await opened.open_broker(stack, [], "mqtt://elsewhere")
        assert await opened.open_broker(stack, [], None) is address
