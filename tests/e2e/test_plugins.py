"""A stranger's method on real fleets: the accuracy of the simulation, without the rights of the orchestrator; a device
with other code is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import edgebed
from edgebed.errors import FleetError
from edgebed.methods import scaffold
from edgebed.plugin_code import read_plugin, write_plugins
from edgebed.wire.fork_protocol import Fork
from orchestrator.fleet.local.backend import LocalBackend
from orchestrator.records.reader import read
from orchestrator.records.types import UpdateReceived
from tests.strangers import accuracies, alone, install, write_folder

__all__ = ["alone"]

pytestmark = pytest.mark.usefixtures("uncalibrated")

SGD = {"name": "sgd", "lr": 0.05}
SMALL = "cpus: 0.3\nuplink_mbit_s: 20\ndownlink_mbit_s: 20\nmemory_mib: 1024\n"


def experiment(folder: Path, *plugins: Path) -> Path:
    """Two devices on digits."""
    (folder / "small.yaml").write_text(SMALL)
    (folder / "fleet.yaml").write_text("{name: strangers, devices: [{profile: small.yaml, count: 2, name: dev}]}")
    path = folder / "experiment.yaml"
    text = {
        "name": "e2e",
        "fleet": "fleet.yaml",
        "plugins": [str(each) for each in plugins],
        "methods": [{"name": "damped"}],
        "training": {"rounds": 2, "batch_size": 32, "heartbeat_s": 0.5, "seed": 2, "optimizer": SGD},
        "simulation": {"batched": False},
    }
    path.write_bytes(msgspec.json.encode(text))
    return path


def write_scaffold(folder: Path) -> Path:
    """A copy of SCAFFOLD as a file of a stranger, under the name `damped`."""
    text = Path(scaffold.__file__).read_text("utf-8")
    for call in ("name = ", "@device_half(", "objective="):
        text = text.replace(f'{call}"scaffold"', f'{call}"damped"')
    folder.mkdir()
    (folder / "damped.py").write_text(text, "utf-8")
    return folder / "damped.py"


@pytest.mark.parametrize(
    "backend", [pytest.param("local", marks=pytest.mark.root), pytest.param("docker", marks=pytest.mark.docker)]
)
@pytest.mark.parametrize("kind", ["file", "folder", "package"])
def test_the_accuracy_is_that_of_the_simulation(
    backend: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is SCAFFOLD under another name. The package requires numpy, so its containers have an image of their
    own; local agents do not see where it is installed."""
    if kind == "package":
        monkeypatch.syspath_prepend(str(install(tmp_path)))
        wanted = experiment(tmp_path)
    else:
        write = write_scaffold if kind == "file" else write_folder
        wanted = experiment(tmp_path, write(tmp_path / "away"))
    (simulated,) = edgebed.simulate(wanted, runs=tmp_path / "simulated")
    (real,) = edgebed.run(wanted, backend=backend, runs=tmp_path / "real", allow_uncalibrated=True)
    assert accuracies(real) == accuracies(simulated)
    entry = "plugins/damped.py" if kind == "file" else "plugins/damped"
    assert read_plugin(entry, real.path).sha256 == read_plugin(entry, simulated.path).sha256


@pytest.mark.root
def test_code_that_differs_on_one_device_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, edited = experiment(tmp_path, write_folder(tmp_path / "away")), write_folder(tmp_path / "edited")
    (edited / "smoothing.txt").write_text("0.2")
    write_plugins([read_plugin(str(edited))], tmp_path / "copies")
    as_ever = LocalBackend._fork_of  # noqa: SLF001 - what one device is started with

    def fork_of(self: LocalBackend, name: str, *rest: Any) -> Fork:
        fork = as_ever(self, name, *rest)
        return msgspec.structs.replace(fork, plugins=str(tmp_path / "copies")) if name == "dev-2" else fork

    monkeypatch.setattr(LocalBackend, "_fork_of", fork_of)
    with pytest.raises(FleetError, match="dev-2 has other code of the plug-in 'damped'") as error:
        edgebed.run(wanted, backend="local", runs=tmp_path / "real")
    assert "dev-1" not in str(error.value)
    assert not list((tmp_path / "real").glob("*/records.jsonl"))


NOSY = """
import os
from pathlib import Path

from edgebed.methods.base import device_half
from edgebed.methods.fedavg import FedAvg
from edgebed.methods.parts.local_training import DevicePart
import msgspec

AT_IMPORT = float(os.geteuid())


@device_half("nosy", head=False)
def nosy(model, assignment, batches):
    part = DevicePart(model, assignment)
    for x, y in batches:
        part.step(__import__("torch").nn.functional.cross_entropy(part.forward(x), y), len(y))
    yield from ()
    told = {"uid": AT_IMPORT, "passwd": Path("/etc/passwd").exists(), "writes": os.access(__file__, os.W_OK)}
    told["others"] = len([each for each in Path("/proc").iterdir() if each.name.isdecimal()]) - 1
    return msgspec.structs.replace(part.trained(), notes={key: float(value) for key, value in told.items()})


class Nosy(FedAvg):
    name = "damped"

    def plan(self, round, devices, schedule):
        plan = super().plan(round, devices, schedule)
        own = {name: msgspec.structs.replace(each, objective="nosy") for name, each in plan.assignments.items()}
        return msgspec.structs.replace(plan, assignments=own)
"""


@pytest.mark.root
def test_an_agent_runs_it_with_its_own_rights_alone(tmp_path: Path) -> None:
    """From the import on: another user, nothing of the host's files, no other process, its code read-only."""
    (tmp_path / "nosy.py").write_text(NOSY)
    wanted = experiment(tmp_path, tmp_path / "nosy.py")
    (run,) = edgebed.run(wanted, backend="local", runs=tmp_path / "real", allow_uncalibrated=True)
    told = [each.report.notes for each in read(run.path / "records.jsonl") if isinstance(each, UpdateReceived)]
    assert len(told) == 4
    for notes in told:
        assert notes["uid"] >= 1000
        assert (notes["passwd"], notes["writes"], notes["others"]) == (0.0, 0.0, 0.0)
