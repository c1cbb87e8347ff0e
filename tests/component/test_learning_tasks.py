"""Every method learns every kind of learning task that it takes: simulated runs of all that there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgebed
from edgebed.methods.base import METHODS

SMALL = {"name": "transformer", "width": 8, "blocks": 3, "attention_heads": 2}
MODELS = {"rows": {"name": "fcnn", "hidden": [12, 8, 6]}, "class": SMALL, "next": SMALL}

ADAM, OPTIMIZERS = {"name": "adam", "lr": 0.01}, {"scaffold": {"name": "sgd", "lr": 0.05}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences that count upwards: the next token, whether the first one is odd, and the same as rows of a table."""
    folder = tmp_path_factory.mktemp("learning")
    tokens = (np.arange(120)[:, None] * 3 + np.arange(6)) % 7
    np.savez(folder / "next.npz", x=tokens, y=(tokens + 1) % 7)
    np.savez(folder / "class.npz", x=tokens, y=tokens[:, 0] % 2)
    np.savez(folder / "rows.npz", x=tokens.astype(np.float32), y=tokens[:, 0] % 2)
    return folder


CASES = [
    (kind, name)
    for name, method in METHODS.classes().items()
    for kind in MODELS
    if not (method.one_answer and kind == "next")
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_method_learns(data: Path, tmp_path: Path, kind: str, name: str) -> None:
    given = {} if kind == "rows" else {"vocabulary": 7}
    [run] = edgebed.simulate(
        {
            "name": kind,
            "fleet": "dtfl-5",
            "data": {"name": "npz", "path": str(data / f"{kind}.npz"), **given},
            "model": MODELS[kind],
            "methods": [{"name": name}],
            "training": {"rounds": 2, "batch_size": 16, "optimizer": OPTIMIZERS.get(name, ADAM), "seed": 1},
        },
        runs=tmp_path,
    )
    assert run.rounds["merged_devices"].min() > 0
    assert run.summary["best_accuracy"] > 0
