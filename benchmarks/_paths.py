"""Where benchmarks find the source tree and its experiments."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "profiles" / "experiments"
