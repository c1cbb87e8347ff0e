"""Learn once, time many: a run that is timed again, with what another one learned, against a run that trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.errors import RunError, UsageError
from orchestrator.experiment import Environment
from orchestrator.papers.agreement import differences
from orchestrator.papers.cells import Cell, read_cell, settings_of, write_cell
from orchestrator.papers.entries import Selection
from orchestrator.papers.learnings import check_same, key_of, trajectory_of
from orchestrator.papers.reproducing import Checked, Place, check, measured, reproduce
from orchestrator.papers.tables import jobs, load_reproduction
from orchestrator.records.account import load_summary
from orchestrator.records.compare.quantities import figures_of
from orchestrator.runs.request import Watch, quiet
from orchestrator.simulation.run import SimulationRequest, simulate

PAPERS = Path(__file__).parents[2] / "profiles" / "experiments" / "papers"

TABLE = """
title: "A small table"
source: "a paper"
quantities: [rounds_to_target, time_to_target_s]
baseline: FedAvg
experiment:
  name: small
  fleet: fleet.yaml
  data: {name: digits, train_samples: 200, test_samples: 50}
  model: {name: resnet-tiny}
  training: {rounds: 4, target_accuracy: 0.01, stop_at_target: false, batch_size: 20, sample: 0.67, evaluate_every: 2,
             optimizer: {name: sgd, lr: 0.05}}
  simulation: {cost: flops, batched: false}
  methods: [{name: fedavg}]
rows:
  FedAvg: {}
  SplitFed: {methods: [{name: splitfed}]}
  SFL: {methods: [{name: sfl}]}
  tier: {methods: [{name: dtfl, tier: 2}]}
  tier, eq. 5: {methods: [{name: dtfl, tier: 2, overlap: false}]}
  DTFL: {methods: [{name: dtfl}]}
columns:
  fast: {}
  slow: {set: {simulation: {device_flops: 1.0e+9}}}
scale: {about: As it is., seeds: [1]}
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_workers: None) -> Path:
    monkeypatch.setenv("EDGEBED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fleet.yaml").write_text("name: small\ndevices: [{profile: cpu1, count: 2}, {profile: cpu0.2}]\n")
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    return path


def make(table: Path, folder: Path, *rows: str, share: bool = True) -> tuple[dict[str, Cell], list[str]]:
    """The cells by row and column, and what was said."""
    said: list[str] = []
    place, loaded = Place(folder / "results", folder / "work"), load_reproduction(table)
    reproduce(loaded, table, Selection(rows=rows), place, most=2, fresh=False, notify=said.append, share=share)
    files = (folder / "results" / "table").rglob("*.json")
    cells = {f"{cell.row}, {cell.columns[0]}": cell for cell in map(read_cell, files)}
    return cells, said


def trained(cell: Cell) -> Any:
    """What a run gave, apart from who computed it."""
    return cell.figures, cell.first_rounds


def test_static_cuts_are_timed_again_to_the_bit(table: Path, tmp_path: Path) -> None:
    rows = ("tier", "tier, eq. 5")
    whole, _ = make(table, tmp_path / "whole", *rows, share=False)
    again, _ = make(table, tmp_path / "again", *rows)
    sources = {name: cell.learned and (cell.learned.cell, cell.learned.same) for name, cell in again.items()}
    tier = "table/digits/tier--fast--seed1.json"
    assert {name: each for name, each in sources.items() if not name.startswith("FedAvg")} == {
        "tier, fast": None,
        "tier, slow": (tier, "bits"),
        "tier, eq. 5, fast": (tier, "bits"),
        "tier, eq. 5, slow": (tier, "bits"),
    }
    assert {name: trained(cell) for name, cell in again.items()} == {
        name: trained(cell) for name, cell in whole.items()
    }
    assert all(differences(again[name], whole[name]) == [] for name in whole)
    assert again["tier, slow"].figures != again["tier, fast"].figures, "the clock is another one"


def test_fedavg_splitfed_and_sfl_learn_the_same_to_rounding(table: Path, tmp_path: Path) -> None:
    rows = ("SplitFed", "SFL")
    table.write_text(TABLE.replace("  slow: {", "  # slow: {"))
    whole, _ = make(table, tmp_path / "whole", *rows, share=False)
    again, _ = make(table, tmp_path / "again", *rows)
    norms = [whole[f"{row}, fast"].first_rounds.norms for row in ("FedAvg", *rows)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] == pytest.approx(norms[0], rel=1e-5)
    for row in rows:
        own, shared = whole[f"{row}, fast"].figures, again[f"{row}, fast"].figures
        assert own is not None
        assert shared is not None
        assert (own.elapsed_s, own.bytes) == (shared.elapsed_s, shared.bytes), "the clock is the method's own"
        assert [each for each in own.accuracy if each] == pytest.approx(
            [each for each in shared.accuracy if each], abs=0.021
        )
        source = again[f"{row}, fast"].learned
        assert source is not None
        assert (source.cell, source.same) == ("table/digits/FedAvg--fast--seed1.json", "rounding")


def test_a_surrogate_in_stacks_whose_profiles_change_is_timed_again(tmp_path: Path) -> None:
    path = PAPERS / "dtfl-table3.yaml"
    found = {job.row: job.experiment for job in jobs(load_reproduction(path), path, "digits", [1])}

    def run(row: str, learned: Sequence[float] | None = None) -> Path:
        training = msgspec.structs.replace(found[row].training, rounds=2)
        experiment = msgspec.structs.replace(found[row], training=training, environment=Environment(every=1, share=0.5))
        request = SimulationRequest(experiment, path, tmp_path, learned=learned)
        return simulate(request, Watch(quiet))[0]

    known, whole = trajectory_of(run("fedavg")), run("splitfed")
    again = run("splitfed", known.tested)
    check_same(known, again, cuts=False)
    one, other = (figures_of(load_summary(each)) for each in (whole, again))
    accuracies = {"accuracy": other.accuracy}
    assert msgspec.structs.replace(one, **accuracies) == other


def test_what_reads_times_is_refused_with_the_reason(table: Path, tmp_path: Path) -> None:
    def why(method: str, training: str = "rounds: 4", more: str = "") -> str:
        table.write_text(
            TABLE.replace("rows:\n  FedAvg: {}", f"rows:\n  FedAvg: {{methods: [{method}]}}")
            .replace("rounds: 4", training)
            .replace("name: small", f"name: small{more}")
        )
        job = jobs(load_reproduction(table), table, "digits")[0]
        with pytest.raises(UsageError, match="cannot be timed again") as refused:
            key_of(settings_of(job, table))
        return str(refused.value).partition(": ")[2]

    assert why("{name: dtfl}") == "its tiers follow measured times"
    assert why("{name: s2fl}") == "its cuts follow measured times"
    assert why("{name: fedavg, draw: levels}") == "its devices are drawn by their CPUs"
    for method in ("tifl", "fedat", "fedprox", "fedpmt", "heterofl", "feddrop", "drop-slowest", "fedgkt"):
        assert why(f"{{name: {method}}}") == "its plans may follow measured times"
    assert why("{name: fedavg}", "rounds: 4, deadline_s: 9") == "a deadline leaves devices out"
    assert why("{name: fedavg}", "rounds: 4, codec: {dtype: float16}") == "the codec is not float32, or compresses"
    assert why("{name: fedavg}", "rounds: 4, codec: {zstd: true}") == "the codec is not float32, or compresses"
    assert why("{name: fedavg}", more="\n  privacy: {patch_shuffle: 2}") == "features are changed for privacy"
    leaves = "\n  scenario: [{round: 2, device: cpu0.2, do: leave}]"
    assert why("{name: fedavg}", more=leaves) == "a scenario's events come at times"
    weights = "\n  weights: pretrained.safetensors"
    assert why("{name: fedavg}", more=weights) == "the file of its first weights may change"


def test_a_cell_counts_while_the_one_that_learned_counts(table: Path, tmp_path: Path) -> None:
    cells, _ = make(table, tmp_path, "FedAvg")
    source = cells["FedAvg, slow"].learned
    assert source is not None
    results, loaded = tmp_path / "results", load_reproduction(table)

    def computed() -> list[str]:
        found = measured(loaded, table, Selection(rows=["FedAvg"]), results)
        return [column for _, column, _ in found.values["rounds_to_target"]]

    assert computed() == ["fast", "slow"]
    write_cell(results, msgspec.structs.replace(cells["FedAvg, fast"], stale="the weights differ"))
    assert computed() == []
    again, _ = make(table, tmp_path, "FedAvg")
    assert {name: trained(cell) for name, cell in again.items()} == {
        name: trained(cell) for name, cell in cells.items()
    }
    assert again["FedAvg, fast"].learned is None, "it learns itself again"


def test_a_check_computes_a_cell_that_was_timed_again_by_training(table: Path, tmp_path: Path) -> None:
    table.write_text(TABLE.replace("  slow: {", "  # slow: {"))
    make(table, tmp_path, "SplitFed")
    place, loaded = Place(tmp_path / "results", tmp_path / "again"), load_reproduction(table)
    for sample in (None, 2):
        found: list[Checked] = check(
            [(table, loaded, Selection(rows=["SplitFed"]))], place, sample=sample, seed=1, most=2, notify=print
        )
        assert [each.why for each in found] == [""] * 2


def test_what_was_computed_without_sharing_is_shared_while_its_run_is_there(table: Path, tmp_path: Path) -> None:
    make(table, tmp_path, "FedAvg", share=False)
    (tmp_path / "results" / "table" / "digits" / "FedAvg--slow--seed1.json").unlink()
    cells, said = make(table, tmp_path, "DTFL")
    assert cells["FedAvg, slow"].learned is not None
    assert [cells[f"DTFL, {column}"].learned for column in ("fast", "slow")] == [None, None]
    assert "DTFL: dtfl cannot be timed again: its tiers follow measured times" in said


def test_a_run_that_draws_other_devices_is_not_taken_for_the_same(table: Path, tmp_path: Path) -> None:
    make(table, tmp_path, "FedAvg")
    (run,) = (tmp_path / "work").rglob("run/*/")
    known = trajectory_of(run)
    check_same(known, run)
    other = msgspec.structs.replace(known, drawn=[["cpu1-1", "cpu1-2"]] * 4)
    with pytest.raises(RunError, match="draws other devices or cuts"):
        check_same(other, run)
