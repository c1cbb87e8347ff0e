"""What the host did in the rounds of some records, compared as in a summary."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.records.run_index import sort
from orchestrator.records.timeline.disturbance import HostOfRound, host_of_round, usual_loop_ms, works_of
from orchestrator.records.timeline.limits_in_force import LimitsInForce
from orchestrator.records.types import Record


def hosts_of_rounds(records: Iterable[Record]) -> dict[int, HostOfRound]:
    """By the number of the round."""
    found = {
        facts.number: host_of_round(facts, works_of(session), LimitsInForce(session))
        for session, facts in sort(records).rounds()
    }
    usual_ms = usual_loop_ms(found.values())
    return {number: host.compared(usual_ms) for number, host in found.items()}
