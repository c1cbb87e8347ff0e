"""Profiles and fleets: what is read, what is refused and in which words; dilation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import CapacityError, UsageError
from orchestrator.fleet.backends import BACKENDS
from orchestrator.fleet.spec.capacity import Carried, dilation_of, needed_dilation, path_dilation
from orchestrator.fleet.spec.profile import (
    DeviceSpec,
    FleetSpec,
    Limits,
    ProfileSpec,
    fleet_of,
    load_fleet,
    load_profile,
)

FLEETS = Path(__file__).parents[2] / "profiles" / "fleets"
GOOD = {"cpus": "0.5", "uplink_mbit_s": "10", "downlink_mbit_s": "20", "memory_mib": "512"}


def write_profile(folder: Path, **changes: str | None) -> Path:
    keys = {**GOOD, **changes}
    path = folder / "board.yaml"
    path.write_text("".join(f"{k}: {v}\n" for k, v in keys.items() if v is not None))
    return path


def write_fleet(folder: Path, devices: str, rest: str = "") -> Path:
    path = folder / "fleet.yaml"
    path.write_text(f"name: test\n{rest}devices:\n{devices}")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_profile(path.name, path)
    assert caught.value.hint
    return f"{caught.value} | {caught.value.hint}"


def test_rates_become_bits_per_second(tmp_path: Path) -> None:
    path = write_profile(tmp_path, uplink_mbit_s="12.5")
    assert load_profile("board.yaml", path).limits == Limits(0.5, 12_500_000, 20_000_000, 512)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"uplink_mbit_s": None, "uplink": "10mbps"}, ["'uplink'", "did you mean 'uplink_mbit_s'?"]),
        ({"uplink_mbit_s": None, "uplink_kbit_s": "100"}, ["'uplink_kbit_s'", "did you mean 'uplink_mbit_s'?"]),
        ({"uplink_mbit_s": "10mbps"}, ["uplink_mbit_s", "megabits per second from 0.01 to 100000, such as 10"]),
        ({"uplink_mbit_s": "100_001"}, ["uplink_mbit_s", "100000"]),
        ({"downlink_mbit_s": "0"}, ["downlink_mbit_s"]),
        ({"cpus": "-1"}, ["cpus is -1", "a number of CPUs above 0"]),
        ({"cpus": "0"}, ["cpus"]),
        ({"cpus": ".nan"}, ["cpus", "nan"]),
        ({"cpus": ".inf"}, ["cpus", "inf"]),
        ({"cpus": "true"}, ["cpus"]),
        ({"cpus": "'2'"}, ["cpus"]),
        ({"cpu": "2"}, ["'cpu'", "did you mean 'cpus'?"]),
        ({"memory_mib": "2.5"}, ["memory_mib", "whole number"]),
        ({"memory_mib": "1"}, ["memory_mib"]),
        ({"cpus": None}, ["cpus"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_place_and_hint(
    tmp_path: Path, wrong: dict[str, str | None], said: list[str]
) -> None:
    text = refusal(write_profile(tmp_path, **wrong))
    assert str(tmp_path / "board.yaml") in text
    for words in said:
        assert words in text


@given(text=st.text(max_size=60))
def test_no_file_content_raises_anything_but_a_usage_error(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(UsageError):
        load_profile("any.yaml", path)


def test_shipped_fleets_hold_the_papers_profiles() -> None:
    fleet = load_fleet(FLEETS / "dtfl-5.yaml")
    figures = [(d.profile.limits.cpus, d.profile.limits.uplink_bit_s / 1e6) for d in fleet.devices]
    assert figures == [(4, 100), (2, 30), (1, 30), (0.2, 30), (0.1, 10)]
    assert [d.name for d in fleet.devices] == ["cpu4-1", "cpu2-1", "cpu1-1", "cpu0.2-1", "cpu0.1-1"]


def test_an_experiment_names_a_shipped_fleet_from_anywhere_and_a_file_beside_it_first(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.yaml"
    assert fleet_of(experiment, "dtfl-5").path == FLEETS / "dtfl-5.yaml"
    (tmp_path / "dtfl-5").write_text(write_fleet(tmp_path, "  - {profile: cpu1}\n").read_text())
    assert fleet_of(experiment, "dtfl-5").path == tmp_path / "dtfl-5"
    for name in ("dtfl-6", "../dtfl-10", "fleets/dtfl-5"):
        with pytest.raises(UsageError, match=r"there is no file .*"):
            fleet_of(experiment, name)
    with pytest.raises(UsageError, match=r"did you mean 'dtfl-5'"):
        fleet_of(experiment, "dtfl-6")


@pytest.mark.parametrize("path", sorted(FLEETS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_fleet_loads_and_names_its_sources(path: Path) -> None:
    assert all(device.profile.source for device in load_fleet(path).devices)


def test_counted_and_named_devices(tmp_path: Path) -> None:
    path = write_fleet(
        tmp_path, "  - {profile: cpu1, count: 2}\n  - {profile: cpu1, name: alice}\n  - {profile: cpu1}\n"
    )
    assert [d.name for d in load_fleet(path).devices] == ["cpu1-1", "cpu1-2", "alice", "cpu1-3"]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("  - {profile: cpu9}\n", "known profiles: "),
        ("  - {profile: cpu1, cout: 2}\n", "did you mean 'count'?"),
        ("  - {profile: cpu1, count: 0}\n", "count"),
        ("  - {profile: cpu1, name: a}\n  - {profile: cpu2, name: a}\n", "two devices are called 'a'"),
        ("  - {profile: cpu1, name: orchestrator}\n", "orchestrator"),
        ("  - {profile: cpu1, name: 'a/b'}\n", "a/b"),
        ("  []\n", "devices"),
        ("  - {profile: cpu1, count: 600}\n  - {profile: cpu2, count: 600}\n", "1200 devices"),
    ],
)
def test_fleets_that_make_no_sense_are_refused(tmp_path: Path, devices: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_fleet(write_fleet(tmp_path, devices))
    assert said in f"{caught.value} | {caught.value.hint}"


def test_profiles_beside_the_fleet_are_among_the_known_ones(tmp_path: Path) -> None:
    write_profile(tmp_path)
    with pytest.raises(UsageError, match=r"did you mean 'board'\?") as caught:
        load_fleet(write_fleet(tmp_path, "  - {profile: boart}\n"))
    assert "board, cpu0.1" in caught.value.hint
    assert "fleet" not in caught.value.hint.split(";")[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_may_name_every_backend_the_option_knows(tmp_path: Path, backend: str) -> None:
    assert load_fleet(write_fleet(tmp_path, "  - {profile: cpu1}\n", rest=f"backend: {backend}\n")).backend == backend


def test_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="backend") as caught:
        load_fleet(write_fleet(tmp_path, "  - {profile: cpu1}\n", rest="backend: kubernetes\n"))
    assert all(backend in caught.value.hint for backend in BACKENDS)


# ---- dilation ----


def fleet(*cpus: float, reserve: float = 0.5) -> FleetSpec:
    devices = tuple(DeviceSpec(f"d{i}", ProfileSpec("p", Limits(c, 10**7, 10**7, 512))) for i, c in enumerate(cpus))
    return FleetSpec("f", "local", reserve, devices, Path("f.yaml"))


def test_a_fleet_that_fits_is_not_dilated() -> None:
    assert dilation_of(fleet(1.0, 0.5), "auto", 2) == 1
    assert dilation_of(fleet(1.0, 0.5), "off", 2) == 1


def test_a_fleet_that_does_not_fit_is_refused_or_dilated() -> None:
    assert dilation_of(fleet(4, 2, 1, 0.2, 0.1), "auto", 2) == pytest.approx(7.3 / 1.5)
    with pytest.raises(CapacityError) as caught:
        dilation_of(fleet(4, 2, 1, 0.2, 0.1), "off", 2)
    assert "7.3 CPUs" in str(caught.value)
    assert "4.87" in caught.value.hint


def test_a_factor_may_be_larger_but_not_smaller_than_needed() -> None:
    assert dilation_of(fleet(2.0), "3", 2) == 3
    with pytest.raises(CapacityError):
        dilation_of(fleet(4.0), 2.0, 2)


@pytest.mark.parametrize("setting", ["none", "0.5", "nan", "inf", "-1", ""])
def test_other_settings_are_refused(setting: str) -> None:
    with pytest.raises(UsageError):
        dilation_of(fleet(0.1), setting, 2)


def test_a_quota_below_the_kernels_least_is_refused() -> None:
    with pytest.raises(CapacityError, match="smallest CPU quota"):
        dilation_of(fleet(300, 0.1), "auto", 2)


def test_a_reserve_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(CapacityError, match="leaves nothing"):
        needed_dilation(fleet(0.1, reserve=2), 2)


@given(cpus=st.lists(st.floats(0.1, 64), min_size=1, max_size=20), cores=st.integers(1, 128))
def test_a_dilated_fleet_fits_and_keeps_its_proportions(cpus: list[float], cores: int) -> None:
    spec = fleet(*cpus)
    factor = needed_dilation(spec, cores)
    dilated = [d.profile.limits.dilated(factor) for d in spec.devices]
    assert sum(limits.cpus for limits in dilated) <= (cores - 0.5) * (1 + 1e-9)
    assert all(limits.cpus <= cores for limits in dilated)
    for limits, device in zip(dilated, spec.devices, strict=True):
        rate = device.profile.limits.uplink_bit_s
        assert limits.uplink_bit_s * device.profile.limits.cpus == pytest.approx(limits.cpus * rate, rel=1e-3)


def test_latency_is_multiplied_by_the_dilation() -> None:
    """Reported seconds are divided by it."""
    assert Limits(1.0, 10**7, 10**7, 64, latency_ms=20).dilated(4).latency_ms == 80


def test_the_quota_of_a_server_counts_into_the_dilation() -> None:
    served = msgspec.structs.replace(fleet(1.0, 1.0, reserve=0.5), server_cpus=1.0)
    assert needed_dilation(served, 2) == pytest.approx(2)
    with pytest.raises(CapacityError, match="wants 3 CPUs"):
        dilation_of(served, "off", 2)


def test_a_server_too_small_for_the_kernel_is_refused() -> None:
    served = msgspec.structs.replace(fleet(1.0, reserve=0.5), server_cpus=0.002)
    with pytest.raises(CapacityError, match="the server would get 0"):
        dilation_of(served, 4.0, 2)


def test_links_that_the_host_does_not_carry_dilate_or_refuse() -> None:
    """140 devices of 10 Mbit/s, whose quotas fit."""
    spec = fleet(*[0.01] * 140)
    carried = Carried(700_000_000, 350_000_000)
    rates = spec.rates
    assert rates[0] == rates[1] == 140 * spec.devices[0].profile.limits.uplink_bit_s
    assert needed_dilation(spec, 2) == 1
    assert path_dilation(spec, None) == 1
    needed = path_dilation(spec, carried)
    assert needed == max(1.0, rates[1] / carried.down_bit_s)
    assert dilation_of(spec, "auto", 2, carried) == needed
    with pytest.raises(CapacityError, match="this host's network path carries 700 Mbit/s up and 350 Mbit/s down"):
        dilation_of(spec, "off", 2, carried)
