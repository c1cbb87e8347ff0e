"""What root runs on a board and for it, and what the agent of a board may do."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from edgebed.datasets.shard import write_idle_shard
from edgebed.errors import UsageError
from edgebed.service_unit import refuse_foreign
from edgebed.wire.boards import WAITING, BoardOrder
from edgebed.wire.topics import Topics
from orchestrator.boards.service_folder import ServiceFolder
from orchestrator.cli import build
from tests.component._boards import Lab, Orchestrator, running, standing
from tests.waiting import until


@pytest.mark.root
@pytest.mark.parametrize("wrong", ["a program of another user", "a folder that others may write", "a link to it"])
def test_root_gets_no_unit_with_a_program_that_others_may_change(wrong: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "edgebed-agent"
    program.parent.mkdir()
    program.touch()
    refuse_foreign(program)
    if wrong == "a program of another user":
        os.chown(program, 65534, 65534)
    else:
        program.parent.chmod(0o775)
    if wrong == "a link to it":
        (tmp_path / "own").mkdir()
        program = tmp_path / "own" / "edgebed-agent"
        program.symlink_to(tmp_path / "bin" / "edgebed-agent")
    with pytest.raises(UsageError, match="others than root may change") as refused:
        refuse_foreign(program)
    assert "/opt/edgebed" in refused.value.hint


@pytest.mark.root
@pytest.mark.mosquitto
async def test_the_agent_of_a_board_has_no_rights_of_root(lab: Lab) -> None:
    """It reads what others send. The process that puts limits on it keeps them."""
    keys, shard = await lab.board("pi"), lab.folder / "shard"
    write_idle_shard(shard)
    board, data = keys.service().board, shard.read_bytes()
    lab.offer(data)
    async with standing(keys) as process, lab.working("f1", keys), Orchestrator(lab) as orchestrator:
        order = BoardOrder("f1", hashlib.sha256(data).hexdigest())
        orchestrator.link.publish(WAITING.control_to(board), msgspec.json.encode(order), retain=True)
        await until(lambda: bool(orchestrator.heard.get(Topics("f1").state(board))), 60)
        (agent,) = psutil.Process(process.pid).children()
        for thread in os.listdir(f"/proc/{agent.pid}/task"):
            status = await asyncio.to_thread(Path(f"/proc/{agent.pid}/task/{thread}/status").read_text)
            found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert (found["CapEff"], found["CapPrm"], found["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
        assert int(psutil.Process(process.pid).uids().effective) == 0


@pytest.mark.mosquitto
async def test_a_token_is_on_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of a board may list its processes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with running(tmp_path, ServiceFolder.of_user().folder) as lab:
        invited = await asyncio.to_thread(CliRunner().invoke, build(), ["boards", "invite", "pi"])
        command, token = invited.stdout.splitlines()
        assert token not in command
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edge_agent.entry", *command.split()[1:]),
            env={**os.environ, "EDGEBED_BOARD": str(tmp_path / "pi")},
            stdin=asyncio.subprocess.PIPE,
        )
        await until(lambda: "edge_agent.entry" in psutil.Process(process.pid).cmdline())
        assert not [word for word in psutil.Process(process.pid).cmdline() if token in word]
        await process.communicate(f"{token}\n".encode())
        assert process.returncode == 0
        assert [board.name for board in lab.store.read().active()] == ["pi"]
