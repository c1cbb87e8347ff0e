"""`edgebed check-method`: whether a method of your own does what every method must."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated

import torch
import typer

from edgebed.errors import UsageError, in_words
from edgebed.plugin_code import LOADED, line_in
from orchestrator.cli.arguments import Json
from orchestrator.cli.console import print_json, show
from orchestrator.testing.methods import CHECKS, Case, Check, cases_of, methods_of, title, words_of


def command(
    plugin: Annotated[str, typer.Argument(help="A file, a folder, or an installed package with methods.")],
    as_json: Json = False,
) -> None:
    """Check that the methods of a PLUGIN do what every method must, in seconds and without a fleet."""
    torch.set_num_threads(1)
    cases = cases_of(*methods_of(plugin))
    found = list(_checked(cases, quiet=as_json))
    if as_json:
        print_json([dict(zip(("method", "check", "why"), each, strict=True)) for each in found])
    failed = [each for each in found if each[2]]
    if failed:
        raise UsageError(
            f"{len(failed)} of {len(found)} checks of {plugin} fail",
            hint=f"pytest --edgebed-method {plugin} shows each with its traceback; see docs/method-interface.md",
        )


def _checked(cases: list[Case], *, quiet: bool) -> Iterator[tuple[str, str, str]]:
    """Method, check, and what is wrong ("" where nothing is), each as soon as it is known."""
    for case in cases:
        for check in CHECKS:
            why = _why(check, case)
            if not quiet:
                show(f"{'FAILS' if why else 'ok   '} {title(case)} {words_of(check)}{f': {why}' if why else ''}")
            yield title(case), words_of(check), why


def _why(check: Check, case: Case) -> str:
    try:
        asyncio.run(check(case))
    except AssertionError as error:
        return str(error) or "an assertion of the method fails"
    except Exception as error:
        lines = (line_in(code, error) for code in LOADED.values())
        return in_words(error) + next(filter(None, lines), "")
    return ""
