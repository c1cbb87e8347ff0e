"""Quotas of all fleets on a host count, whoever started them and however they end."""

from __future__ import annotations

import fcntl
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from edgebed.errors import CapacityError, FleetError
from orchestrator.fleet import engine, leftovers, ownership
from orchestrator.fleet.host import cpus as host_cpus
from orchestrator.fleet.host.cpus import Admitted, Claim, Standing, admit, standing, taken_cpus
from orchestrator.fleet.spec.profile import DeviceSpec, FleetSpec, Limits, ProfileSpec
from orchestrator.fleet.spec.speed import Speed

CORES = 4.0

CLAIM = """
import sys
from pathlib import Path
from orchestrator.fleet.host import cpus as host_cpus
from orchestrator.fleet import leftovers
leftovers.STATE = host_cpus.TEMPORARY = Path(sys.argv[1])
claim = host_cpus.Claim(host_cpus.Standing("f0000dead", "theirs", "local", 1.0, 0.5))
print("claimed", flush=True)
input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of its own: 4 cores, no fleets, no cgroups, no engine."""
    monkeypatch.setattr(leftovers, "STATE", tmp_path)
    monkeypatch.setattr(host_cpus, "TEMPORARY", tmp_path)
    monkeypatch.setattr(host_cpus, "MOUNT", tmp_path / "cgroup")
    monkeypatch.setattr(host_cpus, "usable_cores", lambda: CORES)
    monkeypatch.setattr(engine, "connect", no_engine)
    return tmp_path


def no_engine(timeout_s: float = 0.0) -> None:
    raise FleetError("no Docker engine answers")


def spec(*cpus: float, name: str = "mine", reserve: float = 0.5) -> FleetSpec:
    devices = [DeviceSpec(f"d{i}", ProfileSpec(f"p{i}", Limits(c, 1, 1, 64))) for i, c in enumerate(cpus)]
    return FleetSpec(name, "local", reserve, tuple(devices), Path("fleet.yaml"))


def start(number: int, fleet: FleetSpec, setting: str | float = "auto", *more: FleetSpec) -> Admitted:
    return admit("local", f"f{number:08x}", [fleet, *more], setting)


def held(fleets: list[Standing]) -> dict[str, tuple[float, float]]:
    return {fleet.fleet_id: (round(fleet.cpus, 6), fleet.reserve_cpus) for fleet in fleets}


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_a_fleet_alone_has_the_host_and_gives_it_back(place: Path) -> None:
    first = start(1, spec(7.0))
    assert (first.dilation, first.others) == (2.0, [])
    assert held(standing()) == {"f00000001": (3.5, 0.5)}
    first.claim.close()
    first.claim.close()
    assert standing() == []


def test_the_second_fleet_gets_what_is_left_and_is_told_why(place: Path) -> None:
    start(1, spec(1.0, name="first"))
    second = start(2, spec(4.0))
    assert second.dilation == pytest.approx(4.0 / (4.0 - 1.5 - 0.5))
    assert taken_cpus(standing()) == pytest.approx(CORES)
    assert "first" in str(second)
    assert "D is 2 instead of 1.14" in str(second)


def test_the_second_fleet_is_refused_where_nothing_is_left(place: Path) -> None:
    start(1, spec(7.0, name="first"))
    with pytest.raises(CapacityError, match=r"hold 4 of this host's 4 cores.*first \(local, process \d+\)") as refused:
        start(2, spec(1.0))
    assert "larger dilation" in refused.value.hint
    assert set(held(standing())) == {"f00000001"}


@pytest.mark.parametrize("setting", ["off", 1.0, "1.5"])
def test_a_fixed_dilation_is_not_changed(place: Path, setting: str | float) -> None:
    start(1, spec(1.0))
    with pytest.raises(CapacityError, match=r"does not fit beside them.*use dilation|does not fit beside them"):
        start(2, spec(3.5), setting)
    assert start(3, spec(3.5), 1.75).dilation == 1.75


def test_a_fleet_that_does_not_fit_alone_is_not_blamed_on_others(place: Path) -> None:
    start(1, spec(0.1))
    with pytest.raises(CapacityError) as refused:
        start(2, spec(3.9), "off")
    assert "other fleets" not in str(refused.value)


@pytest.mark.parametrize(("by_index", "claimed"), [(1.5, 1.5), (9.0, 2.5)])
def test_a_fleet_that_is_not_measured_yet_claims_what_the_index_tells_and_no_more_than_is_left(
    place: Path, by_index: float, claimed: float
) -> None:
    start(1, spec(0.5))
    unknown = Speed("core", 1e-3, unsure=by_index)
    first = start(2, msgspec.structs.replace(spec(2.0), speed=unknown), 2.0)
    assert first.dilation == 2.0
    assert held(standing())["f00000002"] == (claimed, 0.5)


def test_a_fleet_that_asks_again_keeps_its_place_meanwhile(place: Path) -> None:
    first = start(1, spec(3.0), 1.0)
    second = start(1, spec(1.0), 1.0)
    assert held(standing()) == {"f00000001": (1.0, 0.5)}
    first.claim.close(renewed=True)
    assert held(standing()) == {"f00000001": (1.0, 0.5)}
    second.claim.close()
    assert standing() == []


def test_a_fleet_holds_the_most_that_its_changing_profiles_need(place: Path) -> None:
    start(1, spec(1.0, 1.0), "auto", spec(1.0, 2.0))
    assert held(standing())["f00000001"] == (3.0, 0.5)


def test_the_claim_of_a_killed_orchestrator_is_free(place: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "claimed\n"
        assert held(standing()) == {"f0000dead": (1.0, 0.5)}
        owner.kill()
        owner.wait()
    assert standing() == []
    assert not list(place.rglob("*dead*"))


def test_fleets_that_start_at_the_same_time_see_each_other(place: Path) -> None:
    def attempt(number: int) -> Admitted | CapacityError:
        try:
            return start(number, spec(1.0))
        except CapacityError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(8)))
    started = [each for each in results if isinstance(each, Admitted)]
    assert len({each.dilation for each in started}) == len(started) - 1, "two without a dilation, one with what is left"
    assert taken_cpus(standing()) == pytest.approx(CORES)


def test_a_lock_that_is_held_for_long_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cpus, "LOCK_S", 0.05)
    start(1, spec(0.1)).claim.close()
    with (place / "edgebed-cpus.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(FleetError, match="another process has held"):
            start(2, spec(0.1))
    start(2, spec(0.1))


def test_a_damaged_claim_is_left_out(place: Path) -> None:
    claim = Claim(Standing("f00000001", "a", "local", 1.0, 0.5))
    next(place.rglob("f00000001.json")).write_text("{")
    assert standing() == []
    claim.close()


# ---- cgroups ---------------------------------------------------------------------------------------------------------


def device(folder: Path, cpus: float, procs: str = "77\n") -> Path:
    """A cgroup with a quota, in the files of version 2 or 1."""
    folder.mkdir(parents=True)
    if "cpu" in folder.parts[-3:]:
        (folder / "cpu.cfs_quota_us").write_text(f"{round(cpus * 1e5)}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    else:
        (folder / "cpu.max").write_text(f"{round(cpus * 1e5)} 100000\n")
    (folder / "cgroup.procs").write_text(procs)
    return folder


@pytest.fixture(params=[1, 2])
def cgroups(place: Path, request: pytest.FixtureRequest) -> Path:
    """The folder in which devices' cgroups stand, of both versions."""
    mount = place / "cgroup"
    mount.mkdir()
    if request.param == 2:
        (mount / "cgroup.controllers").touch()
        return mount / "edgebed"
    return mount / "cpu" / "edgebed"


def test_fleets_without_a_claim_count_by_their_quotas(cgroups: Path) -> None:
    device(cgroups / "f0000000a-0", 0.2)
    device(cgroups / "f0000000a-1", 0.3)
    device(cgroups / "f0000000b-0", 0.25)
    assert held(standing()) == {"f0000000a": (0.5, 0.0), "f0000000b": (0.25, 0.0)}


def test_a_claim_stands_for_the_cgroups_of_its_fleet(cgroups: Path) -> None:
    start(10, spec(1.0))
    device(cgroups / "f0000000a-0", 1.0)
    assert held(standing()) == {"f0000000a": (1.0, 0.5)}


def test_what_a_killed_orchestrator_left_does_not_count(cgroups: Path, place: Path) -> None:
    device(cgroups / "f0000000a-0", 1.0)
    (place / "f0000000a").mkdir()
    ownership.hold(place / "f0000000a").close()
    device(cgroups / "f0000000b-0", 1.0, procs="")
    (device(cgroups / "f0000000c-0", 1.0) / "cpu.max").write_text("max 100000\n")
    (cgroups / "f0000000c-0" / "cpu.cfs_quota_us").write_text("-1\n")
    assert standing() == []


def test_containers_count_for_their_fleet(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {kind: f"{kind}" * 64 for kind in "abcd"}
    device(cgroups / ids["a"], 0.5)
    device(cgroups.parent / "edgebed.slice" / f"docker-{ids['b']}.scope", 0.25)
    device(cgroups / ids["c"], 1.0)
    inner = device(cgroups / ids["d"], 0.125, procs="")
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "cpu.cfs_quota_us").write_text("-1\n")
    device(inner / "device", 0.125)
    known = {ids["a"]: ("fone", False), ids["b"]: ("fone", False), ids["c"]: ("fdead", True)}
    monkeypatch.setattr(engine, "connect", lambda timeout_s: io.StringIO())  # a client is only closed here
    monkeypatch.setattr(engine, "owners", lambda client: known)
    assert held(standing()) == {"fone": (0.75, 0.0), f"container {'d' * 12}": (0.125, 0.0)}
