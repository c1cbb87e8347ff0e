"""Cells of the papers' tables as files: what keeps one fresh, what is refused, and what the page of results says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgebed.errors import UsageError
from edgebed.models.staged import digest
from edgebed.wire.messages import Assignment, Report, Task, Update, Upload, encode
from orchestrator.files.shipped import shipped
from orchestrator.papers import page
from orchestrator.papers.agreement import differ_at_start, differences, gather
from orchestrator.papers.cells import (
    Cell,
    Damaged,
    FirstRounds,
    Made,
    Source,
    kept,
    read_cell,
    same_settings,
    settings_of,
    write_cell,
)
from orchestrator.papers.compute import refuse_measured
from orchestrator.papers.entries import Selection, wanted_jobs
from orchestrator.papers.reproducing import measured
from orchestrator.papers.tables import Claim, Job, jobs, load_reproduction
from orchestrator.papers.verdicts import judge, ours_of
from orchestrator.papers.workers import own
from orchestrator.records.compare.quantities import RunFigures

TABLE = """
title: "Small, table 1: rounds"
source: "a paper"
quantities: [rounds_to_target, best_accuracy]
baseline: a
expects:
  - "Words without a rule."
  - {text: "b needs fewer rounds.", quantity: rounds_to_target, rows: [b], below: 1}
experiment:
  name: small
  fleet: dtfl-5
  methods: [{name: fedavg}]
  training: {rounds: 4, target_accuracy: 0.5}
  simulation: {cost: flops}
rows: {a: {}, b: {methods: [{name: splitfed}]}}
columns: {x: {}}
figures: {rounds_to_target: {a: [4], b: [2]}}
scale: {about: As it is., seeds: [1, 2]}
"""

MADE = Made(
    torch_simd="AVX2",
    versions={"torch": "2"},
    threads=1,
    commit="abc",
    costs="flops",
    date="2026-11-23",
    hours=0.5,
    cpu_hours=0.25,
    memory_mib=300,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TABLE)
    return path


def made(table: Path, job: Job, accuracy: list[float | None], simd: str = "AVX2") -> Cell:
    return Cell(
        table="small",
        scale="digits",
        row=job.row,
        columns=job.columns,
        seed=job.seed,
        settings=settings_of(job, table),
        first_rounds=FirstRounds(["1", "2"], [1.0, 2.0]),
        figures=RunFigures(
            target_accuracy=0.5,
            accuracy=accuracy,
            elapsed_s=[1.0, 2.0, 3.0, 4.0][: len(accuracy)],
            bytes=[1, 1, 1, 1][: len(accuracy)],
        ),
        made=msgspec.structs.replace(MADE, torch_simd=simd),
    )


def all_jobs(table: Path) -> list[Job]:
    return jobs(load_reproduction(table), table, "digits")


def first_of(results: Path) -> Path:
    return results / "small" / "digits" / "a--x--seed1.json"


def compute_all(table: Path, results: Path) -> None:
    """Cells in which b needs half as many rounds as a."""
    for job in all_jobs(table):
        write_cell(results, made(table, job, [0.1, 0.2, 0.3, 0.5] if job.row == "a" else [0.1, 0.5, 0.5, 0.5]))


def test_a_cell_is_read_as_it_was_written_and_an_edited_one_is_refused(table: Path, tmp_path: Path) -> None:
    job = all_jobs(table)[0]
    path = write_cell(tmp_path / "results", made(table, job, [0.1, 0.2, 0.3, 0.5]))
    assert read_cell(path).figures.accuracy == [0.1, 0.2, 0.3, 0.5]
    assert kept(tmp_path / "results", "small", "digits", job, table).why == ""
    path.write_text(path.read_text().replace("0.3,0.5", "0.3,0.9"))
    with pytest.raises(Damaged, match="was edited"):
        read_cell(path)
    assert "was edited" in kept(tmp_path / "results", "small", "digits", job, table).why


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b'{"table": "\xff"}', b"{}", b""])
def test_a_file_that_is_no_cell_is_refused(body: bytes, table: Path, tmp_path: Path) -> None:
    job = all_jobs(table)[0]
    path = write_cell(tmp_path, made(table, job, [0.1, 0.2, 0.3, 0.5]))
    path.write_bytes(body)
    assert "holds no cell" in kept(tmp_path, "small", "digits", job, table).why


def test_a_cell_in_the_place_of_another_one_does_not_count(table: Path, tmp_path: Path) -> None:
    one, other = all_jobs(table)[:2]
    source, place = (write_cell(tmp_path, made(table, job, [0.1, 0.2, 0.3, 0.5])) for job in (one, other))
    place.write_bytes(source.read_bytes())
    assert "holds another cell" in kept(tmp_path, "small", "digits", other, table).why


@pytest.mark.parametrize("folder", ["other/digits", "small/digit"])
def test_cells_of_an_unknown_table_or_scale_are_told(folder: str, table: Path, tmp_path: Path) -> None:
    compute_all(table, tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    (refused,) = page.make(tmp_path, [table]).refused
    assert refused.endswith("there is no such table or scale")


def test_the_page_wants_no_more_cells_for_one_in_the_place_of_another(table: Path, tmp_path: Path) -> None:
    compute_all(table, tmp_path)
    elsewhere = write_cell(tmp_path / "elsewhere", msgspec.structs.replace(read_cell(first_of(tmp_path)), seed=99))
    first_of(tmp_path).write_bytes(elsewhere.read_bytes())
    assert [part.wanted for part in page.make(tmp_path, [table]).parts] == [len(all_jobs(table))]


def test_a_cell_without_values_of_a_table_that_trains_nothing_does_not_count(tmp_path: Path) -> None:
    variances = shipped("profiles") / "experiments" / "papers" / "early-exit-table3.yaml"
    job = jobs(load_reproduction(variances), variances, "digits")[0]
    cell = msgspec.structs.replace(made(variances, job, []), table=variances.stem, figures=None)
    write_cell(tmp_path, cell)
    assert "its figures are not" in kept(tmp_path, variances.stem, "digits", job, variances).why
    write_cell(tmp_path, msgspec.structs.replace(cell, values={"v": {"exit 1": 1.0}}))
    assert kept(tmp_path, variances.stem, "digits", job, variances).why == ""


def test_rows_whose_cells_would_have_one_file_are_refused(table: Path) -> None:
    table.write_text(TABLE.replace("rows: {", "rows: {α: {}, β: {}, "))
    with pytest.raises(UsageError, match="the files of α, β would have one name"):
        load_reproduction(table)


def test_intervals_without_bounds_are_on_the_page(table: Path, tmp_path: Path) -> None:
    """Two seeds that contradict one another by a factor of 150 each."""
    table.write_text(TABLE.replace("rounds: 4", "rounds: 150"))
    for job in all_jobs(table):
        late = (job.row == "a") == (job.seed == 1)
        cell = made(table, job, [0.1] * 149 + [0.5] if late else [0.5] * 150)
        seconds = [1.0 * number for number in range(1, 151)]
        figures = msgspec.structs.replace(cell.figures, elapsed_s=seconds, bytes=[1] * 150)
        write_cell(tmp_path, msgspec.structs.replace(cell, figures=figures))
    assert "e+" in page.make(tmp_path, [table]).text


def test_a_seed_that_is_named_twice_is_one_seed(table: Path) -> None:
    loaded = load_reproduction(table)
    assert wanted_jobs(loaded, table, Selection(seeds=(1, 1))) == wanted_jobs(loaded, table, Selection(seeds=(1,)))


def test_a_lock_that_is_a_link_empties_no_file_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    mine, (linked, piped) = tmp_path / "mine.txt", (tmp_path / "linked", tmp_path / "piped")
    mine.write_text("kept")
    for folder in (linked, piped):
        folder.mkdir()
    (linked / "lock").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links"), own(linked, anew=False):
        pass
    os.mkfifo(piped / "lock")
    (piped / "elsewhere").symlink_to(linked)
    with own(piped, anew=True) as ours:
        assert ours
    assert (mine.read_text(), (linked / "lock").is_symlink(), (piped / "elsewhere").exists()) == ("kept", True, False)


def test_a_cell_that_took_less_than_a_nanosecond_is_none(table: Path, tmp_path: Path) -> None:
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    assert cell.figures is not None
    seconds = [each * 1e-300 for each in cell.figures.elapsed_s]
    path = write_cell(
        tmp_path, msgspec.structs.replace(cell, figures=msgspec.structs.replace(cell.figures, elapsed_s=seconds))
    )
    with pytest.raises(Damaged, match="no run gives its figures"):
        read_cell(path)


def test_a_cell_is_stale_once_the_table_sets_something_else(table: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    compute_all(table, results)
    table.write_text(TABLE.replace("rounds: 4", "rounds: 5"))
    assert {kept(results, "small", "digits", job, table).why for job in all_jobs(table)} == {
        "stale: the table's file has other settings now"
    }


def test_a_key_that_is_newer_than_a_cell_has_its_default_there(table: Path) -> None:
    now = settings_of(all_jobs(table)[0], table)
    older = msgspec.json.decode(msgspec.json.encode(now), type=type(now))
    del older.experiment["training"]["cosine"]
    del older.experiment["methods"][0]["draw"]
    assert same_settings(older, now)
    older.experiment["training"]["epochs"] = 2
    assert not same_settings(older, now)
    older.experiment["training"]["gone"] = 1
    assert not same_settings(older, now)


def test_a_cell_of_sfl_counts_though_sfl_sets_most_options_of_s2fl_itself(table: Path) -> None:
    table.write_text(TABLE.replace("splitfed", "sfl"))
    (now,) = (settings_of(job, table) for job in all_jobs(table) if (job.row, job.seed) == ("b", 1))
    older = msgspec.json.decode(msgspec.json.encode(now), type=type(now))
    del older.experiment["methods"][0]["grouping"]
    assert same_settings(older, now)
    older.experiment["methods"][0]["sliding"] = True
    assert not same_settings(older, now)


def test_parts_of_the_cells_are_all_of_them_once(table: Path) -> None:
    loaded = load_reproduction(table)
    parts = [wanted_jobs(loaded, table, Selection(part=(number, 3))) for number in (1, 2, 3)]
    found = [(job.row, job.seed) for part in parts for job in part]
    assert sorted(found) == sorted((job.row, job.seed) for job in all_jobs(table))
    assert len(parts[0]) == 2


def test_other_machines_cells_are_taken_in_unless_they_contradict(table: Path, tmp_path: Path) -> None:
    a, b, c, d = all_jobs(table)
    here, other = tmp_path / "results", tmp_path / "other"
    write_cell(here, made(table, a, [0.1, 0.2, 0.3, 0.5]))
    write_cell(other, msgspec.structs.replace(made(table, a, [0.1, 0.2, 0.3, 0.5]), made=MADE))
    write_cell(other, made(table, b, [0.1, 0.2, 0.3, 0.5]))
    assert [read_cell(path).row for path in gather(here, [other])] == ["b"]
    assert gather(here, [other]) == []
    write_cell(other, made(table, c, [0.1, 0.2, 0.3, 0.5]))
    write_cell(other, made(table, a, [0.1, 0.2, 0.3, 0.51]))
    with pytest.raises(UsageError, match=r"a--x--seed1\.json: figures differ"):
        gather(here, [other])
    assert not kept(here, "small", "digits", c, table).path.exists(), "nothing of it was taken in"
    (other / "small" / "digits" / "a--x--seed1.json").write_text("{}")
    with pytest.raises(Damaged, match="holds no cell"):
        gather(here, [other])
    assert d.row == "b"


def test_a_cell_of_an_older_version_and_its_copy_agree_in_either_folder(table: Path, tmp_path: Path) -> None:
    """Its settings lack a key that is newer."""
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    fewer = {name: value for name, value in cell.settings.experiment.items() if name != "plugins"}
    older = msgspec.structs.replace(cell, settings=msgspec.structs.replace(cell.settings, experiment=fewer))
    for place, other in ((cell, older), (older, cell), (older, msgspec.structs.replace(older, made=MADE))):
        write_cell(tmp_path / "results", place)
        write_cell(tmp_path / "other", msgspec.structs.replace(other, made=msgspec.structs.replace(MADE, hours=9.0)))
        assert gather(tmp_path / "results", [tmp_path / "other"]) == []


def test_cells_in_a_linked_folder_are_seen_here_and_there(table: Path, tmp_path: Path) -> None:
    job = all_jobs(table)[0]
    for name, last in (("here", 0.5), ("there", 0.51)):
        path = write_cell(tmp_path / f"disk-{name}", made(table, job, [0.1, 0.2, 0.3, last]))
        (tmp_path / name).mkdir()
        (tmp_path / name / "small").symlink_to(path.parents[1])
    with pytest.raises(UsageError, match=r"a--x--seed1\.json: figures differ"):
        gather(tmp_path / "here", [tmp_path / "there"])
    assert len(gather(tmp_path / "new", [tmp_path / "there"])) == 1


def test_a_folder_above_or_below_that_of_results_is_refused(table: Path, tmp_path: Path) -> None:
    """Who is told that nothing was to take in may remove it."""
    compute_all(table, tmp_path / "other" / "results")
    (tmp_path / "other" / "results" / "learned").mkdir()
    (tmp_path / "other" / "results" / "learned" / "0123456789abcdef.json").write_text("{}")
    for folder in (tmp_path / "other", tmp_path / "other" / "results" / "small"):
        with pytest.raises(UsageError, match="there is no cell in"):
            gather(tmp_path / "results", [folder])
    assert len(gather(tmp_path / "results", [tmp_path / "other" / "results"])) == len(all_jobs(table))


@pytest.mark.parametrize("name", ["..", "", "learned", "é"])
def test_a_cell_of_no_table_is_not_taken_in(name: str, table: Path, tmp_path: Path) -> None:
    cell = msgspec.structs.replace(made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5]), table=name)
    path = write_cell(tmp_path / "elsewhere", cell)
    place = tmp_path / "other" / "small" / "digits" / path.name
    place.parent.mkdir(parents=True)
    path.rename(place)
    with pytest.raises(Damaged, match="no table has this name"):
        gather(tmp_path / "results", [tmp_path / "other"])


def test_cells_of_other_vector_units_may_differ_a_little(table: Path) -> None:
    job = all_jobs(table)[0]
    one = made(table, job, [0.1, 0.2, 0.3, 0.5])
    assert differences(one, made(table, job, [0.1, 0.2, 0.3, 0.51])) == ["figures differ"]
    assert differences(one, made(table, job, [0.1, 0.2, 0.3, 0.52], simd="AVX512")) == []
    assert differences(one, made(table, job, [0.1, 0.2, 0.3, 0.53], simd="AVX512")) == ["best accuracy 0.500 and 0.530"]
    far = msgspec.structs.replace(
        made(table, job, [0.1, 0.2, 0.3, 0.5], simd="AVX512"), first_rounds=FirstRounds(["3", "4"], [1.0, 2.001])
    )
    assert differences(one, far) == ["the norms of the first rounds' weights differ: [1.0, 2.001], not [1.0, 2.0]"]


def test_seconds_and_bytes_are_compared_though_a_cell_says_that_another_cpu_made_it(table: Path) -> None:
    """They are counted; whoever edits a cell may name what CPU he likes."""
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5], simd="AVX512")
    assert cell.figures is not None
    for change in ({"elapsed_s": [0.5, 1.0]}, {"bytes": [1, 2]}):
        now = msgspec.structs.replace(cell.figures, **change)
        (name,) = change
        (found,) = differ_at_start(cell, cell.first_rounds, now, exact=False)
        assert found.startswith("bytes of" if name == "bytes" else "seconds of")
    fewer = msgspec.structs.replace(cell, first_rounds=FirstRounds())
    assert differ_at_start(fewer, cell.first_rounds, cell.figures, exact=False) == [
        "the norms of the first rounds' weights differ: [1.0, 2.0], not []"
    ]


def test_a_folder_of_others_gives_no_files_of_this_host(table: Path, tmp_path: Path) -> None:
    here, other, secret = tmp_path / "results", tmp_path / "other", tmp_path / "secret.json"
    here.mkdir()
    secret.write_text('{"auth": "of a registry"}')
    (other / "learned").mkdir(parents=True)
    (other / "learned" / "0123456789abcdef.json").symlink_to(secret)
    with pytest.raises(Damaged, match="no file of that folder"):
        gather(here, [other])
    (other / "learned" / "0123456789abcdef.json").unlink()
    (other / "learned").rmdir()
    (other / "learned").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(Damaged, match="no file of that folder"):
        gather(here, [other])
    assert list(here.rglob("*.json")) == []


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1},
        {"seed": 1 << 64},
        {"figures": {"elapsed_s": [-4.0, -3.0, -2.0, -1.0]}},
        {"figures": {"elapsed_s": [4.0, 3.0, 2.0, 1.0]}},
        {"figures": {"elapsed_s": [1.0]}},
        {"figures": {"bytes": [10**400] * 4}},
        {"figures": {"accuracy": [7.0] * 4}},
        {"figures": {"accuracy": [], "elapsed_s": [], "bytes": []}},
        {"figures": None, "values": {"best_accuracy": {"a": -1.0}}},
        {"learned": Source("/dev/zero", "bits", 1.0)},
        {"learned": Source("../results/small/digits/a--x--seed1.json", "bits", 1.0)},
        {"learned": Source("small/digits/\x1b]0;owned\x07.json", "bits", 1.0)},
        {"made": msgspec.structs.replace(MADE, cpu_hours=-1e300)},
    ],
    ids=str,
)
def test_a_sealed_cell_that_no_run_gives_is_not_taken_in_and_stops_no_page(
    change: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    """A seal is no signature: whoever edits a file can seal it again."""
    other = tmp_path / "other"
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    if change.get("figures"):
        change = {"figures": msgspec.structs.replace(cell.figures, **change["figures"])}
    path = write_cell(other, msgspec.structs.replace(cell, **change))
    with pytest.raises(Damaged, match="holds no cell"):
        gather(tmp_path / "results", [other])
    assert not (tmp_path / "results").exists()
    (refused,) = page.make(other, [table]).refused
    assert refused.startswith(f"{path}")
    assert refused.isprintable()


@pytest.mark.parametrize(
    "change",
    [
        {"experiment": {}},
        {"experiment": {"methods": 1}},
        {"experiment": {"methods": [{}]}},
        {"experiment": {"methods": [1]}},
        {"probe": {}},
    ],
    ids=str,
)
def test_settings_that_are_no_experiment_are_other_settings(
    change: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    settings = msgspec.structs.replace(cell.settings, **change)
    write_cell(tmp_path, msgspec.structs.replace(cell, settings=settings))
    (refused,) = page.make(tmp_path, [table]).refused
    assert refused.endswith("stale: the table's file has other settings now")


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {"target_accuracy": 0.1}},
        {"figures": None, "values": {"rounds_to_target": {"b": 0.01}, "best_accuracy": {"b": 99.0}}},
        {"figures": None},
    ],
    ids=str,
)
def test_a_cell_without_the_figures_of_its_settings_does_not_count(
    change: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    """Values without a run would be those of all rows, and a lower target would be reached sooner."""
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    if change["figures"]:
        change = {"figures": msgspec.structs.replace(cell.figures, **change["figures"])}
    path = write_cell(tmp_path, msgspec.structs.replace(cell, **change))
    made_page = page.make(tmp_path, [table])
    assert (made_page.refused, made_page.parts) == (
        [f"{path} was edited: its figures are not those of its settings"],
        [],
    )


def test_a_pipe_among_the_results_is_not_waited_for(table: Path, tmp_path: Path) -> None:
    path = write_cell(tmp_path, made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5]))
    path.unlink()
    os.mkfifo(path)
    assert "holds no cell" in kept(tmp_path, "small", "digits", all_jobs(table)[0], table).why


def test_a_copy_of_a_stale_cell_does_not_make_it_count_again(table: Path, tmp_path: Path) -> None:
    """A check has found that its first rounds are others now; one that was computed since then replaces it."""
    here, other = tmp_path / "results", tmp_path / "other"
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    path = write_cell(here, msgspec.structs.replace(cell, stale="2026-11-24: the weights differ"))
    write_cell(other, cell)
    assert gather(here, [other]) == []
    assert read_cell(path).stale
    write_cell(other, made(table, all_jobs(table)[0], [0.2, 0.3, 0.4, 0.5]))
    assert gather(here, [other]) == [path]
    assert read_cell(path).stale == ""


def test_texts_of_a_cell_reach_neither_page_nor_terminal_as_markup(table: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    compute_all(table, results)
    path = results / "small" / "digits" / "a--x--seed1.json"
    how = msgspec.structs.replace(MADE, commit="<script>alert(1)</script>", costs="[x](javascript:alert(1))")
    write_cell(results, msgspec.structs.replace(read_cell(path), made=how))
    text = page.make(results, [table]).text
    assert "script alert(1)" in text
    assert "<script>" not in text
    assert "](javascript" not in text
    write_cell(results, msgspec.structs.replace(read_cell(path), stale="\x1b]0;owned\x07"))
    (refused,) = page.make(results, [table]).refused
    assert refused.isprintable()
    path.write_text('{"\\u001b]0;owned": 1}')
    (refused,) = page.make(results, [table]).refused
    assert refused.isprintable()


def test_the_page_says_what_disk_a_cell_took_where_one_says_it(table: Path, tmp_path: Path) -> None:
    compute_all(table, tmp_path)
    assert "at most 300 MiB of memory each" in page.make(tmp_path, [table]).text
    cell = read_cell(first_of(tmp_path))
    write_cell(tmp_path, msgspec.structs.replace(cell, made=msgspec.structs.replace(cell.made, disk_mib=7)))
    assert "at most 300 MiB of memory and 7 MiB of disk each" in page.make(tmp_path, [table]).text


def test_values_of_other_rows_differ(table: Path) -> None:
    job = all_jobs(table)[0]
    one, other = (
        msgspec.structs.replace(made(table, job, [], simd), figures=None, values={"v": rows})
        for simd, rows in (("AVX2", {"a": 1.0, "b": 1.0}), ("AVX512", {"a": 1.0}))
    )
    assert differences(one, other) == differences(other, one) == ["quantities or rows differ"]


def test_measured_costs_are_refused(table: Path) -> None:
    for simulation, method, why in [
        ("{}", "fedavg", "simulation.cost is left out"),
        ("{cost: reference}", "fedavg", "simulation.cost is reference"),
        ("{cost: timed}", "fedavg", "simulation.cost is timed"),
        ("{cost: operations}", "dtfl", "dtfl plans with the costs of the cuts"),
    ]:
        table.write_text(TABLE.replace("{cost: flops}", simulation).replace("fedavg", method))
        with pytest.raises(UsageError, match=why):
            refuse_measured(all_jobs(table)[0].experiment, table)
    table.write_text(TABLE.replace("{cost: flops}", "{cost: reference x86-avx512}"))
    refuse_measured(all_jobs(table)[0].experiment, table)
    table.write_text(TABLE.replace("fedavg", "dtfl"))
    refuse_measured(all_jobs(table)[0].experiment, table)


def test_a_task_has_the_bytes_that_the_cells_under_results_were_computed_with() -> None:
    """A new field of a message is on every simulated link, and makes all cells stale: leave it out where it is unset,
    as `Task.state` is, or compute all cells again."""
    work = Assignment("d", {"name": "fcnn"}, 10, (1, 8, 8), 3, "output")
    report = Report(1, 1, 0.5, 0.5, 0.5, None, 1, 0.5, 1, 0.5, 0.5)
    sent = (Task("t", "r", 1, work), Update("d", "t", report), Upload("d", "t", 1, 1))
    assert [len(encode(each)) for each in sent] == [481, 400, 45]


def test_what_differs_in_the_first_rounds_is_told_with_its_figures(table: Path) -> None:
    cell = made(table, all_jobs(table)[0], [0.1, 0.2, 0.3, 0.5])
    assert cell.figures is not None
    now = msgspec.structs.replace(cell.figures, bytes=[1, 2], elapsed_s=[1.0, 2.0], accuracy=[0.1, 0.2])
    assert differ_at_start(cell, cell.first_rounds, now, exact=True) == [
        "bytes of the first rounds differ: [1, 2], not [1, 1]"
    ]


def test_a_digest_sees_every_bit_and_name() -> None:
    torch = pytest.importorskip("torch")
    weights = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    assert digest(weights) == digest(dict(reversed(weights.items())))
    assert digest(weights) != digest({**weights, "b": torch.ones(1) + 2**-23})
    assert digest(weights) != digest({"a": weights["a"], "c": weights["b"]})
    assert digest(weights) != digest({**weights, "a": torch.zeros(3, 2)})


# ---- verdicts ----


def verdict(a: list[float | None], b: list[float | None], **limits: float) -> str:
    claim = Claim(text="", quantity="q", rows=["b"], **limits)  # type: ignore[arg-type]
    values = {("a", "x", seed): value for seed, value in enumerate(a)}
    values |= {("b", "x", seed): value for seed, value in enumerate(b)}
    found = judge(claim, "a", ["x"], values, {})
    assert found is not None
    return found.word


def test_a_claim_holds_only_if_the_whole_interval_lies_within_its_limits() -> None:
    assert verdict([10, 10, 10], [5, 5.1, 4.9], below=1) == "holds"
    assert verdict([10, 10, 10], [15, 15.1, 14.9], below=1) == "does not hold"
    assert verdict([10, 10, 10], [9, 10.5, 9.5], below=1) == "cannot be told"
    assert verdict([10, 10, 10], [12, 12.1, 11.9], above=1 / 1.35, below=1.35) == "holds"
    assert verdict([10, 10, 10], [5, 5.1, 4.9], above=1 / 1.35, below=1.35) == "does not hold"


def test_one_seed_or_a_target_that_was_missed_proves_nothing() -> None:
    assert verdict([10], [5], below=1) == "cannot be told"
    assert verdict([10, 10, 10], [5, 5.1, None], below=1) == "cannot be told"
    assert verdict([10, 10, 10], [5, 5.1], below=1) == "cannot be told", "a cell is missing"


def test_a_cell_that_was_not_run_is_not_one_that_did_not_reach_the_target() -> None:
    def ours(a: dict[int, float | None], b: dict[int, float | None], *seeds: int) -> tuple[str, str]:
        claim = Claim(text="", quantity="q", rows=["b"], below=1)
        values = {("a", "x", seed): value for seed, value in a.items()}
        values |= {("b", "x", seed): value for seed, value in b.items()}
        found = judge(claim, "a", ["x", "y"], values, {}, seeds)
        assert found is not None
        assert [(pair.column, ours_of(pair)) for pair in found.pairs[1:]] == [("y", "not run")]
        return ours_of(found.pairs[0]), found.pairs[0].word

    assert ours({}, {1: 5}) == ("not run: a with seed 1", "cannot be told")
    assert ours({1: 10}, {2: 5}) == ("not run: b with seed 1; a with seed 2", "cannot be told")
    assert ours({1: 10, 2: 10}, {1: 5, 2: 5, 3: 5}) == ("0.50 [0.50, 0.50] (not run: a with seed 3)", "cannot be told")
    assert ours({1: None}, {1: 5, 2: 5}) == (
        "reached by both in 0 of 1 seeds (not run: a with seed 2)",
        "cannot be told",
    )
    assert ours({1: None}, {1: None}) == ("reached by both in 0 of 1 seeds", "cannot be told")
    assert ours({1: 10, 2: 10}, {1: 5, 2: 5}) == ("0.50 [0.50, 0.50]", "holds")
    assert ours({1: 10, 2: 10}, {1: 9.98, 2: 9.981}) == ("0.9980 [0.9974, 0.9987]", "holds")
    assert ours({1: 10, 2: 10}, {1: 9.98, 2: 9.96})[0] == "0.997 [0.984, 1.010]"
    assert ours({1: 10, 2: 10}, {1: 5, 2: 5}, 1, 2) == ("0.50 [0.50, 0.50]", "holds")
    two = ours({1: 10, 2: 10}, {1: 5, 2: 5}, 1, 2, 3)
    assert two == ("0.50 [0.50, 0.50] (not run: seed 3)", "cannot be told"), "else one might stop when it suits"


def test_a_part_of_the_seeds_is_said_beside_what_follows_from_it(table: Path, tmp_path: Path) -> None:
    """Two seeds that were chosen may give a verdict that the table's seeds do not."""
    compute_all(table, tmp_path)

    def how(*seeds: int) -> str:
        return measured(load_reproduction(table), table, Selection(seeds=seeds), tmp_path).how

    assert [how(), how(1, 2, 3)] == ["simulated, scale digits"] * 2
    assert [how(1), how(4, 5)] == [f"simulated, scale digits, {some} alone" for some in ("seed 1", "seeds 4, 5")]


# ---- the page ----


def write_page(table: Path, results: Path, docs: Path) -> str:
    page.write(page.make(results, [table]), docs)
    return (docs / "results.md").read_text()


def test_the_page_holds_the_figures_of_the_cells(table: Path, tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    compute_all(table, results)
    text = write_page(table, results, docs)
    assert "| Small, table 1: b needs fewer rounds. (rounds_to_target: b ÷ a below 1) | **holds** | x: 0.50 |" in text
    assert "| b | 2, 0.50 [0.50, 0.50]<br>2, 0.50 |" in text
    assert "4 cells, seeds 1, 2, 1 CPU hours" in text
    made = page.make(results, [table])
    assert (made.refused, page.differences(made, docs)) == ([], [])


def test_counts_on_the_page_are_in_the_singular_and_of_the_cells_that_are_computed(table: Path, tmp_path: Path) -> None:
    write_cell(tmp_path / "results", made(table, all_jobs(table)[0], [0.5]))
    assert "1 of 4 cells, seed 1, 0.25 CPU hours" in page.make(tmp_path / "results", [table]).text
    one_pass = Path(__file__).parents[2] / "profiles" / "experiments" / "papers" / "early-exit-table3.yaml"
    assert "digits: 3 cells, seeds 9, 42, 67" in page.make(one_pass.parents[3] / "results", [one_pass]).text


def test_a_figure_that_no_fresh_cell_supports_cannot_stand_on_the_page(table: Path, tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    compute_all(table, results)
    write_page(table, results, docs)
    cell = results / "small" / "digits" / "b--x--seed1.json"
    cell.write_text(cell.read_text().replace("[0.1,0.5,0.5,0.5]", "[0.1,0.4,0.5,0.5]"))
    made = page.make(results, [table])
    assert made.refused == [f"{cell} was edited: its figures are not those that were computed"]
    assert any("2, 0.50 [0.50, 0.50]" in line for line in page.differences(made, docs))
    assert "**cannot be told**" in made.text
    for path in results.rglob("*.json"):
        path.unlink()
    none = page.make(results, [table])
    assert "| b |" not in none.text
    assert page.differences(none, docs)


def test_the_page_says_of_a_stale_cell_that_it_does_not_count(table: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    compute_all(table, results)
    path = results / "small" / "digits" / "a--x--seed2.json"
    write_cell(results, msgspec.structs.replace(read_cell(path), stale="2026-11-24: the weights differ"))
    assert page.make(results, [table]).refused == [f"{path}: stale: 2026-11-24: the weights differ"]


def test_an_edited_page_or_picture_is_seen(table: Path, tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    compute_all(table, results)
    text = write_page(table, results, docs)
    made = page.make(results, [table])
    (docs / "results.md").write_text(text.replace("0.50 [0.50, 0.50]", "0.40 [0.40, 0.40]"))
    assert page.differences(made, docs)
    (docs / "results.md").write_text(text)
    picture = docs / "results" / "small-digits.svg"
    picture.write_text(picture.read_text().replace(made.pictures[0].mark, "0" * 16))
    assert page.differences(made, docs) == [f"{picture}: is not the picture of these cells"]


def test_all_28_tables_and_figures_are_listed_and_name_files_that_exist() -> None:
    folder = Path(__file__).parents[2] / "profiles" / "experiments" / "papers"
    known = {path.stem for path in folder.glob("*.yaml")}
    named = {name for each in page.listed() for name in each.files}
    assert len(page.listed()) == 28
    assert named == known
    assert all(each.hours and (each.files or each.instead) for each in page.listed())


def test_the_page_says_of_each_table_what_there_is_or_how_many_hours_it_takes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    lines = text.partition("## All tables and figures\n")[2].partition("\n## ")[0].strip().splitlines()[2:]
    told = {(each[0], each[1]): each[3:] for each in (line.strip("| ").split(" | ") for line in lines)}
    assert list(told) == [(each.paper, each.name) for each in page.listed()]
    for each in page.listed():
        state, hours = told[each.paper, each.name]
        computed = re.search(r"\d+ cells?, seeds? \d", state) or state == (each.instead or "arithmetic, see the claims")
        assert computed or (state.startswith("not run: `edgebed reproduce ") and re.search(r"\d", hours)), each


def test_the_page_of_this_repository_is_that_of_its_cells() -> None:
    root = Path(__file__).parents[2]
    tables = sorted((root / "profiles" / "experiments" / "papers").glob("*.yaml"))
    made = page.make(root / "results", tables)
    assert made.refused == []
    assert page.differences(made, root / "docs") == []
