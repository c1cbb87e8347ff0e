"""Cells of a table, computed by processes: the order and number of the processes change nothing, a check sees a change,
and cells pause while something is timed on the host."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from edgebed.errors import FileError, RunError
from orchestrator.files.timed_host import is_timed, timed
from orchestrator.papers import page
from orchestrator.papers import workers as workers_module
from orchestrator.papers.agreement import gather
from orchestrator.papers.cells import Cell, FirstRounds, read_cell, write_cell
from orchestrator.papers.compute import WorkerRequest
from orchestrator.papers.entries import Selection
from orchestrator.papers.reproducing import Checked, Place, check, reproduce
from orchestrator.papers.tables import load_reproduction
from orchestrator.records.reader import read
from orchestrator.records.types import RoundStarted
from tests import warm
from tests.waiting import until

TABLE = """
title: "A small table"
source: "a paper"
quantities: [rounds_to_target]
baseline: FedPMT
experiment:
  name: small
  fleet: fleet.yaml
  data: {name: digits, train_samples: 200, test_samples: 50}
  model: {name: fcnn, hidden: [16, 12, 10]}
  training: {rounds: 4, target_accuracy: 0.01, stop_at_target: false, batch_size: 20, optimizer: {name: sgd, lr: 0.05}}
  simulation: {cost: operations}
  methods: [{name: fedavg}]
rows:
  FedPMT: {methods: [{name: fedpmt}]}
  FedAvg: {}
columns:
  none: {}
  deadline: {deadline_of: FedPMT}
scale: {about: As it is., seeds: [1]}
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Locks of this test alone, for the tests themselves are timed."""
    monkeypatch.setenv("EDGEBED_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fleet.yaml").write_text("name: small\ndevices: [{profile: cpu1}, {profile: cpu0.2}]\n")
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    return path


def said(line: str) -> None:
    print(line)


def make(
    table: Path, place: Place, most: int, seeds: Sequence[int] = (), rows: Sequence[str] = (), column: str = "none"
) -> None:
    selection = Selection(seeds=seeds, rows=rows, columns=[column])
    reproduce(load_reproduction(table), table, selection, place, most=most, fresh=False, notify=said)


def at(folder: Path) -> Place:
    return Place(folder / "results", folder / "work")


def without_times(results: Path) -> dict[str, Any]:
    """What the files hold, apart from the times that it took and the memory."""
    found = {}
    for path in sorted(results.rglob("*.json")):
        cell = msgspec.json.decode(path.read_bytes())
        del cell["seal"]
        cell["made"] = {k: v for k, v in cell["made"].items() if k in ("torch_simd", "versions", "threads", "costs")}
        found[str(path.relative_to(results))] = cell
    return found


@pytest.mark.usefixtures("warm_workers")
def test_order_and_jobs_do_not_change_a_cell(table: Path, tmp_path: Path) -> None:
    make(table, at(tmp_path / "one"), most=2, seeds=(1, 2), rows=("FedPMT",), column="deadline")
    make(table, at(tmp_path / "other"), most=1, seeds=(2, 1), rows=("FedPMT",), column="deadline")
    one, other = (without_times(tmp_path / name / "results") for name in ("one", "other"))
    assert one == other
    assert len(one) == 2
    assert all(cell["deadline_s"] > 0 and cell["made"]["threads"] == 1 for cell in one.values())
    assert all(read_cell(path).made.disk_mib == 1 for path in (tmp_path / "one" / "results").rglob("*--seed?.json"))


def edit(results: Path, change: Callable[[Cell], Cell]) -> None:
    (path,) = results.rglob("*.json")
    write_cell(results, change(read_cell(path)))


@pytest.mark.usefixtures("warm_workers")
def test_a_check_computes_again_and_says_which_cells_hold(table: Path, tmp_path: Path) -> None:
    place, selection = at(tmp_path), Selection(columns=("none",), rows=("FedPMT",))
    loaded = load_reproduction(table)
    reproduce(loaded, table, selection, place, most=1, fresh=False, notify=said)

    def checked(sample: int | None = None) -> list[str]:
        again = Place(place.results, tmp_path / "again")
        found: list[Checked] = check([(table, loaded, selection)], again, sample=sample, seed=1, most=1, notify=said)
        return [each.why for each in found]

    assert checked() == [""]
    assert checked(sample=3) == [""]
    edit(place.results, lambda cell: msgspec.structs.replace(cell, first_rounds=FirstRounds(["0", "0"], [0.0, 0.0])))
    assert checked() == ["the weights of the first rounds differ"]
    (path,) = place.results.rglob("*.json")
    assert read_cell(path).stale.endswith("the weights of the first rounds differ")
    reproduce(loaded, table, selection, place, most=1, fresh=False, notify=said)
    assert read_cell(path).stale == "", "a stale cell is computed anew"
    edit(
        place.results,
        lambda cell: msgspec.structs.replace(
            cell, figures=msgspec.structs.replace(cell.figures, accuracy=[*cell.figures.accuracy[:3], 0.99])
        ),
    )
    assert checked() == [""], "the first rounds are the same"
    assert checked(sample=1) == ["figures differ"], "one that was computed wholly is not"


@pytest.mark.usefixtures("warm_workers")
def test_two_parts_of_the_cells_gathered_are_those_of_one_machine(table: Path, tmp_path: Path) -> None:
    loaded = load_reproduction(table)

    def part(number: int, of: int, folder: Path) -> None:
        selection = Selection(columns=["none"], part=(number, of))
        reproduce(loaded, table, selection, at(folder), most=1, fresh=False, notify=said)

    part(1, 1, tmp_path / "whole")
    part(1, 2, tmp_path / "first")
    part(2, 2, tmp_path / "second")
    assert len(list((tmp_path / "first" / "results").rglob("*.json"))) == 1
    assert len(gather(tmp_path / "first" / "results", [tmp_path / "second" / "results"])) == 1
    assert without_times(tmp_path / "first" / "results") == without_times(tmp_path / "whole" / "results")


CODE = """
import sys
from orchestrator.papers import compute
from edgebed.methods import fedpmt
from edgebed.methods.parts import local_training
{change}
sys.exit(compute.main())
"""
WEIGHT_DECAY = """
import msgspec
plain = local_training.make_optimizer
local_training.make_optimizer = lambda p, spec: plain(p, msgspec.structs.replace(spec, weight_decay=0.5))
"""
RENAMED = """
fedpmt.FedPmt.other_name, merge = fedpmt.FedPmt.merge, fedpmt.FedPmt.merge
fedpmt.FedPmt.merge = lambda self, *given: self.other_name(*given)
"""


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    ("change", "why"), [(WEIGHT_DECAY, "the weights of the first rounds differ"), (RENAMED, "")], ids=["decay", "name"]
)
def test_a_check_sees_a_changed_weight_decay_and_no_renamed_function(
    change: str, why: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' code is what it would be after the change."""
    loaded, selection = load_reproduction(table), Selection(columns=["none"], rows=["FedPMT"])
    reproduce(loaded, table, selection, at(tmp_path), most=1, fresh=False, notify=said)
    code = CODE.format(change=change)
    monkeypatch.setattr(workers_module, "module_command", lambda _, request: [*warm.python(), "-c", code, request])
    again = Place(tmp_path / "results", tmp_path / "again")
    (found,) = check([(table, loaded, selection)], again, sample=None, seed=1, most=1, notify=said)
    assert found.why.startswith(why) if why else found.why == ""
    (path,) = (tmp_path / "results").rglob("*.json")
    counts = page.make(tmp_path / "results", [table]).refused
    assert ([read_cell(path).stale.partition(": ")[2]] == [found.why]) if why else counts == []
    assert [line.partition(": ")[2][:6] for line in counts] == (["stale:"] if why else [])


NO_DATA = """
if "FedAvg" in sys.argv[1]:
    sys.exit("there are no data")
"""


@pytest.mark.usefixtures("warm_workers")
def test_a_check_that_cannot_compute_one_cell_tells_of_the_others(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose data set is not on this machine."""
    loaded, selection = load_reproduction(table), Selection(columns=["none"])
    reproduce(loaded, table, selection, at(tmp_path), most=1, fresh=False, notify=said)
    code = CODE.format(change=NO_DATA)
    monkeypatch.setattr(workers_module, "module_command", lambda _, request: [*warm.python(), "-c", code, request])
    again = Place(tmp_path / "results", tmp_path / "again")
    found = check([(table, loaded, selection)], again, sample=None, seed=1, most=1, notify=said)
    assert [each.why for each in found] == ["", "ended with 1: there are no data"]
    assert page.make(tmp_path / "results", [table]).refused == [], "nothing was found out about that cell"


@pytest.mark.usefixtures("warm_workers")
def test_two_runs_of_dtfl_with_counted_costs_plan_and_learn_the_same(table: Path, tmp_path: Path) -> None:
    """Its tiers follow times: with `cost: flops` these are equal in every run."""
    dtfl = TABLE.replace("fcnn, hidden: [16, 12, 10]", "resnet-tiny").replace("operations", "flops")
    table.write_text(dtfl.replace("{name: fedpmt}", "{name: dtfl}"))
    for name in ("one", "other"):
        make(table, at(tmp_path / name), 1, rows=("FedPMT",))
    assert without_times(tmp_path / "one" / "results") == without_times(tmp_path / "other" / "results")
    plans = [
        [(each.assignments, each.predicted_s, each.notes) for each in read(path) if isinstance(each, RoundStarted)]
        for name in ("one", "other")
        for path in (tmp_path / name).rglob("records.jsonl")
    ]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 4


@pytest.mark.usefixtures("warm_workers")
def test_a_cell_that_fails_is_told_and_the_others_are_there(table: Path, tmp_path: Path) -> None:
    table.write_text(TABLE.replace("FedAvg: {}", "FedAvg: {model: {name: resnet-tiny}}"))
    with pytest.raises(RunError, match=r"1 cell not computed: .*FedAvg"):
        make(table, at(tmp_path), most=1)
    assert [path.name for path in (tmp_path / "results").rglob("*.json")] == ["FedPMT--none--seed1.json"]


@pytest.mark.usefixtures("warm_workers")
def test_a_plug_in_may_print(table: Path, tmp_path: Path) -> None:
    (tmp_path / "plug.py").write_text(
        "from edgebed.methods.fedavg import FedAvg\n\nprint('hello')\n\n\nclass Mine(FedAvg):\n    name = 'mine'\n"
    )
    table.write_text(TABLE.replace("  name: small\n", "  name: small\n  plugins: [plug.py]\n"))
    make(table, at(tmp_path), most=1, rows=("FedPMT",))
    (log,) = (tmp_path / "work").rglob("log.txt")
    assert "hello" in log.read_text()


def test_what_a_plug_in_prints_does_not_hide_why_a_cell_failed(table: Path, tmp_path: Path) -> None:
    """In a process whose stdout is buffered, as it is for users."""
    (tmp_path / "plug.py").write_text("print('hello')\nraise RuntimeError('the reason')\n")
    table.write_text(TABLE.replace("  name: small\n", "  name: small\n  plugins: [plug.py]\n"))
    request = WorkerRequest(
        str(table), "digits", "FedPMT", "none", 1, str(tmp_path / "work"), str(tmp_path / "results")
    )
    code = [sys.executable, "-m", "orchestrator.papers.compute", msgspec.json.encode(request).decode()]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(code, env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    said, *_, why = ended.stderr.strip().splitlines()
    assert said == "hello"
    assert "the reason" in why


@pytest.mark.usefixtures("warm_workers")
def test_a_log_that_is_a_link_empties_no_file(table: Path, tmp_path: Path) -> None:
    make(table, at(tmp_path), most=1, rows=("FedPMT",))
    mine, (log,) = tmp_path / "mine.txt", (tmp_path / "work").rglob("log.txt")
    mine.write_text("kept")
    log.unlink()
    log.symlink_to(mine)
    shutil.rmtree(tmp_path / "results")
    make(table, at(tmp_path), most=1, rows=("FedPMT",))
    assert (mine.read_text(), log.is_symlink()) == ("kept", False)


@pytest.mark.usefixtures("warm_workers")
def test_a_cell_that_fails_at_once_is_told_at_once(table: Path, tmp_path: Path) -> None:
    make(table, at(tmp_path), most=1)
    for folder in (tmp_path / "work").glob("table/digits/FedPMT*"):
        shutil.rmtree(folder)
        folder.write_text("a file in its place")
    shutil.rmtree(tmp_path / "results")
    told: list[str] = []
    loaded, selection = load_reproduction(table), Selection(columns=["none"])
    with pytest.raises(RunError, match=r"1 cell not computed: .*FedPMT.*File exists"):
        reproduce(loaded, table, selection, at(tmp_path), most=1, fresh=False, notify=told.append)
    assert [line.partition(":")[0] for line in told[1:]] == ["1 of 2", "2 of 2"]
    assert "File exists" in told[1]
    assert "left" not in told[1], "it took no time, which says nothing of the others"


def test_where_results_cannot_be_written_nothing_is_computed(table: Path, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(FileError, match="results"):
        make(table, at(tmp_path), most=1)
    assert not (tmp_path / "work").exists()


@pytest.mark.usefixtures("warm_workers")
def test_what_another_process_computes_is_not_taken_away_from_it(table: Path, tmp_path: Path) -> None:
    loaded, selection, place = load_reproduction(table), Selection(columns=["none"], rows=["FedPMT"]), at(tmp_path)
    reproduce(loaded, table, selection, place, most=1, fresh=False, notify=said)
    (work,) = [lock.parent for lock in place.work.rglob("lock")]
    with workers_module.own(work, anew=False):
        with pytest.raises(RunError, match="another process computes it"):
            reproduce(loaded, table, selection, place, most=1, fresh=True, notify=said)
        assert (work / "run").is_dir()
    with workers_module.own(work, anew=True):
        assert [each.name for each in work.iterdir()] == ["lock"]


def test_two_checks_at_once_do_not_empty_each_other_s_folder(table: Path, tmp_path: Path) -> None:
    at_work = at(tmp_path)
    with workers_module.own(at_work.work, anew=False):
        (at_work.work / "results").mkdir()
        with pytest.raises(RunError, match="another check computes in"):
            check([(table, load_reproduction(table), Selection())], at_work, sample=None, seed=1, most=1, notify=said)
        assert (at_work.work / "results").is_dir()


# ---- the host is timed ----

HOLD = """
import time
from orchestrator.files.timed_host import timed
with timed():
    print("held", flush=True)
    time.sleep(600)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def holder(table: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the host."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def workers() -> list[psutil.Process]:
    """The processes that compute cells."""
    return [each for each in psutil.Process().children() if "orchestrator.papers.compute" in " ".join(each.cmdline())]


async def test_a_cell_waits_while_the_host_is_timed_and_goes_on_after(
    table: Path, tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    work = asyncio.create_task(asyncio.to_thread(make, table, at(tmp_path), 1, (1,), ("FedPMT",)))
    await until(lambda: any(each.status() == psutil.STATUS_STOPPED for each in workers()), 60)
    await until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in workers()), 60)
    assert not list((tmp_path / "results").rglob("*.json"))
    holder.kill()  # the kernel releases what a killed process held
    await work
    assert len(list((tmp_path / "results").rglob("*.json"))) == 1


async def test_what_is_timed_starts_once_cells_pause(table: Path, tmp_path: Path) -> None:
    work = asyncio.create_task(asyncio.to_thread(make, table, at(tmp_path), 2, (1,), ("FedPMT",)))
    await until(lambda: bool(workers()), 60)
    began_s = time.monotonic()

    def hold() -> list[str]:
        with timed(), timed():  # several timed things go together
            assert is_timed()
            return [each.status() for each in workers()]

    assert set(await asyncio.to_thread(hold)) <= {psutil.STATUS_STOPPED}
    assert time.monotonic() - began_s < 20
    await work
    assert not is_timed()


@pytest.fixture
def longer(table: Path) -> Path:
    table.write_text(TABLE.replace("rounds: 4", "rounds: 90"))
    return table


def runs_of(folder: Path) -> list[Path]:
    return list(folder.rglob("run/*/"))


def written(folder: Path) -> int:
    """How many records a cell's run has; 0 before its first checkpoint."""
    found = [run / "records.jsonl" for run in runs_of(folder) if (run / "checkpoint.safetensors").exists()]
    return sum(len(file.read_bytes().splitlines()) for file in found)


async def test_a_cell_that_is_killed_three_times_goes_on_to_the_same_bits(longer: Path, tmp_path: Path) -> None:
    await asyncio.to_thread(make, longer, at(tmp_path / "whole"), 1, (1,), ("FedPMT",))
    whole, begun = written(tmp_path / "whole"), []
    for moment in random.Random(19).sample(range(1, whole // 2), 3):
        work = asyncio.create_task(asyncio.to_thread(make, longer, at(tmp_path / "killed"), 1, (1,), ("FedPMT",)))
        await until(lambda moment=moment: bool(workers()) and written(tmp_path / "killed") >= moment, 60)
        for each in workers():
            each.kill()
        with pytest.raises(RunError, match="1 cell not computed"):
            await work
        begun.append(runs_of(tmp_path / "killed"))
    await asyncio.to_thread(make, longer, at(tmp_path / "killed"), 1, (1,), ("FedPMT",))
    assert [*begun, runs_of(tmp_path / "killed")] == [begun[0]] * 4, "no other run was made"
    assert without_times(tmp_path / "killed" / "results") == without_times(tmp_path / "whole" / "results")
