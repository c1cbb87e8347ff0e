"""Which pages of the documentation are played by a test, and why the other commands are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.docs_blocks import Block, blocks

WHOLE_PAGE = ""


@dataclass(frozen=True)
class Played:
    """How a page is played.

    Attributes:
        makes: files that are there in the end, as patterns.
        rounds: of each run, in place of the page's.
        after: pages whose files the reader has by then.
        fleet: it starts a fleet.
        needs: the name of a mark that its test has.
        ends: by block, its exit code where that is not 0.
    """

    makes: tuple[str, ...] = ()
    rounds: int = 1
    after: tuple[str, ...] = ()
    fleet: bool = False
    needs: str = ""
    ends: Mapping[str, int] = field(default_factory=dict)


PLAYED = {
    "docs/howto/compare.md": Played(makes=("figures.pdf", "figures.caption.txt", "table.tex"), fleet=True),
    "docs/howto/share-a-host.md": Played(fleet=True),
    "docs/howto/boards-beside-containers.md": Played(),
    "docs/howto/swarm.md": Played(),
    "docs/howto/scenario.md": Played(makes=("lab/records/scenario_step.csv",), rounds=5),
    "docs/howto/resume.md": Played(rounds=2, fleet=True),
    "docs/howto/export.md": Played(
        makes=(
            *("table.tex", "figures.pdf", "compare.html", "runs.csv", "runs/*/report.html"),
            *("records/round_finished.csv", "parquet/device_done.parquet", "metrics.prom", "spans.json", "board/*"),
        )
    ),
    "docs/howto/own-broker.md": Played(fleet=True, needs="mosquitto"),
    "docs/howto/papers-table.md": Played(),
    "docs/howto/plug-in.md": Played(makes=("runs/*/plugins/fedmedian.py",), fleet=True),
    "docs/tutorial.md": Played(fleet=True, ends={"edgebed check-method fedavgm.py": 2}),
    "docs/data.md": Played(),
    "docs/models.md": Played(after=("docs/howto/compare.md",)),
    "docs/methods.md": Played(),
    "docs/simulator.md": Played(),
    "docs/throttling.md": Played(fleet=True),
    "docs/method-interface.md": Played(),
}

BOARD = "needs a board; tests/component/test_boards_*.py and tests/e2e/test_five_boards.py join agents in namespaces"
DOCKER = "needs Docker; tests/component/test_boards_run.py runs a board beside a container"
SWARM = "needs two hosts; tests/e2e/test_swarm.py does this with three engines on one machine"
INSTALLS = "installs packages; tests/e2e/test_wheel.py installs the wheel"
PLACEHOLDERS = "names runs and files of the reader; pages of docs/howto have the same commands and are played"
TRANSCRIPT = "shows what is printed; tests/unit and tests/component hold it"

NOT_PLAYED = {
    "README.md": {WHOLE_PAGE: f"sets up the tree, then an overview: {PLACEHOLDERS}"},
    "AGENTS.md": {WHOLE_PAGE: "sets up the tree, and runs the tests themselves"},
    "CONTRIBUTING.md": {WHOLE_PAGE: "sets up the tree, and runs the tests themselves"},
    "SECURITY.md": {WHOLE_PAGE: PLACEHOLDERS},
    "benchmarks/README.md": {WHOLE_PAGE: "takes minutes to hours, and measures time"},
    "docs/boards.md": {WHOLE_PAGE: BOARD},
    "docs/swarm.md": {WHOLE_PAGE: SWARM},
    "docs/cli.md": {WHOLE_PAGE: TRANSCRIPT},
    "docs/experiments.md": {WHOLE_PAGE: TRANSCRIPT},
    "docs/index.md": {WHOLE_PAGE: INSTALLS},
    "docs/reproduce.md": {WHOLE_PAGE: "takes hours; docs/howto/papers-table.md is played"},
    "docs/security.md": {WHOLE_PAGE: "needs a broker on another host; docs/howto/own-broker.md is played"},
    "docs/serving.md": {WHOLE_PAGE: "needs root and minutes; tests/e2e/test_serve.py does the same"},
    "docs/speed.md": {WHOLE_PAGE: "measures time; tests/unit/test_cli_reference.py has the commands"},
    "docs/throttling.md": {"edgebed calibrate": "needs root, Docker and quiet; tests/component has each backend"},
    "docs/howto/boards-beside-containers.md": {
        "sudo apt": BOARD,
        "edgebed boards serve": BOARD,
        "sudo /opt/edgebed": BOARD,
        "edgebed calibrate": DOCKER,
    },
    "docs/howto/swarm.md": {
        "docker swarm": SWARM,
        "edgebed fleet push-image": SWARM,
        "edgebed calibrate": SWARM,
    },
    "docs/howto/scenario.md": {"sudo": "needs root; tests/e2e/test_scenario.py runs scenarios on limited devices"},
    "docs/howto/own-broker.md": {"edgebed run lab/experiment.yaml --broker mqtts": "needs a broker on another host; "
                                 "tests/component/test_own_broker.py has one with TLS"},
    "docs/howto/papers-table.md": {
        "edgebed reproduce fedpmt-table3 --column 'iid none 50 %' --seeds 1 --throttled": "takes an hour on devices",
    },
    "docs/data.md": {"edgebed data profiles/experiments/demo.yaml --set data.name=mnist": "needs MNIST"},
}  # fmt: skip
"""By page, and by how the block begins: why no test plays it."""


def why_not(block: Block) -> str | None:
    """Why the commands of a block are not played; None where they are, or where nobody has said why."""
    listed = NOT_PLAYED.get(block.page, {})
    return next((why for begins, why in listed.items() if block.script.startswith(begins)), None)


def steps(page: str) -> list[Block]:
    """The blocks of a page that a reader acts on: files that he writes, and commands that a test can run."""
    return [each for each in blocks(page) if each.title or (each.is_shell and why_not(each) is None)]
