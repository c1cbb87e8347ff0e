"""`edgebed reproduce` and the measurement behind `edgebed tiers`, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import HALVES
from orchestrator.cli import reproduce, tiers
from orchestrator.papers.tiers import measure_tiers, normalised, spread
from tests.component._fleet import MODEL, buggy, fleet, model

TABLE = """
title: "A small table"
source: "a paper"
quantities: [rounds_to_target, best_accuracy]
baseline: FedAvg
expects: ["That it is learned."]
experiment:
  name: small
  fleet: dtfl-5
  data: {name: digits, train_samples: 200, test_samples: 50}
  model: {name: resnet-tiny}
  training: {rounds: 2, target_accuracy: 0.01, stop_at_target: false, batch_size: 20, optimizer: {lr: 0.01}}
  simulation: {cost: flops}
  methods: [{name: fedavg}]
rows:
  FedAvg: {}
  SplitFed: {methods: [{name: splitfed}]}
columns:
  IID: {}
figures:
  rounds_to_target: {FedAvg: [4], SplitFed: [8]}
scale:
  about: As it is.
  seeds: [1]
"""


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("reproduce")(reproduce.command)
    app.command("tiers")(tiers.command)
    return app


def call(app: typer.Typer, *arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result


def test_counted_operations_are_those_of_the_paper(app: typer.Typer) -> None:
    found = json.loads(call(app, "reproduce", "fedpmt-table2", "--json").stdout)
    assert found["ours"] == found["paper"] != {}
    said = call(app, "reproduce", "fedpmt-table2").stdout
    assert "equal" in said
    assert "DIFFERS" not in said


def test_a_table_is_made_once_and_shown_beside_the_paper_s(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path / "runs"))
    (tmp_path / "table.yaml").write_text(TABLE)
    said = " ".join(call(app, "reproduce", str(tmp_path / "table.yaml")).stdout.split())
    assert "A small table – rounds_to_target, simulated" in said
    assert "8 2.00 ×" in said, "the paper's"
    assert "The paper claims: That it is learned." in said
    made = sorted((tmp_path / "runs").rglob("summary.json"))
    assert len(made) == 2
    found = json.loads(call(app, "reproduce", str(tmp_path / "table.yaml"), "--json").stdout)
    cells = {cell["row"]: cell for cell in found["tables"]["rounds_to_target"]}
    assert (cells["FedAvg"]["mean"], cells["SplitFed"]["paper_ratio"]) == (1.0, 2.0)
    assert sorted((tmp_path / "runs").rglob("summary.json")) == made, "runs that are there are read"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce", "dtfl-tabel3"], "did you mean 'dtfl-table3'"),
        (["reproduce", "fedpmt-table2", "--seeds", "1"], "takes no option"),
        (["reproduce", "dtfl-table3", "--seeds", "one"], "--seeds 'one'"),
        (
            ["tiers", "--model", "resnet-tiny", "--shape", "1x8x8", "--tiers", "8"],
            "--tiers 8: resnet-tiny has 8 stages",
        ),
        (["tiers", "--quotas", "half"], "--quotas 'half'"),
    ],
)
def test_mistakes_are_told(app: typer.Typer, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
    assert result.exception.hint


async def test_every_tier_is_measured_at_every_quota(tmp_path: Path) -> None:
    told: list[tuple[float, int]] = []
    async with fleet(tmp_path, {"dev-1": 16}) as made:
        found = await measure_tiers(
            made.controller,
            model(),
            MODEL,
            cuts=[2, 3],
            quotas=[0.5, 1.0],
            batch_size=8,
            repeats=2,
            on_task=lambda quota, cut: told.append((quota, cut)),
        )
    assert told == [(quota, cut) for quota in (0.5, 1.0) for _ in range(3) for cut in (2, 3)], "the first is a warm-up"
    assert [(each.quota, each.tier, each.cut, len(each.seconds)) for each in found] == [
        (quota, tier, cut, 2) for quota in (0.5, 1.0) for tier, cut in ((1, 2), (2, 3))
    ]
    assert all(seconds > 0 for each in found for seconds in each.seconds)
    table = normalised(found)
    assert [table[0.5][0], table[1.0][0]] == [1.0, 1.0]
    assert spread(table)[0] == (1.0, 0.0)


async def test_a_device_that_fails_ends_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HALVES, "head", buggy("dev-1", HALVES["head"]))
    async with fleet(tmp_path, {"dev-1": 16}) as made:
        with pytest.raises(RunError, match="dev-1 could not do the task: KeyError"):
            await measure_tiers(
                made.controller,
                model(),
                MODEL,
                cuts=[2],
                quotas=[1.0],
                batch_size=8,
                repeats=1,
                on_task=lambda quota, cut: None,
            )
