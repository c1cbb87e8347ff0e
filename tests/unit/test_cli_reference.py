"""`edgebed reference show` and `compare` as a person calls them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from edgebed.errors import UsageError
from orchestrator.cli import reference
from orchestrator.experiment import load
from orchestrator.references.reference import PieceStats, Reference, save_reference
from orchestrator.runs.feasibility import experiment_fleet


def said(*arguments: str) -> str:
    done = CliRunner().invoke(reference.commands, list(arguments), env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def odd(tmp_path: Path) -> str:
    """A reference with what rich would take for markup."""
    stats = [PieceStats(32, 9, 0.01, lag=0.5)]
    work = {"a [red]task[/red]": {"batch": stats, "[bold]update": [PieceStats(2000, 9, 0.01)], "finish": stats}}
    made = Reference(name="odd", origin={"core": "a [blue]core"}, index_s=0.002, work=work)
    save_reference(made, tmp_path / "odd.json")
    save_reference(
        msgspec.structs.replace(made, name="half", work={key: half(kinds) for key, kinds in work.items()}),
        tmp_path / "half.json",
    )
    return str(tmp_path / "odd.json")


def half(kinds: dict[str, list[PieceStats]]) -> dict[str, list[PieceStats]]:
    return {
        kind: [msgspec.structs.replace(each, mean_s=each.mean_s / 2) for each in sizes] for kind, sizes in kinds.items()
    }


def test_what_looks_like_markup_is_printed_as_it_is(odd: str) -> None:
    shown = said("show", odd)
    for text in ("a [red]task[/red]", "[bold]update", "a [blue]core"):
        assert text in shown
    assert "[bold]update" in said("compare", odd, odd.replace("odd.json", "half.json"))


def test_sizes_have_units_and_lag_is_explained(odd: str) -> None:
    shown = said("show", odd)
    assert "32 samples" in shown
    assert "2 kB" in shown
    assert "lag: correlation of a piece with the next one of its task" in shown
    of_server = said("show", "x86-avx512").partition("s2fl's server half")[2].partition("\n\n")[0]
    assert "joined step" in of_server
    assert "32 samples" in of_server
    assert " B " not in of_server


def test_the_ratio_says_which_one_takes_longer(odd: str) -> None:
    shown = said("compare", odd, odd.replace("odd.json", "half.json"))
    assert "ratio: odd ÷ half; above 1, odd takes longer." in shown
    assert " 2 " in next(line for line in shown.splitlines() if "32 samples" in line).rstrip() + " "


# ---- speed and spread in files ----

FLEET = "name: f\nspeed: reference x86-avx512\nspread: true\ndevices: [{profile: cpu1}]\n"
EXPERIMENT = "name: e\nfleet: fleet.yaml\nmethods: [{name: fedavg}]\n"


@pytest.mark.parametrize("word", ["fast", "reference", "reference ", "hosts"])
def test_a_speed_that_is_none_names_those_that_there_are(tmp_path: Path, word: str) -> None:
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    with pytest.raises(UsageError) as refused:
        load(tmp_path / "experiment.yaml", [f"speed={word}"])
    assert "must be text" not in str(refused.value)
    assert "host, or reference and the name or file of one" in refused.value.hint


def test_the_experiments_spread_goes_before_that_of_the_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT)
    assert experiment_fleet(load(path), path).spread is True
    assert experiment_fleet(load(path, ["spread=false"]), path).spread is False
    (tmp_path / "fleet.yaml").write_text(FLEET.replace("spread: true\n", ""))
    assert experiment_fleet(load(path), path).spread is False
