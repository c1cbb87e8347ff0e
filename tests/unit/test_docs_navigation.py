"""A page of the manual has one name, that of its heading, and one place: in mkdocs.yml, docs/index.md and README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

import mkdocs_hooks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags of Python are of no interest here."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
NAV = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]


def pages(part: object) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:  # type: ignore[attr-defined]
            yield from pages(each)


IN_NAV = [*pages(NAV)]
OF_THE_ROOT = {f"project/{page}": name for name, page in mkdocs_hooks.PAGES.items()}


def heading(page: str) -> str:
    path = ROOT / OF_THE_ROOT[page] if page in OF_THE_ROOT else DOCS / page
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def links(text: str) -> list[tuple[str, str]]:
    """Names and pages of the links to pages, as on the site, without those to a part of a page."""
    return re.findall(r"\[([^\]]+)\]\(([\w./-]+\.md)\)", mkdocs_hooks.on_page_markdown(text))


def test_every_page_is_in_the_navigation_once() -> None:
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | set(OF_THE_ROOT)
    assert sorted(IN_NAV) == sorted(there)


def test_no_two_pages_have_one_name() -> None:
    names = [heading(page) for page in IN_NAV]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_index_has_every_page_in_the_same_order_under_its_name() -> None:
    table = (DOCS / "index.md").read_text(encoding="utf-8").partition("\n## All pages\n")[2]
    assert links(table) == [(heading(page), page) for page in IN_NAV]


def test_the_readme_calls_pages_by_their_names() -> None:
    named = [
        (name, page.removeprefix("docs/"))
        for name, page in links((ROOT / "README.md").read_text(encoding="utf-8"))
        if page.startswith("docs/") and page != "docs/index.md"
    ]
    assert len(named) >= 4
    assert [(name, page) for name, page in named if name != heading(page)] == []


def test_the_readme_tells_the_verdicts_of_the_results_page() -> None:
    """And of those that hold, at which scale: one at the scale `digits` is not about the paper's data."""
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| \*\*(.*?)\*\* \|.*\| (\w+) \| `[^`|]*` \|$", text, re.MULTILINE)
    counts = [sum(word == verdict for word, _ in rows) for verdict in ("holds", "does not hold", "cannot be told")]
    assert sum(counts) == len(rows) == text.count("| **") > 0
    told = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = "Of {} claims of papers that were checked so far, {} hold, {} do not, and {} cannot be told.".format
    assert said(len(rows), *counts) in told
    scales = [rows.count(("holds", scale)) for scale in ("exact", "real", "digits")]
    which = "Of those that hold, {} are arithmetic, {} at the scale `real`, {} at the scale `digits`"
    assert which.format(*scales) in told
    order = [scale for _, scale in rows]
    assert order == sorted(order, key=["exact", "full", "real", "digits"].index), "nearest to the papers first"


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_pages_of_the_root_link_to_pages_of_the_site() -> None:
    assert (
        mkdocs_hooks.on_page_markdown("[a](../SECURITY.md), [b](boards.md)")
        == "[a](project/security.md), [b](boards.md)"
    )
    assert mkdocs_hooks.on_page_markdown("[a](../../CHANGELOG.md#x)") == "[a](../project/changelog.md#x)"
    text = "[a](docs/boards.md#join), [b](CHANGELOG.md), [c](LICENSE), [d](https://x.org/a)"
    assert mkdocs_hooks.with_links_of_the_site(text) == (
        "[a](../boards.md#join), [b](changelog.md), c, [d](https://x.org/a)"
    )
