"""Starts the agent of one device, in a container, on a board, or forked by the local backend."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import msgspec

from edge_agent.accelerator import check_torch, find_accelerator
from edge_agent.agent import Agent
from edge_agent.data_watch import limit_s, watch_data
from edge_agent.privileges import die_with
from edge_agent.settings import AgentSettings, new_incarnation, presence
from edge_agent.software_throttle import SoftwareThrottle
from edge_agent.training import warm_up
from edgebed.entry import exit_on_error
from edgebed.errors import FileError, UsageError
from edgebed.link.connection import Address, parse_url
from edgebed.link.mqtt import MqttLink
from edgebed.link.tls import Identity
from edgebed.plugin_code import read_plugins, use
from edgebed.wire.topics import check_name

KEEPALIVE_S = 60
"""Seconds, of the control connection. It is long because the orchestrator judges by heartbeats and progress; the last
will is only faster. The data connection has no keepalive: its pings would wait behind megabytes on a slow link."""


def settings_from(arguments: list[str]) -> AgentSettings:
    """Settings from argv and the environment. Raises UsageError with cause and hint."""
    given = _parser().parse_args(arguments)
    broker = _text_of(Path(given.broker_file)) if given.broker_file else given.broker
    address = parse_url(broker, "give mqtt://user:password@host:port, or set EDGEBED_BROKER")
    return AgentSettings(
        host=address.host,
        port=address.port,
        username=address.username,
        password=address.password,
        fleet=check_name(given.fleet, "fleet"),
        device=check_name(given.device),
        shard=given.shard,
        alone_s=given.alone_s,
        identity=_identity(given.identity) if broker.lower().startswith("mqtts:") else None,
        board=given.board,
        accelerator=given.accelerator or ("auto" if given.board else "cpu"),
        board_id=given.board_id,
        plugins=given.plugins,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgebed-agent device",
        description="The agent of one device. A fleet starts it by itself, and so does `edgebed-agent run` on a board.",
        epilog="example: EDGEBED_BROKER=mqtt://user:password@host:1883 edgebed-agent device --fleet desk-1f3a "
        "--device d1 --shard d1.safetensors",
    )
    parser.add_argument(
        "--broker",
        default=os.environ.get("EDGEBED_BROKER", ""),
        help="mqtt://user:password@host:port; better given as EDGEBED_BROKER, which `ps` does not show",
    )
    parser.add_argument(
        "--broker-file",
        default=os.environ.get("EDGEBED_BROKER_FILE", ""),
        help="file with this address, where the environment is shown too (or EDGEBED_BROKER_FILE)",
    )
    parser.add_argument("--fleet", required=True, help="id of the fleet, as `edgebed fleet up` prints it")
    parser.add_argument("--device", required=True, help="name of this device in the fleet file")
    parser.add_argument("--shard", required=True, type=Path, help="this device's data: one .safetensors file")
    parser.add_argument(
        "--identity",
        default=os.environ.get("EDGEBED_IDENTITY", ""),
        help="for a broker at mqtts://: folder with ca.pem, certificate.pem and key.pem (or EDGEBED_IDENTITY)",
    )
    parser.add_argument(
        "--alone-s",
        type=float,
        default=os.environ.get("EDGEBED_ALONE_S", "1800"),
        help="end if nothing was received from an orchestrator for so many seconds (default 1800, or "
        "EDGEBED_ALONE_S); 0: no limit",
    )
    parser.add_argument(
        "--board",
        action="store_true",
        help="this machine is the device: tell its model, and once a second its frequency, heat, throttling and power; "
        "not for containers, whose sensors are their host's",
    )
    parser.add_argument(
        "--accelerator",
        default=os.environ.get("EDGEBED_ACCELERATOR", ""),
        help="where to train: cpu, cuda, or auto, which is cuda where torch can use it (or EDGEBED_ACCELERATOR); "
        "default: auto with --board, else cpu",
    )
    parser.add_argument("--board-id", default="", help="id of a board that has joined: the last level of its topics")
    parser.add_argument("--plugins", type=Path, help="folder of the plug-ins to use, as the orchestrator has copied it")
    return parser


def _text_of(file: Path) -> str:
    """Raises FileError."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise FileError.of(error, file) from None


def _identity(folder: str) -> Identity:
    """Raises UsageError."""
    if not folder:
        raise UsageError("a broker at mqtts:// asks for a certificate", hint="name its folder with --identity")
    return Identity.of(Path(folder))


def serve(settings: AgentSettings) -> None:
    """Run the agent until Shutdown. The caller has called `training.warm_up`."""
    asyncio.run(_serve(settings))


async def _serve(settings: AgentSettings) -> None:
    incarnation = new_incarnation()
    address = Address(settings.host, settings.port, settings.username, settings.password, settings.identity)
    name = f"{settings.fleet}-{settings.device}-{incarnation[:8]}"
    will = (settings.topics.state(settings.device), presence(settings, incarnation, False), True)
    control = MqttLink(address, f"{name}-control", will=will, keepalive_s=KEEPALIVE_S)
    throttle = SoftwareThrottle()
    data = MqttLink(address, f"{name}-data", keepalive_s=0, paced=True)
    agent = Agent(settings, incarnation, control, throttle.link(data), throttle)
    watch = asyncio.create_task(watch_data(agent.endpoint, data, lambda: limit_s(agent.heartbeat_s)))
    try:
        await agent.run()
    finally:
        watch.cancel()


def main() -> None:
    with exit_on_error("edgebed-agent"):
        settings = settings_from(sys.argv[1:])
        if settings.plugins:
            use(read_plugins(settings.plugins))  # with no rights but those of the agent
        accelerator = find_accelerator(settings.accelerator)
        if settings.board:
            check_torch(accelerator)
        if settings.board_id:
            die_with(os.getppid())  # `edgebed-agent run`: when it comes back after a crash, it starts another agent
        warm_up(accelerator)
        serve(msgspec.structs.replace(settings, accelerator=accelerator.type))


if __name__ == "__main__":
    main()
