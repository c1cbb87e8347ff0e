# What editors and type checkers know of the names that `edgebed` hands on; at run time __init__.py does it.
from edgebed.wire.protocol import PROTOCOL as PROTOCOL
from orchestrator.api import compare as compare
from orchestrator.api import load_run as load_run
from orchestrator.api import load_runs as load_runs
from orchestrator.api import run as run
from orchestrator.api import simulate as simulate

API: tuple[str, ...]
