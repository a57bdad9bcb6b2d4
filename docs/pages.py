"""What the scripts of this folder share: pages that are written, or compared with what stands."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(pages: dict[Path, str]) -> int:
    """Write pages; with --check compare them, 1 if one is not what it should be."""
    if "--check" in sys.argv:
        old = [str(path) for path, text in pages.items() if _standing(path) != text]
        print(f"not up to date: {old}" if old else "all pages are up to date")
        return int(bool(old))
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(f"wrote {len(pages)} pages")
    return 0


def between(path: Path, mark: str, text: str) -> str:
    """The page at `path` with other text between `<!-- mark -->` and `<!-- end of mark -->`."""
    return replace_between(path.read_text(), mark, text, path)


def replace_between(page: str, mark: str, text: str, path: Path) -> str:
    """Return a page, that of `path`, with other text between the two comments of a mark."""
    before, begin, rest = page.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- end of {mark} -->")
    if not begin or not end:
        raise SystemExit(f"{path} has no place for {mark}: <!-- {mark} --> <!-- end of {mark} -->")
    return f"{before}{begin}{text}{end}{after}"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _standing(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
