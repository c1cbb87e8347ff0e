"""What the nodes of a Swarm did in a round: from two readings, and which rounds it marks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_agent.node import facts as node_facts
from orchestrator.fleet.host.load import HostLoad
from orchestrator.fleet.host.node_load import rounds_of_nodes
from orchestrator.fleet.host.speed import HostSpeed
from orchestrator.fleet.many_hosts import NodeReading
from orchestrator.fleet.swarm.clocks import Clock
from orchestrator.fleet.swarm.node_link import Told
from orchestrator.fleet.swarm.nodes import reading
from orchestrator.fleet.swarm.placement import Node
from orchestrator.records import types as t
from orchestrator.records.host_records import HostRound, NodeRound
from orchestrator.records.timeline.disturbance import disturbed_line
from tests.hosts import hosts_of_rounds
from tests.summaries import summarised
from tests.synthetic import Synthetic

CALM = NodeRound("n1", 4.0, 10.0, 36.0, 0.0, 35.0, 3.9)
"""In 10 s its devices may have used 35 of the 40 CPU seconds; 36 were used."""


def read(name: str, machine: str, at_s: float, used_s: float, **changed: Any) -> NodeReading:
    reading = NodeReading(name, machine, 4.0, at_s, used_s, 0.0, 0.0, 3.0, 1.0)
    return msgspec.structs.replace(reading, **changed)


def with_nodes(*nodes: NodeRound) -> list[t.Record]:
    """The second of four rounds with what nodes did in it; the host itself was calm."""
    told: list[t.Record] = []
    for record in Synthetic().records:
        told.append(record)
        if isinstance(record, t.RoundFinished):
            there = nodes if record.round == 1 else ()
            told.append(HostRound(record.at_ns, record.at_ns - 10**9, record.round, 2.0, 0.4, 0.0, nodes=there))
    return told


def test_two_readings_tell_what_a_node_did_in_between() -> None:
    before = [read("n1", "a", 100.0, 1000.0), read("n2", "b", 7.0, 50.0), read("lost", "c", 5.0, 1.0)]
    after = [
        read("n1", "a", 110.0, 1036.0, stolen_s=2.0, helper_s=1.0, load=3.5),
        read("n2", "b", 17.0, 60.0, cpus=3.5),
        read("lost", "c", 5.0, 1.0),
        read("new", "d", 5.0, 1.0),
    ]
    assert list(rounds_of_nodes(before, after, "b")) == [
        NodeRound("n1", 4.0, 10.0, 36.0, 2.0, 31.0, 3.5),
        NodeRound("n2", 4.0, 10.0, 10.0, 0.0, 35.0, 1.0, here=True),
    ]


def test_devices_of_all_engines_of_one_machine_are_ours() -> None:
    before, after = ([read(name, "a", at_s, 0.0) for name in ("n1", "n2")] for at_s in (0.0, 10.0))
    assert [node.ours_s for node in rounds_of_nodes(before, after, "")] == [60.0, 60.0]


def test_the_record_of_a_round_has_its_nodes() -> None:
    """The end of a round takes what was heard last."""
    readings = iter([[read("n1", "a", 1.0, 0.0)], [read("n1", "a", 3.0, 5.0)]])
    told: list[t.Record] = []
    record = HostLoad(HostSpeed(), {}, lambda: next(readings)).recording(told.append)
    record(t.RoundStarted(1, 0, 0.0, 0.1, ()))
    record(t.RoundFinished(2, 0, 1.0, (), "all done"))
    (host,) = [each for each in told if isinstance(each, HostRound)]
    assert [(node.name, node.wall_s, node.busy_s) for node in host.nodes] == [("n1", 2.0, 5.0)]
    assert msgspec.json.decode(msgspec.json.encode(host), type=HostRound) == host


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"busy_s": 39.0}, "on n1, other programs used 10% of the cores, and none were free"),
        ({"stolen_s": 3.0}, "on n1, the hypervisor took 8% of the CPU time"),
    ],
)
def test_a_round_is_marked_with_the_node_that_was_disturbed(changed: dict[str, Any], why: str) -> None:
    records = with_nodes(msgspec.structs.replace(CALM, **changed), msgspec.structs.replace(CALM, name="n2"))
    assert hosts_of_rounds(records)[1].why == why
    lines = [line for record in records if (line := disturbed_line(record)) is not None]
    assert lines == [f"round 2 was disturbed: {why}"]


def told(proc: Path, at_s: float, used_s: int, stolen_s: int) -> Told:
    """What the helper of a machine of 4 cores tells, whose /proc is made here."""
    ticks = os.sysconf("SC_CLK_TCK")
    for file, text in {
        "stat": f"cpu  {used_s * ticks} 0 0 9000 0 0 0 {stolen_s * ticks}\n",
        "meminfo": "MemAvailable: 2048 kB\n",
        "loadavg": f"{used_s / 10} 0 0 1/2 3\n",
        "sys/kernel/random/boot_id": f"boot of {proc.name}\n",
    }.items():
        (proc / file).parent.mkdir(parents=True, exist_ok=True)
        (proc / file).write_text(text)
    facts = {**node_facts.facts(proc), "cores": 4, "at_s": at_s, "helper_s": 0.0}
    return Told(facts, Clock(proc.name, 0.0, 0.0), Clock(proc.name, at_s, 0.0))


def test_of_two_machines_with_different_loads_the_right_one_is_named(tmp_path: Path) -> None:
    """From what their helpers tell to the mark of the round. Devices have 3 CPUs on each. In 10 s all programs of n1
    use 25 CPU seconds; those of n2 use 38, and its hypervisor takes 2."""
    nodes = [Node(name, name, "10.0.0.1", 4.0, 0.1) for name in ("n1", "n2")]
    first = [told(tmp_path / node.name, 50.0, 10, 0) for node in nodes]
    last = [told(tmp_path / "n1", 60.0, 35, 0), told(tmp_path / "n2", 60.0, 48, 2)]
    now = [
        [reading(node, begin, end, 3.0) for node, begin, end in zip(nodes, first, ends, strict=True)]
        for ends in (first, last)
    ]
    heard = iter(now)
    records: list[t.Record] = []
    record = HostLoad(HostSpeed(), {}, lambda: next(heard)).recording(records.append)
    record(t.RoundStarted(1, 0, 0.0, 0.1, ()))
    record(t.RoundFinished(2, 0, 1.0, (), "all done"))
    (host,) = [each for each in records if isinstance(each, HostRound)]
    assert [(node.busy_s, node.stolen_s, node.load) for node in host.nodes] == [(25.0, 0.0, 3.5), (38.0, 2.0, 4.8)]
    marked = hosts_of_rounds(with_nodes(*host.nodes))[1]
    assert marked.causes == ("rival",)
    assert marked.why == "on n2, other programs used 20% of the cores, and none were free"


def test_the_record_has_the_clock_of_a_node() -> None:
    clocks = {"clock_s": 1.5, "clock_error_s": 0.01, "drift_s": 0.002}
    (node,) = rounds_of_nodes([read("n1", "a", 1.0, 0.0)], [read("n1", "a", 3.0, 5.0, **clocks)], "")
    assert (node.clock_s, node.clock_error_s, node.drift_s) == (1.5, 0.01, 0.002)
    assert summarised(with_nodes(node))["nodes"]["clock_s"] == {"n1": [None, 1.5, None, None]}


def test_two_nodes_are_named_together() -> None:
    nodes = [msgspec.structs.replace(CALM, name=name, stolen_s=4.0) for name in ("n1", "n2")]
    found = hosts_of_rounds(with_nodes(*nodes))[1]
    assert found.causes == ("steal",)
    assert found.why == "on n1, the hypervisor took 10% of the CPU time; on n2, the hypervisor took 10% of the CPU time"


@pytest.mark.parametrize("changed", [{}, {"busy_s": 37.5, "ours_s": 30.0}, {"stolen_s": 9.0, "here": True}])
def test_what_disturbs_nobody_is_not_marked(changed: dict[str, Any]) -> None:
    """Full of its own devices; others use what is free; the record of the host itself judges the host."""
    assert hosts_of_rounds(with_nodes(msgspec.structs.replace(CALM, **changed)))[1].causes == ()


def test_a_device_that_did_not_get_its_cpu_is_named_with_its_node() -> None:
    records = [
        msgspec.structs.replace(record, cpus=1.0, details={"node": "n1"})
        if isinstance(record, t.LimitsSet)
        else msgspec.structs.replace(
            record, report=msgspec.structs.replace(record.report, delayed_s=3.0, throttled_s=0.2)
        )
        if isinstance(record, t.UpdateReceived) and record.device == "weak"
        else record
        for record in with_nodes()
    ]
    assert hosts_of_rounds(records)[1].why.startswith("weak on n1 did not get ")


def test_the_summary_has_the_shares_of_every_node() -> None:
    summary = summarised(with_nodes(CALM))
    assert summary["nodes"]["busy_share"] == {"n1": [None, pytest.approx(0.9), None, None]}
    assert summary["nodes"]["others_share"] == {"n1": [None, pytest.approx(0.025), None, None]}
    assert summary["disturbed_why"] == ["", "", "", ""]
    assert summarised(Synthetic().records)["nodes"]["load"] == {}
