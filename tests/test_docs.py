"""The pages are true: what stands in them runs, and what is written from the code is up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from page_blocks import SHOWN, blocks_of, commands_of, run_blocks

from fugu.cli.main import COMMANDS, main
from fugu.cli.parsing import SettingsCommand
from fugu.envs import suite

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("**/*.md"))]
# Pages that lead newcomers: nothing is cut short.
START = DOCS / "start.md"
LESSONS = sorted((DOCS / "write_your_own").glob("*.md"))
WITH_COMMANDS = [
    page
    for page in PAGES
    if page not in (START, *LESSONS) and any(block.language == "bash" for block in blocks_of(page))
]
HERE = re.compile(r"`(tests/[a-z0-9_/.]+?)(?:::(\w+))?`")
SETTINGS = ("--train.", "--vec.", "--policy.", "--run.", "--league.", "--sweep.", "--env.")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
# The sum over all pages; what is not run is to be rare.
MOST_NOT_RUN = 12


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty one to work in, whose modules can be imported until the test is over."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


# ---------------------------------------------------------------------- what pages show


@pytest.mark.parametrize("page", [p for p in PAGES if p not in (START, *LESSONS)], ids=name_of)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    run_blocks(page, folder, ("python",))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_a_page_runs_with_its_commands(page: Path, folder: Path) -> None:
    run_blocks(page, folder, shorter=True)


@pytest.mark.timeout(2400)  # they train; a page may take minutes, and longer on a busy machine
@pytest.mark.parametrize(
    "page", [*LESSONS, pytest.param(START, marks=pytest.mark.slow)], ids=name_of
)
def test_a_lesson_runs_word_for_word(page: Path, folder: Path) -> None:
    assert run_blocks(page, folder) > 1


def test_every_block_runs_or_says_why_not() -> None:
    blocks = [(page, block) for page in PAGES for block in blocks_of(page)]
    makes = [b for _, b in blocks if b.language == "sh" and b.text.startswith("make ")]
    not_run = [b for _, b in blocks if b.reason]
    for page, block in blocks:
        runs = block.language in ("python", "bash") or block.file
        assert runs or block.language in SHOWN or block in not_run + makes, (page, block)
    assert len(not_run) <= MOST_NOT_RUN
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for block in makes:
        assert {*re.findall(r"^make ([a-z-]+)", block.text, re.M)} <= {*targets}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_and_their_options_are_there(page: Path) -> None:
    settings = "".join(path.read_text() for path in (DOCS / "reference/settings").glob("*.md"))
    for command in commands_of(page):
        name, words = command.partition(" ")[::2]
        assert name in COMMANDS, command
        known = (DOCS / "reference/commands" / f"{name}.md").read_text()
        kind = COMMANDS[name]
        if isinstance(kind, type) and issubclass(kind, SettingsCommand):
            known += settings
        asked = {
            flag for flag in OPTION.findall(words) if not flag.startswith(("--env.", "--sweep."))
        }
        assert asked <= {"--help", *OPTION.findall(known)}, command


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


# ---------------------------------------------------------------------- written from the code


@pytest.mark.parametrize("script", sorted(DOCS.glob("generate_*.py")), ids=lambda path: path.stem)
def test_pages_that_are_written_are_up_to_date(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr} Run: python {script}"


def test_every_environment_has_a_picture() -> None:
    for name in suite.names():
        assert (DOCS / "envs/pictures" / f"{name}.png").stat().st_size > 1000


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_the_options_of_its_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "reference/commands" / f"{name}.md").read_text()
    actions = re.findall(rf"^## fugu {name} (\w+)", page, re.M)
    told = ""
    for action in actions or [""]:
        main([name, *filter(None, [action]), "--help"])
        told += capsys.readouterr().out
    shown, asked = (
        {option for option in OPTION.findall(text) if not option.startswith(SETTINGS)}
        for text in (page, told)
    )
    assert shown - {"--help"} == asked - {"--help"}


# ---------------------------------------------------------------------- what pages name


def test_tests_that_pages_name_are_there() -> None:
    named = [found for page in PAGES for found in HERE.findall(page.read_text())]
    assert len(named) > 40
    for file, test in named:
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_the_architecture_names_what_is_there() -> None:
    text = (DOCS / "architecture.md").read_text()
    files = re.findall(r"`((?:src|native)/[\w/]+\.\w+)`", text)
    assert len(files) > 20
    assert not [file for file in files if not (ROOT / file).is_file()]
    for parent in (ROOT / "native", ROOT / "src/fugu"):
        for child in parent.iterdir():
            if child.is_dir() and child.name != "__pycache__":
                assert re.search(rf"^  {child.name}/", text, re.M), f"{child} is not in the tree"


# ---------------------------------------------------------------------- the site


class Fetched(HTMLParser):
    """Addresses that a browser asks for when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("next", "prev", "canonical"):
            self.found.append(given.get("href") or "")


def test_the_site_is_built_and_names_nothing_outside(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed here")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("**/*.html"))
    assert len(pages) > 90
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text())
        outside = [address for address in fetched.found if re.match(r"(https?:)?//", address)]
        assert not outside, (page, outside)
