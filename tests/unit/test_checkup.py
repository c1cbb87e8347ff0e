"""What `edgebed doctor` makes of recorded hosts: what is missing, for whom, and the hint."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from edgebed.errors import LimitError
from orchestrator.cli import build, doctor
from orchestrator.cli.console import console
from orchestrator.fleet.host import checkup
from orchestrator.fleet.host import facts as host_facts
from orchestrator.fleet.host.checkup import Engine, HostFacts, check, fit, fit_fleet
from orchestrator.fleet.named import backend_class
from orchestrator.fleet.network import netns
from orchestrator.fleet.spec.profile import FleetSpec, load_fleet

LOCAL, DOCKER, SOFTWARE = (backend_class(name).needs for name in ("local", "docker", "software"))

VERSION = {
    "Version": "20.10.24+dfsg1",
    "Components": [{"Name": "Engine", "Version": "20.10.24+dfsg1"}, {"Name": "runc", "Version": "1.1.5+ds1"}],
}
"""Of `docker version`, Debian 12."""
CGROUPFS = host_facts.describe(VERSION, {"CgroupDriver": "cgroupfs", "CgroupVersion": "1"}, True)
SYSTEMD = host_facts.describe(VERSION, {"CgroupDriver": "systemd", "CgroupVersion": "2"}, True)
NO_NETEM = "`tc qdisc replace dev ebd1 parent 1:1 handle 10: netem delay 10000us` failed: Error: Specified qdisc kind"

V1 = HostFacts(
    kernel="Linux 6.18.44",
    hz=250,
    root=True,
    systemd=False,
    cgroup=1,
    missing_tools=(),
    tbf="",
    netem=NO_NETEM,
    ifb="",
    link="",
    how="tried",
    engine=CGROUPFS,
    apparmor="",
    mosquitto="2.0.11",
    embedded=True,
    cores=2.0,
    cores_there=2,
    memory_mib=21000,
    disk_mib=75000,
    clocksource="tsc",
)
V2 = msgspec.structs.replace(
    V1,
    kernel="Linux 6.1.0-50-amd64",
    systemd=True,
    cgroup=2,
    netem="",
    engine=SYSTEMD,
    apparmor="on",
    memory_mib=3294,
    disk_mib=9425,
    clocksource="hpet",
)
"""Debian 12 with systemd, in a machine of 4 GiB."""


def changed(host: HostFacts, **changes: object) -> HostFacts:
    return msgspec.structs.replace(host, **changes)


def lacks(host: HostFacts, backend: str, devices: int = 0) -> dict[str, bool]:
    """Names of what is missing, and whether it is needed. Each has a hint, and only they have."""
    rows = check(host, backend_class(backend).needs, devices)
    assert all(bool(row.lack) == bool(row.hint) for row in rows)
    return {row.name: row.needed for row in rows if row.lack}


@pytest.mark.parametrize("backend", ["local", "docker", "software"])
def test_hosts_that_can_hold_everything_lack_nothing(backend: str) -> None:
    assert lacks(V2, backend) == {}
    assert lacks(V1, backend) == {"latency (netem)": False}
    assert fit(check(V1, backend_class(backend).needs))
    assert fit(check(V2, backend_class(backend).needs))


@pytest.mark.parametrize(
    ("changes", "backend", "name", "needed", "hint"),
    [
        ({"root": False}, "local", "root", True, "--backend software"),
        ({"root": False}, "docker", "root", False, "root"),
        ({"cgroup": None}, "local", "cgroups", True, "mount"),
        ({"missing_tools": ("tc",)}, "local", "tools", True, "iproute2"),
        ({"missing_tools": ("tc",)}, "docker", "tools", False, "iproute2"),
        ({"tbf": "no", "link": "no"}, "local", "rate (tbf)", True, "CONFIG_NET_SCH_TBF"),
        ({"link": "asked for [1, 2], the kernel holds [1, None]"}, "local", "links", True, "veth"),
        ({"ifb": "no"}, "docker", "helper's link (ifb)", False, "ifb"),
        ({"ifb": "no", "root": False}, "docker", "helper's link (ifb)", True, "modprobe ifb"),
        ({"engine": Engine(error="no Docker engine answers")}, "docker", "docker", True, "start Docker"),
        ({"engine": Engine(error="no Docker engine answers")}, "local", "docker", False, "start Docker"),
        ({"apparmor": "on, without its parser"}, "docker", "docker", True, "apt-get install apparmor"),
        ({"root": False}, "docker", "docker", False, "cgroupfs"),
        ({"engine": msgspec.structs.replace(SYSTEMD, beside_us=False)}, "docker", "docker", False, "cgroupfs"),
        ({"mosquitto": "", "embedded": False}, "software", "broker", True, "mosquitto"),
        ({"hz": 100}, "local", "clock ticks", False, "CONFIG_HZ"),
        ({"clocksource": "jiffies"}, "local", "clock", True, "dmesg"),
        ({"memory_mib": 500}, "local", "memory", True, "larger"),
        ({"disk_mib": 100}, "local", "disk", False, "EDGEBED_RUNS"),
        ({"leftovers": ("folder /tmp/x",)}, "local", "leftovers", False, "next start"),
    ],
)
def test_each_lack_is_named_with_its_hint(
    changes: dict[str, object], backend: str, name: str, needed: bool, hint: str
) -> None:
    host = changed(V2, **changes)
    (row,) = [row for row in check(host, backend_class(backend).needs) if row.name == name]
    assert row.lack
    assert row.needed is needed
    assert hint in row.hint
    assert fit(check(host, backend_class(backend).needs)) is not needed


def test_the_embedded_broker_is_refused_for_a_fleet_that_is_too_large_for_it() -> None:
    host = changed(V2, mosquitto="")
    assert lacks(host, "local", checkup.EMBEDDED_HOLDS) == {}
    assert lacks(host, "local", checkup.EMBEDDED_HOLDS + 1) == {"broker": True}


def a_fleet(folder: Path, *profiles: str) -> FleetSpec:
    for index, profile in enumerate(profiles):
        (folder / f"p{index}.yaml").write_text(f"{profile}\nuplink_mbit_s: 20\ndownlink_mbit_s: 10\n")
    entries = "".join(f"  - {{profile: p{index}.yaml, name: d{index}}}\n" for index in range(len(profiles)))
    (folder / "fleet.yaml").write_text(f"name: small\ndevices:\n{entries}")
    return load_fleet(folder / "fleet.yaml")


def test_a_fleet_gets_its_dilation_and_each_device_its_limits(tmp_path: Path) -> None:
    found = fit_fleet(a_fleet(tmp_path, "cpus: 2\nmemory_mib: 2048", "cpus: 1\nmemory_mib: 2048"), V2, LOCAL)
    assert found.dilation == 2.0
    assert found.fits
    assert [device.limits.cpus for device in found.devices] == [1.0, 0.5]
    assert "4096 MiB" in found.warning


def test_devices_that_do_not_fit_say_why(tmp_path: Path) -> None:
    spec = a_fleet(
        tmp_path,
        "cpus: 0.3\nmemory_mib: 256",
        "cpus: 0.3\nmemory_mib: 256\nlatency_ms: 20",
        "cpus: 0.3\nmemory_mib: 4096",
    )
    assert [device.lack.split(":")[0] for device in fit_fleet(spec, V1, LOCAL).devices] == [
        "",
        "latency does not work here",
        "",
    ]
    assert [bool(device.lack) for device in fit_fleet(spec, V2, LOCAL).devices] == [
        False,
        False,
        True,
    ]
    assert [bool(device.lack) for device in fit_fleet(spec, V2, SOFTWARE).devices] == [
        False,
        True,
        False,
    ]


def test_quotas_that_systemd_would_round_do_not_fit_where_it_has_the_last_word(tmp_path: Path) -> None:
    spec = a_fleet(tmp_path, "cpus: 0.0205\nmemory_mib: 256", "cpus: 0.03\nmemory_mib: 256")
    user = changed(V2, root=False)
    assert ["round" in device.lack for device in fit_fleet(spec, user, DOCKER).devices] == [
        True,
        False,
    ]
    assert fit_fleet(spec, V2, DOCKER).fits
    assert fit_fleet(spec, user, LOCAL).fits


def test_a_fleet_that_no_dilation_fits(tmp_path: Path) -> None:
    spec = a_fleet(tmp_path, "cpus: 1000\nmemory_mib: 256", "cpus: 0.1\nmemory_mib: 256")
    found = fit_fleet(spec, V2, LOCAL)
    assert found.dilation is None
    assert not found.fits
    assert found.hint


CONFIG = "CONFIG_HZ=250\nCONFIG_NET_SCH_TBF=y\nCONFIG_IFB=m\n# CONFIG_NET_SCH_NETEM is not set\n"


def test_modules_are_looked_up_in_the_kernels_configuration() -> None:
    assert host_facts.look_up(CONFIG) == {
        "tbf": "",
        "ifb": "",
        "netem": "the kernel was built without CONFIG_NET_SCH_NETEM",
    }
    assert host_facts.look_up("") == {}


def test_a_queue_that_the_kernel_does_not_know_is_told_in_few_words() -> None:
    said = "`tc qdisc replace dev x netem` failed: Error: Specified qdisc kind is unknown."
    assert host_facts.brief(LimitError(said, hint="")) == "this kernel does not know it"
    assert host_facts.brief(LimitError("`tc` failed: no permission", hint="")) == "`tc` failed: no permission"


def test_what_no_link_can_be_made_for_is_not_known_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(wire: netns.Wire) -> None:
        raise LimitError("`ip netns add` failed: Operation not permitted")

    monkeypatch.setattr(host_facts, "host_networks", list)
    monkeypatch.setattr(netns, "make", refuse)
    found = host_facts.try_links()
    assert set(found) == {"link", "tbf", "netem", "ifb"}
    assert all("not permitted" in why for why in found.values())


@pytest.mark.parametrize(("backend", "code"), [("local", 1), ("software", 0)])
def test_the_exit_code_tells_whether_the_backend_has_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, backend: str, code: int
) -> None:
    monkeypatch.setattr(doctor, "gather", lambda runs: changed(V2, root=False))
    result = CliRunner().invoke(build(), ["doctor", "--backend", backend])
    assert result.exit_code == code
    printed = CliRunner().invoke(build(), ["doctor", "--backend", backend, "--json"])
    assert json.loads(printed.stdout)["healthy"] is (code == 0)


def test_a_fleet_file_that_does_not_fit_is_shown_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gather", lambda runs: V1)
    path = a_fleet(tmp_path, "cpus: 0.3\nmemory_mib: 256\nlatency_ms: 20", "cpus: 0.3\nmemory_mib: 256").path
    monkeypatch.setattr(console, "width", 200)
    result = CliRunner().invoke(build(), ["doctor", "--fleet", str(path)])
    assert result.exit_code == 1
    assert "latency does not work here" in result.stdout
    assert "fits" in result.stdout
