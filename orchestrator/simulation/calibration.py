"""A file of costs measured on a real fleet: CPU seconds of work, times of links, of the server and the orchestrator.

Costs of devices and links are kept by profile, since devices of one profile are alike. A profile that was not measured
gets the medians of those that were.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from edgebed.errors import UsageError
from edgebed.methods.base import CutCost
from orchestrator.files.yaml_file import convert, load_yaml, write_yaml
from orchestrator.references.layer_costs import WidthLaw
from orchestrator.references.work_laws import BatchLaw, SizeLaw
from orchestrator.simulation.costs import ServerTurns

VERSION = 2
T = TypeVar("T")


class LinkFit(msgspec.Struct, frozen=True):
    """Seconds of a transfer: `latency_s` + `stretch` × bits ÷ declared rate. `least_s`: the latency of uploads and
    replies, where the host is not busy with all devices at once as at the ends of tasks; None: `latency_s`."""

    latency_s: float
    stretch: float
    least_s: float | None = None


class ProfileCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of one class of devices. Factors are measured CPU seconds divided by the reference's."""

    work: dict[str, float]  # factor by kind of work
    other: float  # factor for kinds of work that were not measured, besides `batch_cpu_s`
    upload_cpu_s: float  # the agent's CPU seconds per upload, without training and encoding
    update_cpu_s: float  # the same for the update, with all other costs of a task
    reply_cpu_s: float  # per reply: to receive and decode it
    decode_cpu_s: float  # per task
    build_cpu_s: float  # extra for the first task, in which the agent builds its model
    narrow_cpu_s: float | None  # extra for a task with a part of the network's width; None: there was none
    uplink: LinkFit
    downlink: LinkFit
    send_byte_cpu_s: float = 0.0  # the agent's CPU seconds per byte that it sends, besides those per upload and update
    decode_byte_cpu_s: float = 0.0  # per byte of a task's body, besides `decode_cpu_s`
    batch_cpu_s: float = 0.0  # per batch of work that was not measured
    features_cpu_s: float = 0.0  # per batch of such work that uploads its features: it trains with colder caches


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. The reference's laws are CPU seconds of one core of the host that calibrated."""

    version: int = VERSION
    runs: list[str]
    dilation: float
    device: dict[str, BatchLaw]  # reference, by kind of work
    server: dict[str, BatchLaw]  # reference, by cut
    server_factor: dict[str, float]  # measured seconds of a step divided by the reference's, by cut
    server_other: float  # for steps that were not measured, besides `server_batch_s`
    server_group: float  # measured seconds of a step with several devices divided by the sum of single steps
    server_batch_s: float = 0.0  # seconds per batch of steps that were not measured
    layers: dict[str, list[WidthLaw]] = {}  # what the reference is the sum of; empty: it was timed
    encode: dict[str, SizeLaw]  # reference, by codec
    profiles: dict[str, ProfileCosts]
    orchestrator: dict[str, float]  # seconds by kind of the orchestrator's own work
    receive: SizeLaw  # seconds that the orchestrator needs for n received bytes
    turns: ServerTurns = ServerTurns()
    cuts: dict[int, CutCost] = {}
    host: str = ""  # the name of the host, where these are the costs of a host and not of one experiment
    model_bytes: int = 0  # weights of the whole model with which they were measured

    def of(self, profile: str) -> ProfileCosts:
        """A profile's costs; the medians of all profiles if this one was not measured."""
        return self.profiles.get(profile) or _typical(list(self.profiles.values()))

    def batch_s(self, profile: str, work: str, reference_s: float, *, uploads: bool) -> float:
        """CPU seconds of a batch of a kind of work, from the reference's: as it was measured on that profile, else on
        other profiles, else as all work of the profile has it. `uploads`: its features go up."""
        own = self.of(profile)
        if work in own.work:
            return reference_s * own.work[work]
        if elsewhere := [each.work[work] for each in self.profiles.values() if work in each.work]:
            return reference_s * median(elsewhere)
        return own.batch_cpu_s + uploads * own.features_cpu_s + reference_s * own.other

    def server_s(self, key: str, reference_s: float) -> float:
        """Seconds of a server step with one batch, from the reference's."""
        if key in self.server_factor:
            return reference_s * self.server_factor[key]
        return self.server_batch_s + reference_s * self.server_other


def _typical(known: list[ProfileCosts]) -> ProfileCosts:
    keys = {key for each in known for key in each.work}
    return ProfileCosts(
        work={key: median(each.work[key] for each in known if key in each.work) for key in keys},
        other=median(each.other for each in known),
        upload_cpu_s=median(each.upload_cpu_s for each in known),
        update_cpu_s=median(each.update_cpu_s for each in known),
        reply_cpu_s=median(each.reply_cpu_s for each in known),
        decode_cpu_s=median(each.decode_cpu_s for each in known),
        build_cpu_s=median(each.build_cpu_s for each in known),
        narrow_cpu_s=_middle([each.narrow_cpu_s for each in known]),
        uplink=_typical_link([each.uplink for each in known]),
        downlink=_typical_link([each.downlink for each in known]),
        send_byte_cpu_s=median(each.send_byte_cpu_s for each in known),
        decode_byte_cpu_s=median(each.decode_byte_cpu_s for each in known),
        batch_cpu_s=median(each.batch_cpu_s for each in known),
        features_cpu_s=median(each.features_cpu_s for each in known),
    )


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _typical_link(known: list[LinkFit]) -> LinkFit:
    least_s = _middle([each.least_s for each in known])
    return LinkFit(median(each.latency_s for each in known), median(each.stretch for each in known), least_s)


def save_calibration(calibration: Calibration, path: Path) -> None:
    path.write_bytes(write_yaml(_rounded(msgspec.to_builtins(calibration))))


def load_calibration(path: Path) -> Calibration:
    """Read the file. Raises UsageError if there is none, or if it has another version."""
    data = load_yaml(path)
    if data.get("version") != VERSION:
        raise UsageError(f"{path}: a calibration of version {data.get('version')}", hint="calibrate again")
    cuts = data.get("cuts", {})
    if isinstance(cuts, dict) and all(cut.isdecimal() for cut in cuts):
        data["cuts"] = {int(cut): cost for cut, cost in cuts.items()}
    return convert(data, Calibration, path)


def _rounded(value: object) -> object:
    """Round to four digits: more than the measurements justify, and readable."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
