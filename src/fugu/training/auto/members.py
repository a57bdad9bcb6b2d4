"""The members of a search: the settings given, and changes of one or two factors to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fugu.algos.ppo import PPOConfig
from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, merge
from fugu.core.errors import UsageError

DEFAULTS = "defaults"  # the name of the first member, which changes nothing
ENTROPY = 0.01  # bonus of a member that explores, where the settings have none
USUAL_RATE = 3e-4  # the learning rate that the adaptation to the KL divergence starts from
ADAPTIVE: Tree = {
    "learning_rate": USUAL_RATE,
    "schedule": "constant",
    "desired_kl": 0.02,
    "final_desired_kl": 0.001,
}


@dataclass(frozen=True)
class Candidate:
    """One candidate of a search.

    Attributes:
        name: Short and unique, such as "gamma-down".
        changes: Settings of the section `train` that differ from those given.
        reason: Why these settings may be better.
    """

    name: str
    changes: Mapping[str, Any]
    reason: str

    def apply(self, cfg: Config) -> Config:
        """Return settings with this member's changes."""
        return replace(cfg, train=replace(cfg.train, **self.changes))

    def describe(self) -> str:
        """Return the changes as one line.

        >>> Candidate("gamma-down", {"gamma": 0.95}, "").describe()
        'gamma=0.95'
        """
        return ", ".join(f"{name.rstrip('_')}={value}" for name, value in self.changes.items())


def make_members(train: PPOConfig) -> list[Candidate]:
    """Return the members of the first rung, eight at most; the first one changes nothing.

    >>> [member.name for member in make_members(PPOConfig(desired_kl=0.02, learning_rate=3e-4))]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['defaults', 'rate-up', 'rate-down', 'entropy-up', 'gamma-down', 'gamma-up', 'epochs-down',
     'gamma-up-entropy-up']
    """
    shorter, longer = _discounts(train.gamma)
    entropy = {"entropy_coefficient": _round(3.0 * train.entropy_coefficient) or ENTROPY}
    found = [
        Candidate(DEFAULTS, {}, "the settings as they are without --auto"),
        Candidate("rate-up", _rates(train, 1), "larger policy updates may learn faster"),
        Candidate("rate-down", _rates(train, -1), "smaller policy updates may be more stable"),
        Candidate("entropy-up", entropy, "an entropy bonus keeps the policy exploring"),
        Candidate("gamma-down", shorter, "a shorter horizon has less noise, if rewards come soon"),
    ]
    if longer:
        found.append(Candidate("gamma-up", longer, "a longer horizon sees rewards that come late"))
    found.append(_reuse(train))
    if train.desired_kl is None or not 0.3 < train.learning_rate / USUAL_RATE < 3.0:
        reason = "a learning rate that adapts to the KL divergence corrects a wrong one"
        found.append(Candidate("rate-adaptive", ADAPTIVE, reason))
    elif longer:
        reason = "tasks with late rewards need both"
        found.append(Candidate("gamma-up-entropy-up", {**longer, **entropy}, reason))
    return found


def make_curious_members(train: PPOConfig) -> list[Candidate]:
    """Return the members for a task whose rewards do not vary: random network distillation."""
    if train.intrinsic == "rnd":
        return []
    curious = {"intrinsic": "rnd"}
    found = [Candidate("rnd", curious, "no return varied: reward new observations")]
    if longer := _discounts(train.gamma)[1]:
        reason = "no return varied: reward new observations, over a longer horizon"
        found.append(Candidate("rnd-gamma-up", {**curious, **longer}, reason))
    return found


def check_searchable(cfg: Config, ranks: int) -> None:
    """Raise UsageError for settings that a search cannot vary or compare."""
    if cfg.algo != "ppo":
        raise UsageError(
            f"auto: expected algo 'ppo'; got {cfg.algo!r}. The search varies PPO's settings and "
            "ranks by return. Leave out --auto, or use fugu sweep."
        )
    if cfg.league.enabled:
        raise UsageError(
            "auto: the return of a league depends on its opponents, so it cannot rank settings. "
            "Leave out --auto."
        )
    if ranks > 1:
        raise UsageError(f"auto: expected one process; got {ranks}. Leave out --nproc.")
    if cfg.run.record_data is not None:
        raise UsageError(
            "auto: run.record_data would mix the episodes of all members. Record a run of the "
            "chosen settings instead: fugu train ENV --config RUN/auto.toml"
        )


def member_config(base: Tree, member: Candidate, run: Mapping[str, Any]) -> Config:
    """Return the settings of a member of a search whose settings are `base`.

    Args:
        base: All settings of the search.
        member: The member.
        run: Settings of the section `run` that differ.
    """
    return member.apply(read_config(merge(base, {"run": run})))


def _rates(train: PPOConfig, sign: int) -> Tree:
    """Return a larger (1) or smaller (-1) policy update.

    >>> _rates(PPOConfig(learning_rate=0.001), 1)
    {'learning_rate': 0.003}
    >>> _rates(PPOConfig(desired_kl=0.02, final_desired_kl=0.001), -1)
    {'desired_kl': 0.01, 'final_desired_kl': 0.0005}
    """
    if train.desired_kl is None:
        return {"learning_rate": _round(train.learning_rate * 3.0**sign)}
    found = {"desired_kl": _round(train.desired_kl * 2.0**sign)}
    if train.final_desired_kl is not None:
        found["final_desired_kl"] = _round(train.final_desired_kl * 2.0**sign)
    return found


def _discounts(gamma: float) -> tuple[Tree, Tree]:
    """Return discounts with a fifth and with five times the effective horizon 1 / (1 - gamma).

    >>> _discounts(0.99), _discounts(1.0)
    (({'gamma': 0.95}, {'gamma': 0.998}), ({'gamma': 0.99}, {}))
    """
    if gamma >= 1.0:
        return {"gamma": 0.99}, {}
    left = 1.0 - gamma
    return {"gamma": _round(max(0.0, 1.0 - 5.0 * left))}, {"gamma": _round(1.0 - left / 5.0)}


def _reuse(train: PPOConfig) -> Candidate:
    """Return a member that uses each batch half as often, or twice where it is used once."""
    name = "epochs" if train.replay_ratio is None else "replay_ratio"
    given = getattr(train, name)
    if given > 1:
        half = given // 2 if name == "epochs" else _round(given / 2.0)
        return Candidate("epochs-down", {name: half}, "fewer epochs overfit a batch less")
    return Candidate("epochs-up", {name: 2 * given}, "more epochs learn more from a batch")


def _round(value: float) -> float:
    """Return a value without the noise of its last binary digits."""
    return float(f"{value:.6g}")
