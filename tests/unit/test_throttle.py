"""Limits to tc and cgroup values and back; each trap of the design has its test here."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgebed.errors import LimitError
from edgebed.limits import throttle
from edgebed.limits.cpu_quota import CpuQuota
from edgebed.limits.shell import which
from orchestrator.fleet.base import Held
from orchestrator.fleet.spec.profile import Limits

LIMITS = Limits(cpus=0.2, uplink_bit_s=10_000_000, downlink_bit_s=30_000_000, memory_mib=512)
V1 = {
    "cpu.cfs_quota_us": "20000\n",
    "cpu.cfs_period_us": "100000\n",
    "cpu.cfs_burst_us": "0\n",
    "cpu.stat": "nr_periods 40\nnr_throttled 7\nthrottled_time 2500000000\nnr_bursts 0\nburst_time 0\n",
    "cpuacct.usage": "3000000000\n",
    "memory.limit_in_bytes": f"{512 * 2**20}\n",
    "memory.usage_in_bytes": f"{100 * 2**20}\n",
}
V2 = {
    "cpu.max": "20000 100000\n",
    "cpu.max.burst": "0\n",
    "cpu.stat": "usage_usec 3000000\nuser_usec 1\nnr_periods 40\nnr_throttled 7\nthrottled_usec 2500000\n",
    "memory.max": f"{512 * 2**20}\n",
    "memory.current": f"{100 * 2**20}\n",
}


def argument(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_rates_are_bits_never_tcs_mbps() -> None:
    command, queue = throttle.shape_commands("eth0", LIMITS.uplink_bit_s)
    assert argument(command, "rate") == "10000000bit"
    assert not any("bps" in word for word in command + queue)


@given(st.integers(10_000, 100 * 10**9))
def test_the_burst_passes_a_whole_frame_and_little_more(rate: int) -> None:
    command, _ = throttle.shape_commands("eth0", rate)
    burst = int(argument(command, "burst"))
    assert burst >= 1514
    assert (burst - throttle.FRAME) * 8 / rate <= 0.25e-3


def test_latency_hangs_below_the_rate() -> None:
    root, netem = throttle.shape_commands("eth0", 10**7, latency_ms=12.5)
    assert argument(root, "handle") == "1:"
    assert argument(netem, "parent") == "1:1"
    assert argument(netem, "delay") == "12500us"


def test_without_latency_a_plain_queue_takes_the_place_of_an_earlier_delay() -> None:
    delayed, plain = (throttle.shape_commands("eth0", 10**7, latency_ms=ms)[1] for ms in (20, 0))
    assert argument(delayed, "parent") == argument(plain, "parent")
    assert argument(delayed, "handle") != argument(plain, "handle")  # the kernel changes no qdisc's kind in place
    assert "netem" not in plain
    assert "del" not in delayed + plain  # the link is never free in between


def test_arrivals_are_led_through_the_ifb_whole() -> None:
    commands = throttle.ifb_commands("eth0", "ifb9")
    assert ["tc", "qdisc", "replace", "dev", "eth0", "handle", "ffff:", "ingress"] in commands
    assert commands[-1][-1] == "ifb9"
    assert "all" in commands[-1]  # every protocol: nothing goes round


def test_cpu_is_a_quota_never_shares() -> None:
    for version in (1, 2):
        text = json.dumps(throttle.cgroup_values(LIMITS, version))
        assert "shares" not in text
        assert "weight" not in text
    assert ("cpu", "cpu.max", "20000 100000") in throttle.cgroup_values(LIMITS, 2)
    assert ("cpu", "cpu.cfs_quota_us", "20000") in throttle.cgroup_values(LIMITS, 1)


def test_no_swap_beside_the_memory() -> None:
    assert ("memory", "memory.swap.max", "0") in throttle.cgroup_values(LIMITS, 2)
    assert ("memory", "memory.memsw.limit_in_bytes", str(512 * 2**20)) in throttle.cgroup_values(LIMITS, 1)


@given(st.lists(st.integers(64, 2000), min_size=1, max_size=5))
def test_version_one_takes_every_write_whatever_was_there_before(sizes: list[int]) -> None:
    """The kernel refuses a limit of memory above that of memory and swap, and one of both below that of memory."""
    memory = both = 2**63
    for size in sizes:
        values = throttle.cgroup_values(msgspec.structs.replace(LIMITS, memory_mib=size), 1)
        for _, name, value in [*values, *(throttle.no_limits(1) if size % 2 else [])]:
            number = 2**63 if value == "-1" else int(value)
            memory = number if name == "memory.limit_in_bytes" else memory
            both = number if name == "memory.memsw.limit_in_bytes" else both
            assert memory <= both


def test_a_quota_the_kernel_cannot_hold_is_refused() -> None:
    assert throttle.quota_us(msgspec.structs.replace(LIMITS, cpus=0.01)) == 1000
    with pytest.raises(LimitError):
        throttle.quota_us(msgspec.structs.replace(LIMITS, cpus=0.009))
    with pytest.raises(LimitError):
        throttle.quota_us(msgspec.structs.replace(LIMITS, cpus=0.0009, period_us=1_000_000))


@given(st.floats(0.001, 1024))
def test_the_period_is_100_ms_by_the_dilation_or_as_long_as_the_least_quota_needs(cpus: float) -> None:
    limits = Limits(cpus=2 * cpus, uplink_bit_s=8, downlink_bit_s=8, memory_mib=64).dilated(2)
    assert limits.period_us == 200_000 or (cpus < 0.005 and 200_000 < limits.period_us <= 1_000_000)
    assert throttle.quota_us(limits) / limits.period_us == pytest.approx(cpus, rel=throttle.TOLERANCE)


@given(st.floats(0.05, 1), st.floats(1, 10))
def test_the_quota_of_a_period_is_the_same_at_any_dilation(cpus: float, dilation: float) -> None:
    limits = Limits(cpus=cpus, uplink_bit_s=8, downlink_bit_s=8, memory_mib=64).dilated(dilation)
    assert throttle.quota_us(limits) == pytest.approx(cpus * 100_000, abs=2)


@given(st.floats(0.001, 64), st.sampled_from([1_000, 4_000, 10_000]))
def test_a_short_period_has_a_quota_of_one_tick_at_least(cpus: float, tick_us: int) -> None:
    limits = Limits(cpus=cpus, uplink_bit_s=8, downlink_bit_s=8, memory_mib=64).dilated(1, "period", tick_us)
    assert tick_us <= limits.period_us <= 1_000_000
    assert throttle.quota_us(limits) >= tick_us or limits.period_us == 1_000_000
    assert limits.period_us <= max(tick_us, tick_us / cpus + 1)


def test_a_period_or_a_burst_that_did_not_take_is_named() -> None:
    held = msgspec.structs.replace(HELD, period_us=50_000, burst_us=1000)
    assert throttle.mismatches(LIMITS, held) == [
        "period of the CPU quota is 50000, wanted 100000 us",
        "burst of the CPU quota is 1000, wanted 0 us",
    ]
    assert throttle.mismatches(LIMITS, msgspec.structs.replace(HELD, period_us=100_000, burst_us=0)) == []


@pytest.mark.parametrize("dilation", [1, 2, 4.87])
def test_threads_belong_to_the_profile_whatever_the_dilation(dilation: float) -> None:
    assert Limits(4.0, 1, 1, 1).dilated(dilation).threads == 1
    assert Limits(4.0, 1, 1, 1, named_threads=3).dilated(dilation).threads == 3
    assert Limits(4.0, 1, 1, 1, unlimited=True).dilated(dilation).threads == 4


@pytest.mark.parametrize(("files", "version"), [(V1, 1), (V2, 2)])
def test_both_cgroup_versions_read_alike(files: dict[str, str], version: int) -> None:
    group = throttle.parse_cgroup(files, version)
    assert msgspec.structs.replace(group, dump="") == throttle.Group(
        CpuQuota(20_000, 100_000, 0), 512, 3.0, 2.5, 7, 100.0
    )
    assert all(name in group.dump for name in files)


def test_no_limit_reads_as_none() -> None:
    unlimited = {"cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "9223372036854771712"}
    group = throttle.parse_cgroup(V1 | unlimited, 1)
    assert (group.quota, group.memory_mib) == (None, None)
    group = throttle.parse_cgroup(V2 | {"cpu.max": "max 100000", "memory.max": "max"}, 2)
    assert (group.quota, group.memory_mib) == (None, None)


@pytest.mark.parametrize("name", sorted(V1.keys() - {"cpu.cfs_burst_us"}))
def test_a_missing_cgroup_file_is_an_error_not_a_zero(name: str) -> None:
    with pytest.raises(LimitError):
        throttle.parse_cgroup({k: v for k, v in V1.items() if k != name}, 1)


TBF = {"kind": "tbf", "root": True, "options": {"rate": 1_250_000, "burst": 1852, "lat": 1}, "bytes": 9, "drops": 2}


def test_tc_tells_bytes_per_second() -> None:
    shaped = throttle.parse_qdisc(json.dumps([TBF]))
    assert (shaped.rate_bit_s, shaped.bytes, shaped.drops) == (10_000_000, 9, 2)


@pytest.mark.parametrize(
    "qdiscs", [[], [{"kind": "noqueue", "root": True}], [{"kind": "htb", "root": True, "options": {"rate": 1}}]]
)
def test_what_is_not_our_tbf_is_no_limit(qdiscs: list[object]) -> None:
    assert throttle.parse_qdisc(json.dumps(qdiscs)).rate_bit_s is None


def test_a_tbf_below_the_root_is_no_limit() -> None:
    assert throttle.parse_qdisc(json.dumps([{**TBF, "root": False}])).rate_bit_s is None


# As `tc -j -s qdisc show` of iproute2 6.1 prints them; the entry of netem follows its source, which gives seconds.
DELAYED = """[{"kind":"tbf","handle":"1:","root":true,"refcnt":3,"options":{"rate":3750000,"burst":1998,"lat":69372},
"bytes":90,"packets":1,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0},
{"kind":"netem","handle":"10:","parent":"1:1","options":{"limit":10000,"delay":{"delay":0.02,"jitter":0,"correlation":0},
"ecn":false,"gap":0},"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0}]"""
PLAIN = """[{"kind":"tbf","handle":"1:","root":true,"refcnt":3,"options":{"rate":3750000,"burst":1998,"lat":69372},
"bytes":90,"packets":1,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0},
{"kind":"bfifo","handle":"20:","parent":"1:1","options":{"limit":262144},
"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0}]"""


def test_latency_is_read_back_beside_the_rate() -> None:
    delayed, plain = throttle.parse_qdisc(DELAYED), throttle.parse_qdisc(PLAIN)
    assert (delayed.rate_bit_s, delayed.latency_ms) == (30_000_000, 20.0)
    assert (plain.rate_bit_s, plain.latency_ms) == (30_000_000, 0.0)
    assert "20 ms" in delayed.text


@given(st.one_of(st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_nothing_tc_prints_breaks_the_parser_otherwise(output: str) -> None:
    with contextlib.suppress(LimitError):
        assert throttle.parse_qdisc(output).rate_bit_s is None


def test_a_limit_that_did_not_take_is_named() -> None:
    def held(cpus: float | None = 0.2, up: int | None = 10**7, down: int | None = 3 * 10**7) -> list[str]:
        return throttle.mismatches(LIMITS, Held("d", LIMITS, cpus, up, down, 512, 0.0, 0.0, 0, 0.0, 0, 0, True))

    assert held() == []
    assert "CPU quota is not limited" in held(cpus=None)[0]
    assert "downlink is not limited" in held(down=None)[0]
    assert "uplink is 8e+07" in held(up=8 * 10**7)[0]
    assert held(up=10**7 - 4) == []  # tc keeps whole bytes per second
    assert "uplink" in held(up=int(0.98e7))[0]


HELD = Held("d", LIMITS, 0.2, 10**7, 3 * 10**7, 512, 0.0, 0.0, 0, 0.0, 0, 0, True)


def test_a_latency_that_did_not_take_or_stayed_is_named() -> None:
    wanted = msgspec.structs.replace(LIMITS, latency_ms=20.0)
    both = msgspec.structs.replace(HELD, uplink_latency_ms=20.0, downlink_latency_ms=20.0)
    assert throttle.mismatches(wanted, both) == []
    assert ["uplink" in words for words in throttle.mismatches(wanted, HELD)] == [True, False]
    assert len(throttle.mismatches(LIMITS, both)) == 2
    assert throttle.mismatches(wanted, msgspec.structs.replace(both, downlink_latency_ms=0.0)) == [
        "latency of the downlink is 0, wanted 20 ms"
    ]


def test_what_the_kernel_does_not_hold_is_not_judged_by_what_it_says() -> None:
    nothing = {"cpus": None, "uplink_bit_s": None, "downlink_bit_s": None, "memory_mib": None}
    assert len(throttle.mismatches(LIMITS, msgspec.structs.replace(HELD, **nothing))) == 4
    assert throttle.mismatches(LIMITS, msgspec.structs.replace(HELD, **nothing, read_back=False)) == []


def test_docker_without_a_readable_kernel() -> None:
    config = {"CpuQuota": 20000, "CpuPeriod": 100000, "Memory": 512 * 2**20}
    stats = {
        "cpu_stats": {
            "cpu_usage": {"total_usage": 3 * 10**9},
            "throttling_data": {"throttled_periods": 7, "throttled_time": 2_500_000_000},
        },
        "memory_stats": {"usage": 100 * 2**20},
    }
    assert throttle.parse_docker_stats(config, stats) == throttle.Group(
        CpuQuota(20_000, 100_000), 512, 3.0, 2.5, 7, 100.0
    )
    assert throttle.parse_docker_stats({"CpuQuota": -1}, {}).quota is None


@pytest.mark.parametrize(
    ("cpus", "in_force", "rounded"),
    [
        (0.0205, "2050 100000", None),  # runc writes the file itself
        (0.0205, "3000 100000", True),  # systemd rounds up, or writes its own after a daemon-reload (recorded)
        (0.0205, "2000 100000", True),  # a property set to 20.5 ms a second, after a daemon-reload (recorded)
        (0.0103, "2000 100000", True),
        (0.2, "20000 100000", None),
        (0.2, "40000 100000", False),  # not what rounding does
        (0.2, "max 100000", False),
    ],
)
def test_a_quota_that_systemd_has_rounded_is_refused_with_the_hint(
    cpus: float, in_force: str, rounded: bool | None
) -> None:
    wanted = msgspec.structs.replace(LIMITS, cpus=cpus)
    group = throttle.parse_cgroup(V2 | {"cpu.max": in_force}, 2)
    held = msgspec.structs.replace(HELD, cpus=group.quota.cpus if group.quota else None)
    if rounded is None:
        assert throttle.confirm(wanted, held) is held
        return
    with pytest.raises(LimitError, match="CPU quota is") as refused:
        throttle.confirm(wanted, held)
    assert ("cgroupfs" in refused.value.hint) is rounded


@pytest.mark.parametrize("path", ["", ".", ":", "tools:./", None])
def test_no_program_of_the_current_directory_is_run(
    path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (tmp_path / "sometool", tmp_path / "tools" / "sometool"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    assert which("sometool") is None
    monkeypatch.setenv("PATH", f"{path or ''}:{tmp_path}")
    assert which("sometool") == str(tmp_path / "sometool")
