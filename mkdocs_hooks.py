"""Pages of the site that stand in the root of the source tree: changes, contributing, security. `mkdocs.yml` names this
file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Files of the root, and their names in the folder `project` of the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of docs/."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{page}", content=with_links_of_the_site(text)))
    return files


BOOST = {"output.md": 4.0, "glossary.md": 4.0, "reference.md": 0.1}
"""How much sooner or later than others the search finds a page: words first, attributes of classes last."""


def on_page_markdown(markdown: str, page: Page | None = None, **_: Any) -> str:
    """Called by mkdocs with the text of every page: links to files of the root lead to their pages."""
    if page is not None and page.file.src_uri in BOOST:
        page.meta["search"] = {"boost": BOOST[page.file.src_uri]}
    for name, own in PAGES.items():
        markdown = re.sub(rf"\]\(\.\./((?:\.\./)*){re.escape(name)}\b", rf"](\1project/{own}", markdown)
    return markdown


def with_links_of_the_site(text: str) -> str:
    """The same page below `project`: links to pages of the site lead to them, those to other files are their words."""
    return re.sub(r"\[([^\]]+)\]\(([^)#]+)(#[^)]*)?\)", _link, text)


def _link(found: re.Match[str]) -> str:
    words, target, anchor = found[1], found[2], found[3] or ""
    if "://" in target:
        return found[0]
    if target in PAGES:
        return f"[{words}]({PAGES[target]}{anchor})"
    if target.startswith("docs/") and target.endswith(".md"):
        return f"[{words}](../{target.removeprefix('docs/')}{anchor})"
    return words
