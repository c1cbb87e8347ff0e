"""One axis of seconds for a whole run: the orchestrator's clock, divided by the dilation, over all sessions. Pure."""

from __future__ import annotations

from orchestrator.records.run_index import RoundFacts, RunFacts


class TimeAxis:
    """Times of the orchestrator's clock -> seconds since the run's first round began, divided by the dilation.

    Each session of the orchestrator (from a start or a resume to its end) has a clock of its own. The first round of a
    session begins where the session before it ended.
    """

    def __init__(self, run: RunFacts) -> None:
        self._sessions = run.sessions
        self._begin_s = [0.0]
        for session in run.sessions:
            length_s = max(0, session.end_ns - session.begin_ns) / 1e9 / session.started.dilation
            self._begin_s.append(self._begin_s[-1] + length_s)

    def seconds(self, session: int, at_ns: int) -> float:
        """`at_ns` of the clock of session number `session` (from 0), in seconds. Negative before the first round."""
        facts = self._sessions[session]
        return self._begin_s[session] + (at_ns - facts.begin_ns) / 1e9 / facts.started.dilation


class Rounds:
    """The finished rounds of a run in the order of their numbers (`finished`), and where they are on the axis."""

    def __init__(self, run: RunFacts) -> None:
        self.axis = TimeAxis(run)
        numbers = {id(session): number for number, session in enumerate(run.sessions)}
        pairs = run.rounds()
        self._session = {facts.number: numbers[id(session)] for session, facts in pairs}
        self.finished = [(session, facts) for session, facts in pairs if facts.finished is not None]

    def seconds(self, facts: RoundFacts, at_ns: int) -> float:
        """A time of the clock of the round's session, in seconds."""
        return self.axis.seconds(self._session[facts.number], at_ns)
