"""Blocks of the pages in docs/, and how they are run.

Blocks run one after the other in an empty folder: those of `python` in the test's own process,
those of `bash` in a shell. A block with a title is written to the file of that name, behind what
stands there already. What cannot run here is `sh`, and its title says why not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = "not run: "
SHOWN = ("text", "diff", "py", "pycon")  # no programs, but for docstrings, which doctest runs
# What commands are given beside what a page says, so that all of them end soon.
SHORTER = {
    "train": ("--train.total-steps", "2000"),
    "league": ("--train.total-steps", "2000"),
    "sweep": ("--trials", "1", "--train.total-steps", "100000"),  # until episodes end
    "autotune": ("--seconds", "1"),
}
# A search for settings needs 32 updates, so they are small ones.
SHORTER_SEARCH = ("--vec.num-envs", "4", "--vec.backend", "serial", "--train.horizon", "8")
SHORTENED = f"""#!{sys.executable}
import sys
from fugu.cli.main import main
if __name__ == "__main__":
    given = sys.argv[1:]
    search = {SHORTER_SEARCH!r} if "--auto" in given else ()
    shorter = () if given[:2] == ["sweep", "--resume"] else {SHORTER!r}.get(given[0], ())
    sys.exit(main([*given, *shorter, *search]))
"""
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```', re.S | re.M)
_INLINE = re.compile(r"`fugu ([a-z][^`]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not run, if it says so."""
        return self.title.removeprefix(NOT_RUN) if self.title.startswith(NOT_RUN) else ""

    @property
    def file(self) -> str:
        """The file that it is written to, if it is one."""
        return "" if self.reason else self.title


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def run_blocks(
    page: Path,
    folder: Path,
    languages: tuple[str, ...] = ("python", "bash"),
    *,
    shorter: bool = False,
) -> int:
    """Run a page from its beginning to its end; how many blocks ran.

    With `shorter`, long commands are cut short.
    """
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if shorter:
        command = folder / ".bin" / "fugu"
        command.parent.mkdir()
        command.write_text(SHORTENED)
        command.chmod(0o755)
        programs.insert(0, str(command.parent))
    names: dict[str, object] = {}
    ran = 0
    for block in blocks_of(page):
        if block.file:
            with (folder / block.file).open("a") as out:
                out.write(block.text + "\n")
        elif block.language in languages:
            ran += 1
            if block.language == "python":
                exec(compile(block.text, str(page), "exec"), names)
            else:
                _run_shell(block.text, os.pathsep.join(programs))
    return ran


def _run_shell(text: str, programs: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env={**os.environ, "PATH": programs},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2000,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def commands_of(page: Path) -> list[str]:
    """Every `fugu COMMAND ...` of a page, without `fugu`, in blocks and between words."""
    shells = [b.text for b in blocks_of(page) if b.language in ("bash", "sh", "text")]
    lines = re.findall(r"^fugu (.+)$", "\n".join(shells).replace("\\\n", " "), re.M)
    lines += _INLINE.findall(_BLOCK.sub("", page.read_text()))
    return [re.split(r" #|[;>&]", line)[0] for line in lines]
