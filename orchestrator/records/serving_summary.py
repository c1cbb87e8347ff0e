"""`serving.json`: accuracy, latency, throughput, queues and bytes of a serving run, from its records alone. Pure.

Times are divided by the dilation, rates are multiplied by it; bytes stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from edgebed.errors import UsageError
from orchestrator.records.host_records import Hop, RequestsLost, Served
from orchestrator.records.live.summing import percentile
from orchestrator.records.run_index import RoundFacts, RunFacts
from orchestrator.records.timeline.in_quota import counted
from orchestrator.records.types import Record


def summarise_serving(run: RunFacts, records: Iterable[Record]) -> dict[str, Any]:
    """The summary of a serving run.

    Args:
        run: its records, sorted.
        records: the same records.

    Raises:
        UsageError: no request was answered.
    """
    served: list[Served] = []
    lost: list[RequestsLost] = []
    for record in records:
        if isinstance(record, Served):
            served.append(record)
        elif isinstance(record, RequestsLost):
            lost.append(record)
    rounds = run.rounds()
    if not rounds or "serving" not in rounds[-1][1].started.notes:
        raise UsageError("this run served nothing", hint="give the folder that `edgebed serve` wrote")
    facts = rounds[-1][1]
    return _Summary(run, facts, served, lost).result()


class _Summary:
    def __init__(
        self, run: RunFacts, facts: RoundFacts, served: Sequence[Served], lost: Sequence[RequestsLost]
    ) -> None:
        self._run, self._facts, self._served, self._lost = run, facts, served, lost
        self._plan: Any = facts.started.notes["serving"]
        self._dilation = facts.dilation

    def result(self) -> dict[str, Any]:
        started, served, plan = self._run.started, self._served, self._plan
        begin = min((each.hops[0].queued_ns for each in served), default=0)
        end = max((each.hops[-1].done_ns for each in served), default=0)
        seconds = self._s(end - begin)
        return {
            "run": started.run,
            "source": plan["source"],
            "backend": started.backend,
            "enforcement": self._run.enforcement,
            "dilation": self._run.dilation,
            "grain": started.grain,
            "requests_in_quota_share": counted(update.report for update in self._facts.updates.values()).piece_share,
            "calibrated": self._run.calibrated,
            "ended": self._run.sessions[-1].finished.why if self._run.sessions[-1].finished else "not yet, or killed",
            "requests": plan["requests"],
            "answered": len(served),
            "lost": sum(len(each.requests) for each in self._lost),
            "lost_at": self._lost_at(),
            "accuracy": _share(each.right for each in served),
            "expected_accuracy": plan["expected_accuracy"],
            "seconds": seconds,
            "offered_per_s": sum(plan["arrivals"].values()),
            "throughput_per_s": len(served) / seconds if seconds else None,
            **self._spread("latency_s", [_latency(each) for each in served]),
            "bytes": sum(link["bytes"] for link in self._links()),
            "exits": [self._exit(number) for number in range(1, len(plan["shares"]) + 1)],
            "nodes": [self._node(node) for node in plan["parents"]],
            "links": self._links(),
        }

    def _lost_at(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for each in self._lost:
            at = found.setdefault(each.node, {"requests": 0, "why": each.why})
            at["requests"] += len(each.requests)
        return found

    def _exit(self, exit: int) -> dict[str, Any]:
        plan, own = self._plan, [each for each in self._served if each.exit == exit]
        return {
            "exit": exit,
            "cut": plan["cuts"][exit - 1],
            "threshold": plan["thresholds"][exit - 1],
            "answered": len(own),
            "share": len(own) / len(self._served) if self._served else None,
            "share_wanted": plan["shares"][exit - 1],
            "share_expected": plan["expected_shares"][exit - 1],
            "accuracy": _share(each.right for each in own),
            **self._spread("latency_s", [_latency(each) for each in own]),
            "bytes_per_request": mean(_bytes(each) for each in own) if own else None,
        }

    def _node(self, node: str) -> dict[str, Any]:
        hops = [hop for each in self._served for hop in each.hops if hop.node == node]
        answered = sum(each.hops[-1].node == node for each in self._served)
        return {
            "node": node,
            "parent": self._plan["parents"][node],
            "exit": self._plan["exits"][node],
            "took": len(hops),
            "answered": answered,
            "forwarded": len(hops) - answered,
            **self._spread("wait_s", [hop.began_ns - hop.queued_ns for hop in hops]),
            **self._spread("work_s", [hop.done_ns - hop.began_ns for hop in hops]),
            "most_waiting": most_waiting(hops),
            "requests_in_quota": counted([end.report] if (end := self._facts.updates.get(node)) else []).piece_share,
        }

    def _links(self) -> list[dict[str, Any]]:
        """Bytes and transfers of every link while the fleet served, without the weights that were sent before."""
        links = []
        for node in self._plan["parents"]:
            up, down = self._facts.uploads.get(node, ()), self._facts.replies.get(node, ())
            end = self._facts.updates.get(node)
            links.append(self._link(node, "up", [u.bytes for u in up] + ([end.bytes] if end else [])))
            if down:
                links.append(self._link(node, "down", [reply.bytes for reply in down]))
        return links

    def _link(self, node: str, direction: str, sizes: list[int]) -> dict[str, Any]:
        info = next((device for device in self._run.started.devices if device.name == node), None)
        rate = 0 if info is None else info.uplink_bit_s if direction == "up" else info.downlink_bit_s
        largest = max(sizes, default=0)
        return {
            "node": node,
            "direction": direction,
            "rate_bit_s": rate,
            "transfers": len(sizes),
            "bytes": sum(sizes),
            "largest_bytes": largest,
            "largest_least_s": 8 * largest / rate if rate else None,
        }

    def _spread(self, name: str, times_ns: Sequence[int]) -> dict[str, float | None]:
        times = [self._s(time) for time in times_ns]
        return {
            f"{name}_mean": mean(times) if times else None,
            f"{name}_p50": percentile(times, 0.5),
            f"{name}_p99": percentile(times, 0.99),
        }

    def _s(self, nanoseconds: float) -> float:
        return nanoseconds / 1e9 / self._dilation


def _latency(each: Served) -> int:
    """Nanoseconds from the arrival at the leaf to the answer at the node that gave it."""
    return each.hops[-1].done_ns - each.hops[0].queued_ns


def _bytes(each: Served) -> int:
    """Bytes of a request over all links on its way to the node that answered it."""
    return sum(hop.down_bytes + hop.up_bytes for hop in each.hops)


def _share(flags: Iterable[bool]) -> float | None:
    known = list(flags)
    return sum(known) / len(known) if known else None


def most_waiting(hops: Sequence[Hop]) -> int:
    """The most requests that waited at a node at one moment: for its downlink, or on the node for its turn."""
    steps = sorted([(hop.queued_ns, 1) for hop in hops] + [(hop.began_ns, -1) for hop in hops])
    waiting = most = 0
    for _, step in steps:
        waiting += step
        most = max(most, waiting)
    return most
