"""Style and scripts of the live page, put into one file: a page of the report needs no server."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from orchestrator.records.words import palette
from orchestrator.records.words.vocabulary import for_page

STATIC = Path(__file__).parent.parent / "dashboard" / "static"

MODULES = ("format.js", "dom.js", "charts.js", "rows.js", "gantt.js", "over_time.js", "compare.js", "report.js")
"""Each after those that it imports."""

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "[./]*/([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (class|function|const) ([\w$]+)", re.MULTILINE)


def style() -> str:
    """Rules of the page, and its colours."""
    return (STATIC / "style.css").read_text(encoding="utf-8") + palette.css()


def script() -> str:
    """All modules as one script. Each is a function of its own that returns what it exports."""
    words = ", ".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in for_page().items())
    parts = [f'"use strict";\nconst modules = {{"vocabulary.js": {{{words}}}}};']
    for name in MODULES:
        text = (STATIC / name).read_text(encoding="utf-8")
        exported = ", ".join(match[1] for match in _EXPORT.findall(text))
        own = _EXPORT.sub(r"\1 \2", _IMPORT.sub(r'const \1 = modules["\2"];\n', text))
        parts.append(f'modules["{name}"] = (() => {{\n{own}\nreturn {{{exported}}};\n}})();')
    return "\n".join(parts)
