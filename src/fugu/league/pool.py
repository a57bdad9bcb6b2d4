"""The pool: the opponents of a learner, snapshots of itself and others, and the games with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.algos.settings import LeagueConfig
from fugu.envs.contract import Buffers
from fugu.league.matchmaking import Record, chances, draw_matches
from fugu.league.players import Ids, Player, take
from fugu.league.seats import LEARNER, Flags, Matches, Seats
from fugu.vector import Batch, Vector

ENOUGH = 50  # games against an opponent that say who is better


@dataclass
class Member:
    """An opponent.

    Attributes:
        number: In seats; no other member ever has it.
        name: In the ledger.
        player: Who acts.
        step: Of the learner that it is a snapshot of; None for others, who stay for good.
        record: The learner's games against it.
        retired: Whether it is drawn no more.
    """

    number: int
    name: str
    player: Player
    step: int | None = None
    record: Record = field(default_factory=Record)
    retired: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All but the player, as JSON has it."""
        record = [self.record.wins, self.record.draws, self.record.losses]
        return {
            "number": self.number,
            "name": self.name,
            "step": self.step,
            "record": record,
            "retired": self.retired,
        }


class Pool:
    """Opponents, who of them is in play, and what came of their matches.

    Args:
        vec: The environments.
        cfg: Settings.
        random: Where chance comes from.

    Attributes:
        seats: Who holds what.
        members: All of them, oldest first; retired ones as long as they hold a seat.
        tallies: Wins, draws and losses of each two players, the lower number first, until
            somebody writes them down.
    """

    def __init__(self, vec: Vector, cfg: LeagueConfig, random: np.random.Generator) -> None:
        self.seats = Seats(vec.groups, vec.num_envs, cfg.sides)
        self._cfg, self.random = cfg, random
        self.members: list[Member] = []
        self.tallies: dict[tuple[int, int], list[int]] = {}
        self._next = LEARNER + 1
        self._in_play: list[int] = []

    @property
    def active(self) -> list[Member]:
        """Those who can be drawn."""
        return [member for member in self.members if not member.retired]

    @property
    def beaten(self) -> bool:
        """Whether the learner is better than each of them, as far as the settings ask."""
        least = self._cfg.snapshot_score
        records = [member.record for member in self.active]
        return all(each.games >= ENOUGH and each.score >= least for each in records)

    def add(self, name: str, player: Player, step: int | None = None) -> Member:
        """One more; if there are too many snapshots then, the one that is beaten most retires."""
        member = Member(self._next, name, player, step)
        self._next += 1
        self.members.append(member)
        snapshots = [each for each in self.active if each.step is not None]
        if self._cfg.pool_size and len(snapshots) > self._cfg.pool_size:
            max(snapshots[:-1], key=lambda each: each.record.score).retired = True
        self.refresh()
        return member

    def refresh(self) -> None:
        """Draw who is in play until the next time; those who play already play to the end."""
        seated = set(np.unique(self.seats.holders).tolist())
        self.members = [m for m in self.members if not m.retired or m.number in seated]
        active = self.active
        count = min(self._cfg.in_play, len(active))
        if not count:
            self._in_play = []
            return
        odds = chances([member.record.score for member in active], self._cfg.draw)
        drawn = self.random.choice(len(active), self._cfg.in_play, p=odds)
        self._in_play = [active[i].number for i in drawn.tolist()]

    # ------------------------------------------------------------------ playing

    def note(self, batch: Batch) -> tuple[Flags, Matches]:
        """Count matches that are over, and seat players where nobody plays; which copies those are.

        See `Seats.note`.
        """
        over, matches = self.seats.note(batch)
        for pair, counts in matches.outcomes().items():
            total = self.tallies.setdefault(pair, [0, 0, 0])
            for i, count in enumerate(counts):
                total[i] += count
            if pair[0] == LEARNER:
                self._member(pair[1]).record.add(*counts)
        if over.any():
            opponents = np.array(self._in_play, np.int64)
            self.seats.holders[batch.env_ids[over]] = draw_matches(
                int(np.count_nonzero(over)),
                self.seats.sides,
                opponents,
                self._cfg.self_share,
                LEARNER,
                self.random,
            )
        return over, matches

    def act(
        self,
        group: int,
        agents: Ids,
        rows: Buffers,
        holders: Ids,
        fresh: Flags,
        actions: NDArray[Any],
    ) -> None:
        """Write the actions of all agents that members hold, batched by member.

        Args:
            group: The number of the agents' group.
            agents: All of the batch.
            rows: Theirs.
            holders: Who holds each.
            fresh: Whose match begins now.
            actions: Where to write.
        """
        act_for(
            {member.number: member.player for member in self.members},
            group, agents, rows, holders, fresh, actions,
        )  # fmt: skip

    def _member(self, number: int) -> Member:
        return next(member for member in self.members if member.number == number)

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {
            "members": [member.to_dict() for member in self.members],
            "in_play": self._in_play,
            "next": self._next,
            "random": self.random.bit_generator.state,
        }

    def load_state(
        self, state: Mapping[str, Any], make_player: Callable[[str, int | None], Player]
    ) -> None:
        """Go back to a `state()`; `make_player` is called with names and steps."""
        self.members = []
        for told in state["members"]:
            player = make_player(told["name"], told["step"])
            member = Member(told["number"], told["name"], player, told["step"])
            member.record, member.retired = Record(*told["record"]), told["retired"]
            self.members.append(member)
        self._in_play, self._next = list(state["in_play"]), int(state["next"])
        self.random.bit_generator.state = state["random"]
        self.tallies = {}


def act_for(
    players: Mapping[int, Player],
    group: int,
    agents: Ids,
    rows: Buffers,
    holders: Ids,
    fresh: Flags,
    actions: NDArray[Any],
) -> None:
    """Let each player act for all agents that it holds, at once; see `Pool.act`."""
    for number in np.unique(holders).tolist():
        if number not in players:
            continue
        mine = np.flatnonzero(holders == number)
        player, begins = players[number], mine[fresh[mine]]
        if len(begins):
            player.begin(group, agents[begins])
        actions[mine] = player.act(group, agents[mine], take(rows, mine))
