"""`fugu league`: training against a pool of opponents."""

from __future__ import annotations

from dataclasses import dataclass

from fugu.cli.flags import settings_help
from fugu.cli.train import TRAIN_HELP, Train
from fugu.core.config import merge

LEAGUE_HELP = """usage: fugu league ENV [--SECTION.SETTING VALUE ...]

Train a policy in a game of two or more sides (connect4, pong, pettingzoo:classic/connect_four_v3)
against a pool: snapshots of itself, drawn by how hard they are to beat, and itself as it is.
Takes all that fugu train takes; fugu resume goes on with it, fugu rank shows who is how good.
"""


@dataclass(frozen=True)
class League(Train):
    """Train a policy against snapshots of itself and others."""

    @classmethod
    def parse(cls, args: list[str]) -> League:
        """The command that flags describe."""
        if not args or {"-h", "--help"} & {*args}:
            options = TRAIN_HELP.partition("\n\n")[2].partition("\n\n")[2]
            print(LEAGUE_HELP + "\n" + options + "\n")
            print(settings_help(sections=("league", "train", "vec", "policy", "run")))
            raise SystemExit(0 if args else 2)
        made = Train.parse(args)
        tree = merge(made.tree, {"league": {"enabled": True}})
        return cls(**{**vars(made), "tree": tree})
