"""`python -m orchestrator.report FOLDER FILE.pdf`: the figures of a run for papers, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.report import write_figures

write_figures(Path(sys.argv[1]), [Path(sys.argv[2])])
