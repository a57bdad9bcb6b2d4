"""`fugu coding`: run programs in the sandbox, and export programs that policies wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fugu.cli.parsing import Commands
from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Coding:
    """Run programs in the sandbox, and export programs that policies wrote."""

    @classmethod
    def commands(cls) -> Commands:
        """Return the commands of the group."""
        from fugu.cli.coding_run import CodingRun

        return {"run": CodingRun, "export": CodingExport}

    def run(self) -> int:
        """Raise: a command line names a command of the group."""
        raise NotImplementedError("run() -> int")


@dataclass(frozen=True)
class CodingExport:
    """Write the best programs of runs as chats, one JSON object a line (OpenPipe, OpenAI).

    fugu coding export latest --out winners.jsonl | fugu coding export A B --kind dpo
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")]
    """Runs, or files of trajectories."""
    out: Path = Path("export.jsonl")
    """The file to write; an old one is replaced."""
    kind: Literal["sft", "dpo", "groups"] = "sft"
    """sft: winners; dpo: the best and the worst of each group; groups: whole groups."""
    dialect: Literal["openpipe", "openai"] = "openpipe"
    """openpipe: with split and metadata; openai: bare, TEST rows in a second file."""
    min_reward: float = 1.0
    """The least reward of a winner, and of the better one of a pair."""
    per_task: int = 0
    """Keep only so many winners of a task, the best ones; 0: all."""
    test_share: float = 0.1
    """The share of tasks whose rows are for testing, chosen by their names."""
    merge_groups: bool = False
    """Take all attempts at a task for one group, not only those that began together."""
    keep_duplicates: bool = False
    """Keep the same program for the same task more than once."""
    root: str = "runs"
    """The folder of the runs."""
    json: bool = False
    """Print what was written as JSON and nothing else."""

    def run(self) -> int:
        """Write the file and return the exit status: 0 if it has rows."""
        from fugu.store.chat_export import ExportOptions, export_rows, write_rows
        from fugu.store.trajectories import read_groups

        if not self.sources:
            raise UsageError("coding export: given no source; allowed: runs, or files.")
        files = [_file(source, self.root) for source in self.sources]
        groups = [group for file in files for group in read_groups(file)]
        options = ExportOptions(
            self.kind,
            self.min_reward,
            self.per_task,
            self.test_share,
            self.merge_groups,
            self.keep_duplicates,
        )
        rows, report = export_rows(groups, options)
        written = write_rows(self.out, rows, self.dialect)
        facts = {**asdict(report), "files": [str(path) for path in written]}
        if self.json:
            print(json.dumps(facts, indent=2))
        else:
            print(
                f"{report.train} rows for training and {report.test} for testing, of "
                f"{report.trajectories} trajectories in {report.groups} groups "
                f"({report.duplicates} duplicates, {report.below} below the threshold, "
                f"{report.without_pair} groups without a pair): {', '.join(facts['files'])}"
            )
        return 0 if rows else 1


def _file(source: str, root: str) -> Path:
    """Return the file of trajectories that a source names."""
    from fugu.store import Run
    from fugu.store.trajectories import FILE

    if Path(source).is_file():
        return Path(source)
    run = Run.open(source, root)
    if not (run.folder / FILE).is_file():
        raise UsageError(
            f"coding export: given the run {run.name}, which has no {FILE}; "
            "allowed: a run that kept its trajectories, or a file of them."
        )
    return run.folder / FILE
