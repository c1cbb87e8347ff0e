"""Finds what the docker backend has made."""

from __future__ import annotations

from typing import Any

from orchestrator.fleet import engine
from orchestrator.fleet.control.controller import FleetController
from orchestrator.fleet.engine import DEVICE, FLEET


def container_of(controller: FleetController, device: str) -> Any:
    client = engine.connect()
    labels = [f"{FLEET}={controller.fleet_id}", f"{DEVICE}={device}"]
    (container,) = client.containers.list(all=True, filters={"label": labels})
    return container
