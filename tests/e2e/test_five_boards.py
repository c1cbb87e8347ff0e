"""Boards without boards: five agents in namespaces of their own join and train; keys are revoked, lost and run out.

One board has an emulated arm64 processor where an image for it is there. With libfaketime wall clocks differ, too.
`pytest -s` prints each step with its time and what happened.
"""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives import serialization

from edge_agent.board.keystore import Keystore
from orchestrator.boards.authority import Authority, requested_key
from orchestrator.records.reader import read
from orchestrator.records.types import DeviceOut, RoundFinished, TaskDelivered
from tests.e2e.boards_lab import (
    FAKETIME_LIBRARIES,
    ROUTER,
    Board,
    EmulatedBoard,
    Host,
    Network,
    until,
)
from tests.e2e.wheel import build_wheel

R = TypeVar("R")

TOOLS = ("ip", "iptables", "unshare")
pytestmark = [
    pytest.mark.root,
    pytest.mark.mosquitto,
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}"),
]

DAY_S = 86400
EXPERIMENT = """
name: five-boards
fleet: {fleet}
data: {{name: digits}}
partition: {{kind: iid}}
model: {{name: resnet-tiny}}
methods:
  - {{name: dtfl, tiers: 7}}
  - {{name: fedavg}}
training:
  rounds: 3
  max_batches: 3
  batch_size: 32
  optimizer: {{name: adam, lr: 0.003}}
  codec: {{dtype: uint8, zstd: true}}
  seed: 1
"""


class Story:
    """What was done, what happened, how long: a line each."""

    def __init__(self) -> None:
        self.happened = ""

    @contextmanager
    def step(self, what: str) -> Iterator[Story]:
        begin, self.happened = time.monotonic(), ""
        try:
            yield self
        except BaseException as error:
            self.happened = f"FAILED: {error}"
            raise
        finally:
            print(f"  {what:<58} {time.monotonic() - begin:7.1f} s  {self.happened}", flush=True)


class FiveBoards:
    def __init__(self, folder: Path, network: Network) -> None:
        self.folder, self.host, self.story = folder, Host(folder), Story()
        wheel = build_wheel(folder)
        self.plain = Board("plain", network.join("plain", "10.97.0.11"), folder, wheel, 1500, DAY_S)
        self.revoked = Board("revoked", network.join("revoked", "10.97.0.12"), folder, wheel, -2400, 5000)
        self.flashed = Board("flashed", network.join("flashed", "10.97.0.13"), folder, wheel, 10, 0)
        self.hidden = Board("hidden", network.join_behind_nat("hidden"), folder, wheel, -1200, 100 * DAY_S)
        self.boards: list[Board | EmulatedBoard] = [self.plain, self.revoked, self.flashed, self.hidden]
        if EmulatedBoard.possible():
            self.boards.append(EmulatedBoard("arm64", folder))
        else:
            self.boards.append(Board("fifth", network.join("fifth", "10.97.0.14"), folder, wheel, 0, 0))
        devices = "".join(f"  - {{board: {board.name}}}\n" for board in self.boards)
        (folder / "fleet.yaml").write_text(f"name: five-boards\ndevices:\n{devices}")
        (folder / "experiment.yaml").write_text(EXPERIMENT.format(fleet=folder / "fleet.yaml"))

    def live(self) -> None:
        for board in self.boards:
            print(f"  {board.name}: {board.about}")
        with self.story.step("`edgebed boards serve`"):
            self.host.serve()
        self.join_all()
        self.connect_all()
        self.train_and_revoke()
        self.refuse()
        self.enrol_again()
        self.flash()
        self.run_out()
        self.train("fedavg")

    # ---- joining ----

    def join_all(self) -> None:
        if FAKETIME_LIBRARIES:
            with self.story.step("joins with a clock three days behind") as step:
                step.happened = "refused: " + self._refused_for_its_clock()
        for board in self.boards:
            with self.story.step(f"{board.name}: joins by the printed command") as step:
                step.happened = f"id {self.join(board)[:8]}…"

    def join(self, board: Board | EmulatedBoard, *options: str) -> str:
        """The id that the board got."""
        said = board.agent(*self.host.invite(board.name, *options)[1:])
        return said.partition("(id ")[2].partition(")")[0]

    def _refused_for_its_clock(self) -> str:
        command = self.host.invite(self.plain.name)[1:]
        why = refused(lambda: self.plain.agent(*command, wall_s=-3 * DAY_S))
        assert "clock" in why, why
        return why.splitlines()[0].removeprefix("edgebed-agent: ")

    def connect_all(self) -> None:
        with self.story.step("`edgebed-agent run` on all five") as step:
            for board in self.boards:
                board.connect()
            names = {board.name for board in self.boards}
            until(lambda: names <= self.host.connected(), f"all are connected; {self.folder}/*.log")
            seen = {session["address"].rpartition(":")[0] or session["address"] for session in self._sessions()}
            assert seen == {ROUTER}, seen
            step.happened = f"all connected; the one behind NAT comes from {ROUTER}"

    def wait_for(self, board: Board | EmulatedBoard) -> float:
        return until(lambda: board.name in self.host.connected(), f"{board.name} is connected; {board.log}")

    def _sessions(self) -> list[dict[str, str]]:
        sessions: list[dict[str, str]] = self.host.board(self.hidden.name)["sessions"]
        return sessions

    # ---- training ----

    def train_and_revoke(self) -> None:
        with self.story.step("DTFL, three rounds, one board revoked after the first") as step:
            process = self.host.start("run", str(self.folder / "experiment.yaml"), "--method", "dtfl")
            try:
                until(lambda: self._has_task(1) or process.poll() is not None, "the second round has begun", 240)
                with self.revoked.held_still():  # the command itself takes longer than a round on a quiet machine
                    revoked = self.host.edgebed("boards", "revoke", self.revoked.name)
                said = process.communicate(timeout=240)[0]
            finally:
                process.kill()
            assert process.returncode == 0, said
            out = [each for each in self._records(DeviceOut) if each.device == self.revoked.name]
            merged = self._merged()
            assert len(out) == 1, out
            whole = out[0].round  # rounds with all five; the board may end its second round before it is held
            assert whole in (1, 2), out
            assert merged == [5] * whole + [4] * (3 - whole), merged
            closed = revoked.partition("connections are closed ")[2].strip()
            step.happened = f"merged {merged}; connections closed {closed}; {out[0].why}"

    def train(self, method: str) -> None:
        with self.story.step(f"{method}, three rounds") as step:
            self.host.edgebed("run", str(self.folder / "experiment.yaml"), "--method", method)
            merged = self._merged()
            assert merged == [5, 5, 5], merged
            step.happened = f"merged {merged}"

    def _newest(self) -> Path | None:
        return max(self.host.runs.glob("*/records.jsonl"), key=lambda path: path.stat().st_mtime, default=None)

    def _records(self, kind: type[R]) -> list[R]:
        newest = self._newest()
        return [record for record in read(newest) if isinstance(record, kind)] if newest else []

    def _has_task(self, number: int) -> bool:
        return any(each.round == number and each.device == self.revoked.name for each in self._records(TaskDelivered))

    def _merged(self) -> list[int]:
        return [len(record.merged) for record in self._records(RoundFinished)]

    # ---- identity ----

    def refuse(self) -> None:
        with self.story.step("a run that names the revoked board") as step:
            run = ("run", str(self.folder / "experiment.yaml"), "--method", "fedavg")
            why = refused(lambda: self.host.edgebed(*run))
            assert self.revoked.name in why, why
            step.happened = "refused: " + " ".join(why.split())[:150]

    def enrol_again(self) -> None:
        with self.story.step("the revoked board leaves and is invited again") as step:
            self.revoked.end()
            self.revoked.agent("leave")
            self.join(self.revoked)
            self.revoked.connect()
            self.wait_for(self.revoked)
            step.happened = "connected, with another id"

    def flash(self) -> None:
        with self.story.step("a board is set up again: its key is gone; --replace") as step:
            old = self.host.board(self.flashed.name)["id"]
            self.flashed.end()
            shutil.rmtree(self.flashed.keys)
            self.join(self.flashed, "--replace")
            self.flashed.connect()
            self.wait_for(self.flashed)
            states = {row["id"]: row["state"] for row in self.host.boards()}
            assert states[old].startswith("revoked"), states
            step.happened = f"connected with another key; {old[:8]}… is {states[old]}"

    def run_out(self) -> None:
        with self.story.step("a certificate that ran out yesterday") as step:
            self.plain.end()
            keys = Keystore(self.plain.keys)
            before = dt.datetime.now(dt.UTC) - dt.timedelta(days=91)
            board = keys.service().board
            old = Authority(self.host.state).board_certificate(requested_key(keys.request()), board, before)
            keys.keep_certificate(old.public_bytes(serialization.Encoding.PEM).decode())
            self.plain.connect()
            self.wait_for(self.plain)
            assert "the certificate is renewed" in self.plain.log.read_text(), self.plain.log
            step.happened = f"renewed until {keys.life()[1]:%Y-%m-%d}, connected"

    def close(self) -> None:
        for board in self.boards:
            board.end()
        self.host.close()


def refused(call: Callable[[], object]) -> str:
    """Why the command failed, as it must."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("nothing was refused")


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[FiveBoards]:
    network = Network()
    network.open()
    try:
        made = FiveBoards(tmp_path, network)
        try:
            yield made
        finally:
            made.close()
    finally:
        network.close()


def test_five_boards_join_train_are_revoked_and_return(boards: FiveBoards) -> None:
    boards.live()
