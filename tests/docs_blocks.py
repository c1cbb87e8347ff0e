"""The fenced blocks of the documentation: which of them a reader types, and which files they are."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
TYPED = re.compile(r"(\$ )?(edgebed|edgebed-agent|python|pytest|docker|sudo|make|pip) ")


@dataclass(frozen=True)
class Block:
    """One fenced block. `title`: the file that the reader writes, "" if none; `line`: of its fence, from 1."""

    page: str
    line: int
    language: str
    title: str
    body: str

    @property
    def is_shell(self) -> bool:
        """Whether it holds commands to type: by its language, or by how its first line begins."""
        return self.language in ("sh", "bash", "console") or (
            self.language in ("", "text") and not self.title and TYPED.match(self.body) is not None
        )

    @property
    def script(self) -> str:
        """Its commands. Of a transcript those behind a `$`, with their continued lines, and nothing of the output."""
        lines = self.body.splitlines()
        if not any(line.startswith("$ ") for line in lines):
            return self.body
        typed, continued = [], False
        for line in lines:
            if continued or line.startswith("$ "):
                typed.append(line.removeprefix("$ "))
            continued = bool(continued or line.startswith("$ ")) and line.endswith("\\")
        return "\n".join([*typed, ""])

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every page of the documentation, relative to the repository."""
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", *docs]


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, _, more = match["info"].strip().partition(" ")
        title = TITLE.search(more)
        line = text[: match.start()].count("\n") + 1
        body = textwrap.dedent(match["body"])
        found.append(Block(page, line, language, title[1] if title else "", body))
    return found


def code(page: str, language: str = "python") -> list[str]:
    """The bodies of the blocks of one language."""
    return [block.body for block in blocks(page) if block.language == language]
