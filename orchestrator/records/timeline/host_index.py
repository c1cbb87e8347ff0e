"""How fast the host of a run was, against a reference, over the whole run. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev

from orchestrator.records.run_index import RunFacts
from orchestrator.records.types import HostIndex

FAR_SHARE, FAR_ERRORS = 0.1, 3.0
"""Two indices differ where they are farther apart than this share of the larger one, and than so many standard
errors."""


def host_index(run: RunFacts) -> HostIndex | None:
    """The mean of what was measured at the starts and ends of a run's sessions. The error is the larger one of theirs
    and of what their differences tell. None: nothing was measured."""
    records = [each for session in run.sessions for each in (session.started, session.finished) if each is not None]
    found = [each.host_index for each in records if each.host_index is not None]
    found = [each for each in found if each.reference == found[-1].reference]
    if not found:
        return None
    values, count = [each.index for each in found], len(found)
    own = math.sqrt(sum(each.error**2 for each in found)) / count
    between = stdev(values) / math.sqrt(count) if count > 1 else 0.0
    return HostIndex(found[-1].reference, fmean(values), max(own, between), values[0] / values[-1] - 1)


def is_slow(found: HostIndex | None) -> bool:
    """Whether the host is certainly slower than the core of the reference."""
    return found is not None and _far(found, HostIndex(found.reference, 1.0, 0.0, 0.0)) and found.index < 1


def index_text(found: HostIndex) -> str:
    """For people."""
    slow, end = ", a slow host" if is_slow(found) else "", "slower" if found.drift >= 0 else "faster"
    speed = f"{found.index:.2f} ± {found.error:.2f} times as fast as {found.reference}"
    return f"{speed}{slow}; {abs(found.drift):.0%} {end} at the end"


def differing_hosts(runs: Mapping[str, HostIndex]) -> list[str]:
    """A note for the comparison of runs, by name, at the speed of hosts that were not equally fast."""
    if not runs:
        return []
    slow, fast = (end(runs, key=lambda name: runs[name].index) for end in (min, max))
    least, most = runs[slow], runs[fast]
    if least.reference != most.reference or not _far(least, most):
        return []
    return [
        f"the host of {slow} was slower ({index_text(least)}) than the host of {fast} ({index_text(most)}). With "
        "`speed: host` their seconds and ratios are not comparable; use `speed: reference NAME`"
    ]


def _far(one: HostIndex, other: HostIndex) -> bool:
    apart = abs(one.index - other.index)
    return apart > FAR_SHARE * max(one.index, other.index) and apart > FAR_ERRORS * math.hypot(one.error, other.error)
