"""The notebooks in examples/ run from their first cell to their last."""

from __future__ import annotations

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_not_kept_in_the_repository(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert not [cell.source for cell in cells if cell.outputs or cell.execution_count is not None]


def test_analyse_runs_finds_the_straggler_and_fits_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEBED_RUNS", str(tmp_path))
    notebook = nbformat.read(EXAMPLES / "analyse_runs.ipynb", as_version=4)
    place = {"metadata": {"path": str(EXAMPLES)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert len(list(tmp_path.glob("analyse-*"))) == 6
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    text = "\n".join(str(output.get("data", {}).get("text/plain", output.get("text", ""))) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert re.search(r"fedavg +cpu0\.1-1 +cpu", text)
    assert re.search(r"compute_s = -?0\.0\d\d s \+ 0\.\d+ CPU s / CPUs", text)
