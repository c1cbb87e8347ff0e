"""The typed events of a scenario: what happens to which devices, and when. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from edgebed.limits.spec import LatencyMs, Mbit
from edgebed.typed import nearest

LONGEST_S = 1e7
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Duration = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]

WHO = ("device", "profile", "share")
WHAT = ("do", "limits", "compete_cpus", "trace")


class LimitChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits in place of those of the device's profile, before dilation. Those that are left out stay."""

    cpus: Annotated[float, msgspec.Meta(gt=0, le=1024)] | None = None
    uplink_mbit_s: Mbit | None = None
    downlink_mbit_s: Mbit | None = None
    memory_mib: Annotated[int, msgspec.Meta(ge=64, le=4 * 2**20)] | None = None
    latency_ms: LatencyMs | None = None

    def __post_init__(self) -> None:
        if not self.named():
            raise ValueError(f"limits names no limit; name one of: {', '.join(self.__struct_fields__)}")

    def named(self) -> dict[str, float]:
        """The limits that are named here, by key."""
        pairs = ((key, getattr(self, key)) for key in self.__struct_fields__)
        return {key: value for key, value in pairs if value is not None}


class TraceChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recorded link, replayed on each device (`orchestrator.scenario.traces`).

    file: a CSV file of rates, latency and presence.
    uplink, downlink: mahimahi traces, in place of `file`.
    interval_s: seconds over which packets of a mahimahi trace are counted to give a rate.
    offset_s: where in the trace a device begins. `random`: anywhere, drawn per device from the seed.
    at_end: `loop` begins again, `stop` gives the device the limits back that it would have without the trace.
    """

    file: str | None = None
    uplink: str | None = None
    downlink: str | None = None
    interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 1.0
    offset_s: Seconds | Literal["random"] = "random"
    at_end: Literal["loop", "stop"] = "loop"

    def __post_init__(self) -> None:
        if (self.file is None) == (self.uplink is None and self.downlink is None):
            raise ValueError("a trace is a CSV file or mahimahi traces; give `file`, or `uplink`, `downlink` or both")

    @property
    def files(self) -> dict[str, str]:
        """The names of its files, by key."""
        pairs = ((key, getattr(self, key)) for key in ("file", "uplink", "downlink"))
        return {key: name for key, name in pairs if name is not None}


class ScenarioEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Something that happens to devices. Seconds are reported seconds: they are multiplied by the dilation.

    When: `at_s`, seconds since the first round began; or `round` (from 1), before that round is planned, or `after_s`
    seconds after it began.
    Who: `device` (a name or several), the devices of a `profile`, or a `share` of all, drawn from the seed.
    What: `limits` (some limits, or the name of a profile), `compete_cpus` (a busy process inside the device's quota
    that wants so many CPUs), `trace`, or `do`: `cut` (the link is lost), `freeze` (the agent is stopped), `leave` (the
    agent ends), `return` (ends what `cut`, `freeze` and `leave` have done to the device).
    How long: `for_s` seconds, then it is undone. Without: to the end of the run.
    """

    at_s: Seconds | None = None
    round: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    after_s: Seconds | None = None
    device: str | list[str] | None = None
    profile: str | None = None
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    do: Literal["cut", "freeze", "leave", "return"] | None = None
    limits: str | LimitChange | None = None
    compete_cpus: Annotated[float, msgspec.Meta(gt=0, le=1024)] | None = None
    trace: TraceChoice | None = None
    for_s: Duration | None = None

    def __post_init__(self) -> None:
        if (self.at_s is None) == (self.round is None):
            raise ValueError("an event has one time; give `at_s` or `round`")
        if self.after_s is not None and self.round is None:
            raise ValueError("after_s counts from the start of a round; name the `round`, or write `at_s`")
        self._one_of(WHO, "happens to one group of devices")
        self._one_of(WHAT, "does one thing")
        if self.do == "return" and self.for_s is not None:
            raise ValueError("`return` has no duration; remove for_s")

    def _one_of(self, keys: tuple[str, ...], rule: str) -> None:
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            said = f"an event {rule}, this one has {' and '.join(given) or 'none'}"
            raise ValueError(f"{said}; give one of: {', '.join(keys)}")

    @property
    def kind(self) -> str:
        """What it does, in one word: cut, freeze, leave, return, limits, compete or trace."""
        return self.do or ("limits" if self.limits is not None else "trace" if self.trace is not None else "compete")

    @property
    def named_devices(self) -> list[str]:
        return [self.device] if isinstance(self.device, str) else self.device or []


class ScenarioFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A scenario in a file of its own."""

    name: str = ""
    events: Annotated[list[ScenarioEvent], msgspec.Meta(min_length=1)]


def misfit(event: ScenarioEvent, profiles: dict[str, str], rounds: int) -> tuple[str, str, str] | None:
    """What of an event cannot come to pass on a fleet: key, message, hint. None where all can.

    Args:
        profiles: by device, the name of its profile.
        rounds: of the run.
    """
    for name in event.named_devices:
        if name not in profiles:
            known = list(profiles)
            return "device", f"the fleet has no device {name!r}{nearest(name, known)}", f"it has: {', '.join(known)}"
    kinds = sorted(set(profiles.values()))
    if event.profile is not None and event.profile not in kinds:
        said = f"no device of the fleet has the profile {event.profile!r}{nearest(event.profile, kinds)}"
        return "profile", said, f"its profiles are: {', '.join(kinds)}"
    if event.round is not None and event.round > rounds:
        return "round", f"round is {event.round}; there are {rounds} rounds", f"write a round from 1 to {rounds}"
    return None
