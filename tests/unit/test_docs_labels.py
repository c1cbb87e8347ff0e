"""Every label that the program prints is explained in docs/output.md, the glossary or records.md."""

from __future__ import annotations

import re

import pytest

from tests.unit import _labels
from tests.unit._labels import ROOT

OUTPUT, GLOSSARY, RECORDS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("output.md", "glossary.md", "records.md")
)
EXPLAINED = {name for text in (OUTPUT, GLOSSARY, RECORDS) for name in _labels.explained(text)}

KINDS = {
    "tables of run and compare": _labels.of_comparisons(),
    "tables of other commands": _labels.of_commands(),
    "words in tables and legends": _labels.of_words(),
    "report": _labels.of_the_report(),
    "live page": _labels.of_the_live_page(),
    "keys of summary.json": _labels.of_the_summary(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_label_is_explained(kind: str) -> None:
    assert sorted(KINDS[kind] - EXPLAINED) == []


def test_labels_are_found() -> None:
    """Else the test above could not fail."""
    assert {name: len(found) >= 15 for name, found in KINDS.items()} == dict.fromkeys(KINDS, True)
    assert _labels.explained("| `a`, `b` | means it |\n| c, d | means it |\n| `e` | |\n|---|---|") == {
        *("a", "b", "c, d", "c", "d")
    }


@pytest.mark.parametrize("note", _labels.printed_notes())
def test_every_note_is_explained_as_it_is_printed(note: str) -> None:
    plain = note.replace("`", "")
    patterns = _labels.documented_notes(OUTPUT)
    assert any(pattern.search(plain) for pattern in patterns)


@pytest.mark.parametrize("function", ["_doubts", "_disturbed", "_boards", "_note", "_notes"])
def test_the_notes_above_are_all_that_there_are(function: str) -> None:
    printed = "\n".join(_labels.printed_notes())
    assert [piece for piece in _labels.literal_pieces(function) if piece.strip(" :") not in printed] == []


def test_words_in_italics_in_the_glossary_have_entries() -> None:
    entries = {name for entry in _labels.explained(GLOSSARY) for name in (entry, f"{entry}s")}
    used = set(re.findall(r"(?<!\*)\*([^*|]+)\*(?!\*)", GLOSSARY.partition("\n## ")[2]))
    assert sorted(used - entries) == []


def test_the_glossary_has_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+?) \|", GLOSSARY, re.MULTILINE)
    words = [word for row in rows if set(row) > set("-") and row != "word" for word in row.split(", ")]
    assert sorted({word for word in words if words.count(word) > 1}) == []


def test_pages_and_commands_use_no_word_that_the_glossary_replaces() -> None:
    """Except in the papers' own page, and where it names something else: an MQTT client, a layer's activations."""
    table = GLOSSARY.partition("## Words of others")[2]
    others = {word for row in re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:] for word in row.split(", ")}
    banned = others - {"client", "worker", "aggregation", "activations"}
    assert len(banned) >= 8
    found = re.compile(rf"\b({'|'.join(map(re.escape, sorted(banned)))})s?\b", re.IGNORECASE)
    pages = {*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"} - {ROOT / "docs/glossary.md", ROOT / "docs/papers.md"}
    texts = [*pages, *(ROOT / "orchestrator" / "cli").glob("*.py")]
    assert {path.name: hits for path in texts if (hits := found.findall(path.read_text(encoding="utf-8")))} == {}
