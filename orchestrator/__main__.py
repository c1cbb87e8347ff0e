"""The command line of `edgebed` and of `python -m orchestrator`, or what to install for it."""

from __future__ import annotations

import sys

from edgebed.entry import command_line as checked_command_line


def main() -> None:
    """Run the command line. Without the packages of the extra `orchestrator`, say how to install them (exit code 2)."""
    if sys.version_info < (3, 11):  # noqa: UP036  # the package can be installed there, for the agent
        print(
            f"edgebed: the command line needs Python 3.11 or newer; this is {sys.version.split()[0]}\n"
            "Hint: install it on a machine with a newer Python. The agent, edgebed-agent, works with 3.10.",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        from orchestrator.cli import main as command_line
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("edgebed", "orchestrator"):
            raise
        print(
            f"edgebed: the package {error.name!r} is not installed; the command line needs the extra 'orchestrator'\n"
            "Hint: pip install './edgebed-VERSION-py3-none-any.whl[orchestrator]'. The agent, edgebed-agent, works "
            "without it.",
            file=sys.stderr,
        )
        sys.exit(2)
    command_line()


if __name__ == "__main__":
    checked_command_line()
