"""What README promises to whoever adds a backend: a class and a line, and a fleet file can name it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgebed.errors import UsageError
from edgebed.limits.spec import Held, Limits
from edgebed.link.connection import Address
from orchestrator.boards.authority import Authority
from orchestrator.fleet.backends import BACKENDS, check_backend, choices
from orchestrator.fleet.base import Backend, Enforcement
from orchestrator.fleet.host.checkup import HostNeeds
from orchestrator.fleet.host.cpus import Admitted
from orchestrator.fleet.named import NamedBackend, Opening, backend_class
from orchestrator.fleet.spec.profile import load_fleet

ROOT = Path(__file__).parents[2]


class ToyBackend(NamedBackend):
    """Says what it is asked to do."""

    name = "toy"
    enforcement = Enforcement.UNLIMITED

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._names, self._notify = [device.name for device in opening.spec.devices], opening.notify

    @classmethod
    def open(cls, opening: Opening) -> Backend:
        return cls(opening)

    async def prepare(self) -> list[str]:
        return ["127.0.0.1"]

    async def start(self, access: Mapping[str, Address], shards: Mapping[str, Path]) -> None:
        self._notify(f"started {', '.join(self._names)}")

    async def limit(self, device: str, limits: Limits) -> Held:
        self._notify(f"{device} has {limits.cpus:g} CPUs")
        return Held(device, limits, None, None, None, None, 0.0, 0.0, 0, 0.0, 0, 0, True)

    async def _close(self) -> None:
        self._notify("closed")


async def use(path: Path) -> None:
    """Start the fleet of this file on the backend that it names, and end it."""
    spec = load_fleet(path)
    kind = backend_class(spec.backend)
    admitted: Admitted = None  # type: ignore[assignment]  # the toy does not look at it
    backend = kind.open(Opening(spec, "f1", admitted, path.parent, Authority, print))
    await backend.prepare()
    await backend.start({}, {})
    for device in spec.devices:
        await backend.limit(device.name, device.profile.limits)
    await backend.close()


def python(*lines: str) -> list[str]:
    """The lines that a fresh interpreter prints, in which the toy is registered before anything else is loaded."""
    register = "from orchestrator.fleet.backends import BACKENDS", f"BACKENDS['toy'] = '{__name__}:ToyBackend'"
    program = "\n".join((*register, *lines))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_fleet_file_names_a_new_backend_and_is_opened_with_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("name: toys\nbackend: toy\ndevices:\n  - {profile: cpu0.2, count: 2, name: d}\n")
    module = f"from {__name__} import asyncio, use"
    assert python(module, "from pathlib import Path", f"asyncio.run(use(Path({str(path)!r})))") == [
        "started d-1, d-2",
        "d-1 has 0.2 CPUs",
        "d-2 has 0.2 CPUs",
        "closed",
    ]
    with pytest.raises(UsageError, match=f"backend is 'toy'; it must be {choices()}"):
        asyncio.run(use(path))  # here it is not registered


def test_messages_and_options_name_a_new_backend() -> None:
    run = ["from orchestrator.cli import build", "from typer.testing import CliRunner"]
    asked = [
        f"print(CliRunner().invoke(build('{each}'), ['{each}', '--help'], env={{'COLUMNS': '160'}}).stdout)"
        for each in ("run", "doctor")
    ]
    assert " ".join(python(*run, *asked)).count("<docker|local|software|swarm|toy>") == 2


def test_the_registry_loads_no_backend() -> None:
    loaded = python("import sys", "import orchestrator.fleet.spec.profile", "print(*sys.modules)")[0].split()
    assert "orchestrator.fleet.spec.profile" in loaded
    assert not {"docker", *(path.split(":")[0] for path in BACKENDS.values())} & set(loaded)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("docker", HostNeeds(engine=True)),
        ("local", HostNeeds(kernel=True)),
        ("software", HostNeeds(software=True)),
        ("swarm", HostNeeds(engine=True, swarm=True)),
    ],
)
def test_every_backend_says_what_it_needs(name: str, needs: HostNeeds) -> None:
    check_backend(name)
    assert backend_class(name).needs == needs
