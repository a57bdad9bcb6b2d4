"""Commands: what environments are told or asked beside their actions, and what they reply."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import derive, fresh_seed
from fugu.vector.crews import Crew
from fugu.vector.faults import RestartedError, WorkerError
from fugu.vector.overseer import Overseer

if TYPE_CHECKING:
    from fugu._native import Exchange, Pool

RESETS = 0x7273  # the branch of the seed tree for resets without a seed, after the first
Seeds = int | Sequence[int | None] | None
Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None


class MissingAttributeError(WorkerError, AttributeError):
    """Something of an environment was asked for that it does not have."""


class Commander:
    """Sends commands to the workers of one vector.

    Args:
        exchange: Between learner and workers.
        crew: The workers.
        overseer: Who looks after them.
        renew: To be called when environments that were received began anew.
    """

    def __init__(
        self,
        exchange: Exchange | Pool,
        crew: Crew,
        overseer: Overseer,
        renew: Callable[[], object],
    ) -> None:
        self._exchange, self._crew, self._overseer = exchange, crew, overseer
        self._renew = renew

    def reset(
        self, env_ids: NDArray[np.int64], seeds: Sequence[int | None], options: Options
    ) -> None:
        """Begin environments anew; both others have an item for every environment there is."""
        each = options if isinstance(options, Sequence) else [options] * len(seeds)
        if len(each) != len(seeds):
            raise UsageError(
                f"options: given {len(each)} of them; allowed: one, or {len(seeds)} in a list."
            )
        envs = env_ids.tolist()
        known = self._overseer.seeds
        for env in envs:
            known[env] = known[env] if seeds[env] is None else seeds[env]
        self._overseer.lost.difference_update(envs)
        self._send([("reset", env, seeds[env], each[env]) for env in envs])

    def ask(
        self,
        name: str,
        env_ids: Sequence[int],
        values: Sequence[Any] | None,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """What environments reply, all of which were received; see `Vector.ask`."""
        self._find_lost(env_ids)
        replies = self._overseer.replies
        replies.clear()
        commands = [
            ("call", env, name, None if values is None else values[env], arguments, dict(named))
            for env in env_ids
        ]
        self._send(commands)
        self._take(len(env_ids))
        self._overseer.read_mail()
        missing = [env for env in env_ids if env not in replies]
        if missing:
            self._renew()
        refused = [reply for reply in replies.values() if reply[0] == "refusal"]
        if refused:
            _, env, error, trace = refused[0]
            kind = MissingAttributeError if error.startswith("AttributeError") else WorkerError
            raise kind(f"{name} failed in environment {env}: {trace}")
        if missing:
            raise RestartedError(
                f"{name.strip()} got no reply from environments {missing}: they restarted"
            )
        return tuple(replies[env][2] for env in env_ids)

    def _find_lost(self, env_ids: Sequence[int]) -> None:
        """Begin anew what ended with its worker: it could not tell anything of itself."""
        lost = sorted(self._overseer.lost.intersection(env_ids))
        if lost:
            self._overseer.lost.difference_update(lost)
            self._exchange.post(np.array(lost, np.int64))
            self._take(len(lost))
            self._renew()

    def _take(self, count: int) -> None:
        """Wait for so many environments; no others are under way."""
        every = len(self._overseer.due)
        self._overseer.wait(0, every, count)
        self._exchange.take(0, every, count, np.zeros(every, np.int64))

    def _send(self, commands: list[tuple[Any, ...]]) -> None:
        """Post the environments of each worker in turn, and send it what to do with them.

        A worker that ends meanwhile gets nothing more: its environments restart without a command,
        and one that was left in the channel of its successor would be taken for a later one.
        """
        shares: dict[int, list[tuple[Any, ...]]] = {}
        for command in commands:
            shares.setdefault(self._exchange.owner(command[1]), []).append(command)
        for worker, share in shares.items():
            channel = self._crew.channels[worker]
            self._exchange.post(np.array([command[1] for command in share], np.int64), True)
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                for command in share:
                    channel.send(command, self._while_sending)

    def _while_sending(self) -> None:
        self._overseer.read_mail()
        self._overseer.look_after_workers()


class ResetSeeds:
    """The seeds of every environment, from one root, each time that all begin anew.

    Attributes:
        root: The root, if one is known yet.
    """

    def __init__(self, num_envs: int, group_size: int, root: int | None) -> None:
        self.root, self._num_envs, self._group_size = root, num_envs, group_size
        self._resets = 0  # since the root was set, so that each begins other episodes

    def next(self, seed: Seeds) -> list[int | None]:
        """One for each environment; environments of a group have the same."""
        if isinstance(seed, Sequence):
            if len(seed) != self._num_envs:
                raise UsageError(
                    f"seed: given {len(seed)} seeds; allowed: one integer, or {self._num_envs}."
                )
            return list(seed)
        if seed is not None:
            self.root, self._resets = int(seed), 0
        elif self.root is None:
            self.root = fresh_seed()
        root = derive(self.root, RESETS, self._resets) if self._resets else self.root
        self._resets += 1
        return [derive(root, env // self._group_size) for env in range(self._num_envs)]
