"""An experiment that is checked and never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from orchestrator.experiment import Experiment

PATH = Path("e.yaml")


def experiment(**changes: Any) -> Experiment:
    base = {"name": "t", "fleet": "f.yaml", "methods": [{"name": "fedavg"}]}
    return msgspec.convert({**base, **changes}, Experiment)
