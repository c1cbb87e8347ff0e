"""How a command of the agent ends when it fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from edgebed.errors import EdgebedError


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Prints an error of ours with its hint and ends the process with its exit code; Ctrl-C ends it with 130."""
    try:
        yield
    except EdgebedError as error:
        print(f"edgebed-agent: {error}", file=sys.stderr)
        if error.hint:
            print(f"Hint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
