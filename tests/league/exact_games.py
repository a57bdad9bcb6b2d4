"""Games small enough to say exactly how far a strategy is from the best: rock-paper-scissors, Kuhn.

Exploitability is what a best response gains against a strategy, the mean of both seats; it is 0
for an equilibrium and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.spaces import Layout

Floats = NDArray[np.float64]
WINS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])  # rock, paper, scissors


class TwoPlayers(Env):
    """What both games share: one group of two agents who see a one-hot vector."""

    def __init__(self, sights: int, actions: int) -> None:
        layouts = Layout.of(spaces.Box(0, 1, (sights,))), Layout.of(spaces.Discrete(actions))
        self.groups = (AgentGroup("player", ("first", "second"), *layouts),)
        self.bind(Buffers.allocate(self.groups[0]))

    def bind(self, *buffers: Buffers) -> None:
        self.buffers = buffers
        buffers[0].valid[:] = True
        buffers[0].action_masks[:] = True

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.random = np.random.default_rng(derive(0 if seed is None else seed))
        self.clear()
        self.deal()

    def clear(self) -> None:
        rows = self.buffers[0]
        rows.rewards[:] = 0.0
        rows.terminations[:] = rows.truncations[:] = False

    def deal(self) -> None:
        raise NotImplementedError("deal() -> None")

    def end(self, pay: float) -> None:
        """The first gets so much and the second loses it; the next game begins."""
        rows = self.buffers[0]
        rows.rewards[:] = pay, -pay
        rows.terminations[:] = True
        rows.final[:] = rows.observations
        self.deal()

    def close(self) -> None:
        pass


class RockPaperScissors(TwoPlayers):
    """Both choose at once; one step is a game."""

    def __init__(self) -> None:
        super().__init__(1, 3)

    def deal(self) -> None:
        rows = self.buffers[0]
        rows.observations[:] = 1.0
        rows.live[:] = True

    def step(self) -> None:
        first, second = self.buffers[0].actions[:, 0].tolist()
        self.clear()
        self.end(float(WINS[first, second]))


def rock_paper_scissors_exploitability(strategy: Sequence[float]) -> float:
    """What the best answer earns."""
    return float((WINS @ np.asarray(strategy)).max())


# Kuhn poker (Kuhn 1950): three cards, an ante of 1, one bet of 1. Actions: pass, bet.
# What was done before names where a player decides; the first two are the first player's.
NODES = ("", "pb", "p", "b")
PAYS = {"pp": 1, "pbp": -1, "pbb": 2, "bp": 1, "bb": 2}  # to the first; "-" of the card, below
SHOWDOWNS = ("pp", "pbb", "bb")
DEALS = list(itertools.permutations(range(3), 2))
SIGHTS = 12  # a card and a node


class Kuhn(TwoPlayers):
    """Turn by turn; what a player sees is its card and the node, as one of twelve."""

    def __init__(self) -> None:
        super().__init__(SIGHTS, 2)

    def deal(self) -> None:
        self.cards = DEALS[self.random.integers(len(DEALS))]
        self.history = ""
        self.show()

    def show(self) -> None:
        rows, player = self.buffers[0], len(self.history) % 2
        rows.observations[:] = 0.0
        rows.observations[player, sight(self.cards[player], self.history)] = 1.0
        rows.live[:] = player == 0, player == 1

    def step(self) -> None:
        player = len(self.history) % 2
        action = int(self.buffers[0].actions[player, 0])
        self.clear()
        self.history += "pb"[action]
        if self.history in PAYS:
            self.end(pay(self.history, self.cards))
        else:
            self.show()


def sight(card: int, history: str) -> int:
    """Which of the twelve it is."""
    return 4 * card + NODES.index(history)


def pay(history: str, cards: Sequence[int]) -> float:
    """What the first player gets at an end."""
    if history in SHOWDOWNS and cards[0] < cards[1]:
        return -float(PAYS[history])
    return float(PAYS[history])


def kuhn_value(first: Floats, second: Floats) -> float:
    """What the first player gets; strategies are chances of betting, `[12]`."""
    return float(np.mean([_value(first, second, cards, "") for cards in DEALS]))


def _value(first: Floats, second: Floats, cards: Sequence[int], history: str) -> float:
    if history in PAYS:
        return pay(history, cards)
    player = len(history) % 2
    bet = (first, second)[player][sight(cards[player], history)]
    passed, raised = (_value(first, second, cards, history + each) for each in "pb")
    return float((1 - bet) * passed + bet * raised)


def kuhn_exploitability(strategy: Floats) -> float:
    """What best responses gain, the mean of both seats, by trying all pure strategies of each."""
    gains = []
    for player in (0, 1):
        places = [4 * card + node for card in range(3) for node in (2 * player, 2 * player + 1)]
        best = -np.inf
        for bets in itertools.product((0.0, 1.0), repeat=len(places)):
            answer = strategy.copy()
            answer[places] = bets
            value = kuhn_value(answer, strategy) if not player else -kuhn_value(strategy, answer)
            best = max(best, value)
        gains.append(best)
    return float(np.mean(gains))


def kuhn_average(strategies: Sequence[Floats]) -> Floats:
    """The strategy that plays like one of several, drawn at the beginning of each game.

    At a node that a player reaches by its own passing, each counts as often as it passes.
    """
    table = np.stack(strategies)  # [strategies, 12]
    weights = np.ones_like(table)
    for card in range(3):
        weights[:, sight(card, "pb")] = 1.0 - table[:, sight(card, "")]
    total = weights.sum(0)
    mean: Floats = (weights * table).sum(0) / np.where(total > 0, total, 1.0)
    return mean
