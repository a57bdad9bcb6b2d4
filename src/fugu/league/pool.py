"""The pool: opponents of a learner, the seats that players hold, and results of their matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fugu.algos.settings import LeagueConfig
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.league.players import Ids, Player, take
from fugu.vector import Batch, Vector

NOBODY, LEARNER = -1, 0  # numbers of players; those of a pool begin at 1
SAME = 1e-6  # returns closer than this are a draw
ENOUGH = 50  # games against an opponent that say who is better
WINDOW = 400  # games after which older ones count half
Weighting = Literal["hard", "even", "uniform"]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

# Weights of opponents, by the share of points that the learner takes from them.
WEIGHTINGS: dict[Weighting, Callable[[Floats], Floats]] = {
    "hard": lambda scores: (1.0 - scores) ** 2,
    "even": lambda scores: scores * (1.0 - scores),
    "uniform": np.ones_like,
}


# ------------------------------------------------------------------ seats


@dataclass(frozen=True)
class Matches:
    """Matches that are over: who held each side, and its return, `[matches, sides]`.

    Lengths are steps of the environment, `[matches]`.
    """

    holders: Ids
    returns: NDArray[np.float64]
    lengths: Ids

    def outcomes(self) -> dict[tuple[int, int], list[int]]:
        """Return wins, draws and losses of the first of each two players, the lower number.

        Every two sides of a match that different players held count once.
        """
        found: dict[tuple[int, int], list[int]] = {}
        sides = self.holders.shape[1]
        for i in range(sides):
            for j in range(i + 1, sides):
                one, other = self.holders[:, i], self.holders[:, j]
                lead = self.returns[:, i] - self.returns[:, j]
                signs = np.where(np.abs(lead) <= SAME, 0, np.sign(lead)).astype(np.int64)
                signs = np.where(one < other, signs, -signs)
                pairs = np.stack([np.minimum(one, other), np.maximum(one, other), signs], 1)
                kinds, counts = np.unique(pairs[one != other], axis=0, return_counts=True)
                for (low, high, sign), count in zip(kinds.tolist(), counts.tolist(), strict=True):
                    found.setdefault((low, high), [0, 0, 0])[1 - sign] += count
        return found


class Seats:
    """Which player holds each side of each copy, from the beginning of a match to its end.

    A match is an episode of all agents of a copy. Sides are agents in a row that play together.

    Attributes:
        sides: Number of sides; if 0 is given, each agent is one.
        side_of: The side of each agent of a copy, group after group.
        holders: Numbers of players, `[copies, sides]`; they change only where a match is over.
    """

    def __init__(self, groups: Sequence[AgentGroup], num_envs: int, sides: int = 0) -> None:
        agents = sum(group.num_agents for group in groups)
        self.sides = sides or agents
        if agents < 2 or not 2 <= self.sides <= agents or agents % self.sides:
            raise UsageError(
                f"league: given {agents} agents in {self.sides} sides; allowed: two or more "
                "agents, and a number of sides, two or more, that divides them. An environment's "
                "setting may ask for more agents, such as --env.opponent 2 of connect4."
            )
        self.side_of = np.arange(agents) // (agents // self.sides)
        ends = np.cumsum([group.num_agents for group in groups]).tolist()
        self._parts = [
            self.side_of[end - g.num_agents : end] for g, end in zip(groups, ends, strict=True)
        ]
        self.holders = np.full((num_envs, self.sides), NOBODY)
        self._returns = np.zeros((num_envs, self.sides))
        self._lengths = np.zeros(num_envs, np.int64)
        self._ended = np.zeros((num_envs, agents), np.bool_)

    def of_group(self, group: int, holders: Ids) -> Ids:
        """Return the holder of each agent of a group, from holders `[copies, sides]`."""
        found: Ids = holders[:, self._parts[group]].reshape(-1)
        return found

    def note(self, batch: Batch) -> tuple[Flags, Matches]:
        """Return in which copies of a batch nobody plays now, and the matches that are over.

        Matches that a fault broke are over and not counted. UsageError if agents begin new
        episodes while others play on.
        """
        envs = batch.env_ids
        ends, rewards, valid, live = self._gather(batch)
        playing, broken = self.holders[envs, 0] != NOBODY, ~valid.all(1)
        for side in range(self.sides):
            self._returns[envs, side] += rewards[:, self.side_of == side].sum(1)
        self._lengths[envs] += playing
        ended = self._ended[envs] | ends
        over = ended.all(1) | broken | ~playing
        if (ended & live & ~over[:, None]).any():
            raise UsageError(
                "league: given an environment whose agents begin anew while others play on; "
                "allowed: one in which all agents' episodes end before any begins the next."
            )
        self._ended[envs] = ended
        done = envs[over & playing & ~broken]
        matches = Matches(
            self.holders[done], self._returns[done].copy(), self._lengths[done].copy()
        )
        gone = envs[over]
        self.holders[gone], self._returns[gone] = NOBODY, 0.0
        self._lengths[gone], self._ended[gone] = 0, False
        return over, matches

    def clear(self) -> None:
        """Begin new matches in all copies."""
        self.holders[:], self._returns[:], self._lengths[:] = NOBODY, 0.0, 0
        self._ended[:] = False

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the whole state, as arrays."""
        return {
            "holders": self.holders,
            "returns": self._returns,
            "lengths": self._lengths,
            "ended": self._ended,
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self.holders[:], self._returns[:] = state["holders"], state["returns"]
        self._lengths[:], self._ended[:] = state["lengths"], state["ended"]

    def _gather(self, batch: Batch) -> tuple[Flags, NDArray[np.float32], Flags, Flags]:
        """Return ends, rewards, validity and turns of all agents, `[copies, agents]`."""
        envs, rows = len(batch.env_ids), [group.rows for group in batch.groups]

        def side_by_side(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            return np.concatenate([array.reshape(envs, -1) for array in arrays], 1)

        return (
            side_by_side([row.terminations | row.truncations for row in rows]),
            side_by_side([row.rewards for row in rows]),
            side_by_side([row.valid for row in rows]),
            side_by_side([row.live for row in rows]),
        )


# ------------------------------------------------------------------ matchmaking


@dataclass
class Record:
    """The learner's games against one opponent, of which the last few hundred count most.

    >>> record = Record()
    >>> record.add(wins=3, draws=1, losses=0)
    >>> record.score  # with a win and a loss beforehand
    0.75
    """

    wins: float = 0.0
    draws: float = 0.0
    losses: float = 0.0

    @property
    def games(self) -> float:
        """Number of games, those that count half as halves."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """The share of points that the learner takes, draws as half; a half before the first."""
        return (self.wins + self.draws / 2 + 1.0) / (self.games + 2.0)

    def add(self, wins: float, draws: float, losses: float) -> None:
        """Add games."""
        self.wins += wins
        self.draws += draws
        self.losses += losses
        while self.games > 2 * WINDOW:
            self.wins, self.draws, self.losses = self.wins / 2, self.draws / 2, self.losses / 2


def chances(scores: Sequence[float], weighting: Weighting) -> Floats:
    """Return the probability of each opponent, by the learner's score against it.

    >>> chances([0.5, 0.9], "hard").round(3).tolist()
    [0.962, 0.038]
    """
    weights = WEIGHTINGS[weighting](np.asarray(scores, np.float64))
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def draw_matches(
    count: int,
    sides: int,
    opponents: NDArray[np.int64],
    self_share: float,
    learner: int,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Return who holds the sides of new matches, `[count, sides]`.

    In a share of them the learner holds all sides; else a random one, and each other side has one
    of the opponents.
    """
    holders = np.full((count, sides), learner)
    if not len(opponents):
        return holders
    others = random.choice(opponents, (count, sides))
    mine = random.integers(sides, size=count)
    alone = random.random(count) < self_share
    others[np.arange(count), mine] = learner
    found: NDArray[np.int64] = np.where(alone[:, None], holders, others)
    return found


# ------------------------------------------------------------------ the pool


@dataclass
class Member:
    """An opponent.

    Attributes:
        number: Its number in seats; no other member ever has it.
        name: Its name in the ledger.
        player: Acts for it.
        step: Step of the learner that it is a snapshot of; None for others, who stay for good.
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
        """Return all but the player, as JSON has it."""
        record = list(asdict(self.record).values())
        facts = {"number": self.number, "name": self.name, "step": self.step}
        return {**facts, "record": record, "retired": self.retired}


class Pool:
    """Opponents, which of them are in play, and the results of their matches.

    Attributes:
        seats: Which player holds which agents.
        members: All opponents, oldest first; retired ones as long as they hold a seat.
        tallies: Wins, draws and losses of each two players, the lower number first, until they are
            written to the ledger.
    """

    def __init__(self, vec: Vector, cfg: LeagueConfig, random: np.random.Generator) -> None:
        self.seats = Seats(vec.groups, vec.num_envs, cfg.sides)
        self._cfg, self.random = cfg, random
        self.members: list[Member] = []
        self.tallies: dict[tuple[int, int], list[int]] = {}
        self._next = LEARNER + 1
        self._in_play: list[int] = []

    @property
    def players(self) -> dict[int, Player]:
        """The players of all members, by their numbers in seats."""
        return {member.number: member.player for member in self.members}

    @property
    def active(self) -> list[Member]:
        """Members that can be drawn."""
        return [member for member in self.members if not member.retired]

    @property
    def beaten(self) -> bool:
        """Whether the learner beats each of them, as far as the settings ask."""
        least = self._cfg.snapshot_score
        records = [member.record for member in self.active]
        return all(each.games >= ENOUGH and each.score >= least for each in records)

    def add(self, name: str, player: Player, step: int | None = None) -> Member:
        """Add a member; if there are too many snapshots, the one that is beaten most retires."""
        member = Member(self._next, name, player, step)
        self._next += 1
        self.members.append(member)
        snapshots = [each for each in self.active if each.step is not None]
        if self._cfg.pool_size and len(snapshots) > self._cfg.pool_size:
            max(snapshots[:-1], key=lambda each: each.record.score).retired = True
        self.refresh()
        return member

    def refresh(self) -> None:
        """Draw who is in play until the next time; matches under way are played to their end."""
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
        """Count matches that are over, and seat players where nobody plays; see `Seats.note`."""
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

    def _member(self, number: int) -> Member:
        return next(member for member in self.members if member.number == number)

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """Return the state that JSON can hold."""
        return {
            "members": [member.to_dict() for member in self.members],
            "in_play": self._in_play,
            "next": self._next,
            "random": self.random.bit_generator.state,
        }

    def load_state(
        self, state: Mapping[str, Any], make_player: Callable[[str, int | None], Player]
    ) -> None:
        """Restore a `state()`; `make_player` is called with names and steps."""
        self.members = []
        for entry in state["members"]:
            player = make_player(entry["name"], entry["step"])
            member = Member(entry["number"], entry["name"], player, entry["step"])
            member.record, member.retired = Record(*entry["record"]), entry["retired"]
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
    """Write the actions of agents of a group, each player acting at once for all that it holds.

    Args:
        players: By their numbers; agents of other numbers are left out.
        group: Number of the group.
        agents: Agents of the batch, `[agents]`.
        rows: Their rows.
        holders: Number of the player that holds each agent.
        fresh: Whether a match of the agent begins now.
        actions: Array that the actions are written to.
    """
    for number in np.unique(holders).tolist():
        if number not in players:
            continue
        mine = np.flatnonzero(holders == number)
        player, begins = players[number], mine[fresh[mine]]
        if len(begins):
            player.begin(group, agents[begins])
        actions[mine] = player.act(group, agents[mine], take(rows, mine))
