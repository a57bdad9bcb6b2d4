"""What the site has beside the pages of this folder; mkdocs.yml names this file.

Files of the repository's root are pages too, and a folder in the navigation is what its index says:
the pages that it links to, below its own headings.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_policy.md",  # security.md is the threat model
}
LISTED = re.compile(r"^\| \[([^\]]+)\]\(([\w-]+\.md)\)", re.M)


def on_config(config: Any) -> Any:
    """Put pages in the place of folders."""
    config.nav = [_unfolded(entry) for entry in config.nav]
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of the root."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text()
        files.append(File.generated(config, page, content=_relinked(text, source, page)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links to files of the root lead to their pages."""
    place = page.file.src_uri
    return markdown if place in OUTSIDE.values() else _relinked(markdown, f"docs/{place}", place)


def _relinked(text: str, source: str, page: str) -> str:
    """The text of a file at `source` in the repository, its links for a page of the site."""
    here = posixpath.dirname(page) or "."

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        there = OUTSIDE.get(target, target.removeprefix("docs/"))
        return f"]({posixpath.relpath(there, here)}" if there != target else match[0]

    return re.sub(r"\]\((?![a-z]+:)([^)#\s]+)", moved, text)


def _unfolded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _unfolded(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_unfolded(value) for value in entry]
    return _pages_of(entry) if entry.endswith("/") else entry


def _pages_of(folder: str) -> list[Any]:
    """The index of a folder, then its sections that list pages."""
    index = f"{folder}index.md"
    _, *sections = re.split("^## ", (ROOT / "docs" / index).read_text(), flags=re.M)
    return [index, *filter(None, (_section(folder, text) for text in sections))]


def _section(folder: str, text: str) -> dict[str, Any] | None:
    """The pages that the table of a section links to, below its heading."""
    heading, _, rest = text.replace("`", "").partition("\n")
    pages = [{title.removeprefix("fugu "): folder + page} for title, page in LISTED.findall(rest)]
    return {heading: pages} if pages else None
