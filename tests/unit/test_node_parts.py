"""What a node helper and its looks at containers print, parsed."""

from __future__ import annotations

import pytest

from edge_agent.node.facts import cpu_seconds
from edgebed.errors import LimitError
from orchestrator.fleet.swarm.node_shaper import parse_look

TBF = '[{"kind":"tbf","root":true,"bytes":7,"drops":0,"options":{"rate":2500000,"burst":2165}}]'
LOOK = f"""
==== up
{TBF}
==== down
{TBF}

==== tx_bytes
3675

==== rx_bytes
3750
==== cpu.cfs_period_us
100000
==== cpu.cfs_quota_us
5000
==== cpu.stat
nr_throttled 3
throttled_time 2000000000
==== cpuacct.usage
2869392575
==== memory.limit_in_bytes
1073741824
==== memory.usage_in_bytes
2097152
==== cpu.cfs_quota_us
-1
"""
"""The last part is of a cgroup within the container's."""


def test_a_look_tells_limits_and_use() -> None:
    look = parse_look(LOOK)
    assert look.group.quota is not None
    assert look.group.quota.cpus == 0.05
    assert (look.group.memory_mib, look.group.memory_used_mib) == (1024, 2)
    assert (look.group.throttled_periods, look.group.throttled_s) == (3, 2)
    assert [each.rate_bit_s for each in look.shaped] == [20_000_000, 20_000_000]
    assert look.counted == (3675, 3750)


@pytest.mark.parametrize("part", ["up", "tx_bytes", "cpu.stat", "memory.limit_in_bytes"])
def test_a_look_that_lacks_something_is_no_look(part: str) -> None:
    with pytest.raises(LimitError):
        parse_look(LOOK.replace(f"==== {part}\n", "==== other\n"))


def test_used_and_stolen_seconds_of_all_cpus() -> None:
    """Ticks of user, nice, system, idle, iowait, irq, softirq, steal, guest: used are all but idle, iowait, steal."""
    assert cpu_seconds("cpu  100 20 30 4000 500 6 7 80 9\ncpu0 1 1 1 1 1 1 1 1\n", 100) == (1.63, 0.8)
    assert cpu_seconds("cpu  100 0 0 0\n", 100) == (1.0, 0.0)
