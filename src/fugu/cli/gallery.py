"""`fugu gallery`: a web page with environments to play."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Gallery:
    """Write a web page on which every environment of the suite can be played.

    The page is one file that needs nothing else: open it from the disk, or put it on any host.
    """

    env: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ENV")] = ()
    """Only these: native environments or paths of built ones; may be given several times."""
    out: Path = Path("gallery")
    """The folder of the page."""

    def run(self) -> int:
        """Write it; 0 if it went well."""
        from fugu.web import write_gallery

        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"out: given {str(self.out)!r}, a file; allowed: a folder.")
        page = write_gallery(self.out, self.env or None)
        size = page.path.stat().st_size
        count = len(page.module_bytes)
        print(f"wrote {page.path}: {count} environments, {size / 1e3:,.0f} kB")
        print(f"next: open {page.path.resolve().as_uri()}")
        return 0
