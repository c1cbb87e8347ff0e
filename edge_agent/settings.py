"""What an agent is started with, and what it tells of itself when it joins."""

from __future__ import annotations

import uuid
from pathlib import Path

from edge_agent.sensors.watch import board_facts
from edge_agent.telemetry import host_facts
from edgebed.datasets.shard import Shard
from edgebed.guarded import Guarded
from edgebed.link.tls import Identity
from edgebed.plugin_code import LOADED
from edgebed.wire.messages import Presence, encode
from edgebed.wire.protocol import PROTOCOL
from edgebed.wire.texts import MOST_TEXT
from edgebed.wire.topics import Topics


class AgentSettings(Guarded, frozen=True):
    """What an agent is started with."""

    host: str
    port: int
    username: str
    password: str
    fleet: str
    device: str
    shard: Path
    # seconds after which the agent ends if it has received nothing from an orchestrator, which answers every heartbeat.
    # Without it the agents of a killed orchestrator would stay for ever. 0: no limit
    alone_s: float = 1800.0
    identity: Identity | None = None  # certificate and key, where the broker speaks TLS
    board: bool = False  # this machine is the device, and not its host: tell what the machine's sensors read
    accelerator: str = "cpu"  # where it trains; `accelerator.NAMES` until the machine was asked, then cpu or cuda
    board_id: str = ""  # id of a board that has joined, which is the last level of its topics; "": the device's name is
    plugins: Path | None = None  # folder of the plug-ins to use, as the orchestrator has copied it

    @property
    def topics(self) -> Topics:
        return Topics(self.fleet, self.board_id)


def presence(settings: AgentSettings, incarnation: str, online: bool, shard: Shard | None = None) -> bytes:
    """The retained Presence of this agent; with `online=False` its last will."""
    return encode(
        Presence(
            device=settings.device,
            incarnation=incarnation,
            online=online,
            protocol=PROTOCOL,
            samples=shard.samples if shard else 0,
            labels=tuple(shard.label_counts) if shard else (),
            shard=shard.sha256 if shard else "",
            host=_facts(shard, settings.board) if shard else {},
            plugins={code.name: code.sha256 for code in LOADED.values()},
        )
    )


def _facts(shard: Shard, board: bool) -> dict[str, str]:
    facts = host_facts() | (board_facts(shard.accelerator) if board else {})
    return {key: value[:MOST_TEXT] for key, value in facts.items()}


def new_incarnation() -> str:
    return uuid.uuid4().hex
