"""Records -> log lines of `key=value` pairs with run, round and device; None for records that are not logged.
And the lines that a terminal shows for failures and steps of the scenario. Pure."""

from __future__ import annotations

import json

from edgebed.errors import printable
from orchestrator.records import types as t
from orchestrator.records.types import DeviceOut, Record, ScenarioStep


class LogLines:
    """Turns the records of a run into lines, in the order in which they come. Seconds are divided by the dilation."""

    def __init__(self) -> None:
        self._run, self._dilation, self._profiles = "", 1.0, dict[str, str]()

    def line(self, record: t.Record) -> str | None:
        if isinstance(record, t.RunStarted):
            self._run, self._dilation = record.run, record.dilation
        pairs = self._pairs(record)
        if pairs is None:
            return None
        known = {key: value for key, value in ({"run": self._run} | pairs).items() if value != ""}
        return " ".join(f"{key}={_quoted(value)}" for key, value in known.items())

    def _pairs(self, record: t.Record) -> dict[str, object] | None:
        match record:
            case t.RunStarted():
                about = {"method": record.method, "enforcement": record.enforcement, "dilation": record.dilation}
                return {"event": "run_started", "seed": record.seed, "devices": len(record.devices), **about}
            case t.RoundStarted():
                return self._of("round_started", record.round, devices=len(record.devices), lane=record.lane)
            case t.DeviceDone():
                return self._of("device_done", record.round, record.device, seconds=self._s(record.seconds))
            case t.DeviceOut():
                return self._of("device_out", record.round, record.device, how=record.how, why=record.why)
            case t.RoundFinished():
                merged = len(record.merged)
                return self._of("round_finished", record.round, seconds=self._s(record.seconds), merged=merged)
            case t.Evaluated():
                return self._of("evaluated", record.round, accuracy=round(record.accuracy, 4), loss=record.loss)
            case t.FinalTest():
                return self._of("final_test", record.round, accuracy=round(record.accuracy, 4), loss=record.loss)
            case _:
                return self._beside(record)

    def _beside(self, record: t.Record) -> dict[str, object] | None:
        """A line for a record that belongs to no round."""
        match record:
            case t.DeviceJoined():
                return {"event": "device_joined", "device": record.device, "again": record.again}
            case t.DeviceLeft():
                return {"event": "device_left", "device": record.device, "why": record.why}
            case t.LimitsSet():
                about = {"device": record.device, "why": record.why, "profile": record.profile}
                rates = {"up_bit_s": record.uplink_bit_s, "down_bit_s": record.downlink_bit_s}
                return {"event": "limits_set", **about, "cpus": record.cpus, **rates}
            case t.Fault():
                return {"event": "fault", "device": record.device, "what": record.what}
            case t.ScenarioStep():
                step = {"kind": record.kind, "begins": record.begins, "asked": record.asked}
                return {"event": "scenario", "device": record.device, **step, "error": record.error}
            case t.RunFinished():
                return {"event": "run_finished", "why": record.why}
            case _:
                return None

    def _of(self, event: str, round: int, device: str = "", **more: object) -> dict[str, object]:
        return {"event": event, "round": round + 1, "device": device} | more

    def _s(self, seconds: float) -> float:
        return round(seconds / self._dilation, 4)


def _quoted(value: object) -> str:
    """Without quotes where it is clear, else as JSON, on one line."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text and not any(c in text for c in ' "=\n\t') and text.isprintable() else json.dumps(text)


FAILED = ("lost", "failed", "refused", "diverged")
"""Ways out of a round that are failures; late and cancelled are not: the round's rule says so."""

LONGEST = 240


def failure_line(record: Record) -> str | None:
    """One line for a device that failed: round, name, why; None for any other record."""
    if not isinstance(record, DeviceOut) or record.how not in FAILED:
        return None
    cut = _on_one_line(record.why)
    traced = " (its traceback is in records.jsonl)" if record.trace else ""
    return f"round {record.round + 1}: {record.device} {record.how}: {cut}{traced}"


def scenario_line(record: Record) -> str | None:
    """One line for a step of the scenario: device, what, and why it failed; None for any other record, and where a
    trace only goes on."""
    if not isinstance(record, ScenarioStep) or record.kind == "rate":
        return None
    return f"scenario: {record.device}: {record.asked}" + (
        f" FAILED: {_on_one_line(record.error)}" * bool(record.error)
    )


def _on_one_line(text: str) -> str:
    return printable(" ".join(printable(text, len(text)).split()), LONGEST)
