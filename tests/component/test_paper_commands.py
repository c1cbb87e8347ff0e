"""`edgebed reproduce` and the measurement behind `edgebed tiers`, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from edgebed.errors import RunError, UsageError
from edgebed.methods.base import HALVES, CutCost
from orchestrator.cli import reproduce, tiers
from orchestrator.papers.tiers import Measurement, measure_tiers, normalised, spread
from orchestrator.records.compare.ratios import entries
from tests.component._fleet import MODEL, buggy, fleet, model

TABLE = """
title: "A small table"
source: "a paper"
quantities: [rounds_to_target, best_accuracy]
baseline: FedAvg
expects:
  - That it is learned.
  - {text: SplitFed is later, quantity: rounds_to_target, rows: [SplitFed], above: 1}
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


def test_a_quantity_that_no_seed_has_is_not_said_to_be_a_target_that_was_missed() -> None:
    """`compute_s` has no value where no device was the straggler, though the target was reached."""
    values = {("tier 1", "case 1", 1): None, ("tier 1", "case 1", 2): None, ("fedavg", "case 1", 1): 2.0}
    found = entries(values, ["tier 1", "fedavg", "tier 2"], ["case 1"], "fedavg", {})
    assert [reproduce.text_of(entry) for entry in found] == ["0 of 2", "2  1.00 ×", "not run"]


def test_counted_operations_are_those_of_the_paper(app: typer.Typer) -> None:
    found = json.loads(call(app, "reproduce", "fedpmt-table2", "--json").stdout)
    assert found["ours"] == found["paper"] != {}
    said = call(app, "reproduce", "fedpmt-table2").stdout
    assert "equal" in said
    assert "DIFFERS" not in said


def test_seven_cuts_are_read_as_the_first_six_and_the_deepest_six(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table 2 of DTFL has six tiers and does not say of which cuts: each reading is relative to its own first cut."""

    async def measured(*_: object) -> list[Measurement]:
        return [Measurement(0.5, cut, cut, (float(cut),)) for cut in range(1, 8)]

    monkeypatch.setattr(tiers, "_measure", measured)
    monkeypatch.setattr(tiers, "profile_cuts", lambda net, cuts, *_: {c: CutCost(c, 1, 1, 1.0, 8.0 - c) for c in cuts})
    found = json.loads(call(app, "reproduce", "dtfl-table2", "--json").stdout)
    first, deepest = found["readings"]
    assert (first["cuts"], deepest["cuts"]) == ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7])
    assert first["device"]["0.5"] == [1, 2, 3, 4, 5, 6]
    assert first["server"] == pytest.approx([each / 7 for each in (7, 6, 5, 4, 3, 2)])
    assert deepest["device"]["0.5"] == [1, 1.5, 2, 2.5, 3, 3.5]
    assert {key: found[key] for key in deepest} == deepest
    said = call(app, "reproduce", "dtfl-table2").stdout
    assert said.count("server, DTFL table 2") == 2
    six = json.loads(call(app, "tiers", "--json").stdout)
    assert [reading["cuts"] for reading in six["readings"]] == [[2, 3, 4, 5, 6, 7]]


def test_a_table_of_variances_is_shown_beside_the_paper_s(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(call(app, "reproduce", "early-exit-table3", "--seeds", "9", "--json").stdout)
    assert list(found["tables"]) == ["classifier", "shared", "reached", "tensors"]
    assert [cell["paper"] for cell in found["tables"]["shared"]] == [0.00374, 0.00224, 0.00101]
    assert all(cell["mean"] > 0 for cells in found["tables"].values() for cell in cells)
    agreed = call(app, "reproduce", "early-exit-table3", "--seeds", "9", "--check").stdout
    assert agreed == "early-exit-table3 exit 1, cifar10, seed 9: agrees\n"
    with pytest.raises(UsageError, match="trains nothing"):
        CliRunner().invoke(app, ["reproduce", "early-exit-table3", "--throttled"], catch_exceptions=False)


def test_eq_1_of_s2fl_gives_its_table_3(app: typer.Typer) -> None:
    found = json.loads(call(app, "reproduce", "s2fl-eq1", "--json").stdout)
    assert all(check["agrees"] for check in found)
    assert {check["method"] for check in found} == {"fedavg", "sfl"}
    said = call(app, "reproduce", "s2fl-eq1").stdout
    assert "equal" in said
    assert "DIFFERS" not in said


def test_a_table_is_made_once_and_shown_beside_the_paper_s(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.yaml").write_text(TABLE)
    said = " ".join(call(app, "reproduce", str(tmp_path / "table.yaml")).stdout.split())
    assert "A small table – rounds_to_target, simulated, scale digits" in said
    assert "8 2.00 ×" in said, "the paper's"
    assert "The paper claims: That it is learned." in said
    ratio = "SplitFed ÷ FedAvg above 1; SplitFed, IID: 1.00"
    assert f"The paper claims: SplitFed is later: cannot be told ({ratio})" in said, "one seed"
    made = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")}
    assert len(made) == 2
    found = json.loads(call(app, "reproduce", str(tmp_path / "table.yaml"), "--json").stdout)
    cells = {cell["row"]: cell for cell in found["tables"]["rounds_to_target"]}
    assert (cells["FedAvg"]["mean"], cells["SplitFed"]["paper_ratio"]) == (1.0, 2.0)
    assert {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")} == made, "they are read"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce", "dtfl-tabel3"], "did you mean 'dtfl-table3'"),
        (["reproduce", "fedpmt-table2", "--seeds", "1"], "takes no option"),
        (["reproduce", "dtfl-table3", "--seeds", "one"], "--seeds 'one'"),
        (["reproduce", "dtfl-table3", "--cells", "3/2"], "--cells '3/2'"),
        (["reproduce", "dtfl-table3", "--scale", "ful"], "did you mean 'full'"),
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
