"""The Decision Transformer's engine: experience is drawn from recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from fugu.algos.decision_transformer import DecisionLearner, DecisionTransformerConfig
from fugu.algos.optimisers import make_optimiser, set_learning_rate
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.data.offline import Dataset, group_folders
from fugu.data.sequences import Sequences, SequenceSampler
from fugu.envs.contract import AgentGroup
from fugu.policies.decision_transformer import (
    DecisionTransformer,
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)
from fugu.policies.policy import Policy
from fugu.training.collect import EpisodeRecord
from fugu.training.config import Config
from fugu.training.engine import Tensors
from fugu.training.keeping import keep_chance, keep_network, recall_chance, recall_network
from fugu.training.parts import Parts
from fugu.training.ppo_engine import optimiser_config
from fugu.vector import Vector

DRAWING, WEIGHTS, DROPOUT = 2, 3, 4  # branches of the seed tree; 0 is the environments'
NOTED_AT_ONCE = 65_536  # observations


class DecisionTransformerEngine:
    """Learns from a dataset; environments only say what layouts there are, and evaluate.

    Its steps are those of sequences that were learned from, padding left out.
    """

    def __init__(self, cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> None:
        self.cfg, self.episodes, self._device = cfg, EpisodeRecord(), device
        self._train = cast(DecisionTransformerConfig, cfg.train)
        self._policy_cfg = cast(DecisionTransformerPolicyConfig, cfg.policy)
        if self._train.data == Path():
            raise UsageError(
                "train.data: given nothing; allowed: a folder of recorded episodes, as `fugu "
                f"record {cfg.env} --data FOLDER` writes it."
            )
        self._random = np.random.default_rng(derive(cfg.seed, DRAWING))
        torch.manual_seed(derive(cfg.seed, WEIGHTS) >> 1)
        self._steps, self._updates = 0, 0
        self._samplers: list[SequenceSampler] = []
        self._learners: list[DecisionLearner] = []
        self._drawn: list[list[Sequences]] = []
        self._names = [group.name for group in vec.groups]
        folders = group_folders(self._train.data, vec.groups)
        for group, folder in zip(vec.groups, folders, strict=True):
            self._add_group(group, folder)

    def _add_group(self, group: AgentGroup, folder: Path) -> None:
        cfg, data = self._train, Dataset(folder)
        data.check(group)
        percentile = 100.0 if cfg.percentile is None else cfg.percentile
        sampler = SequenceSampler(
            data,
            self._policy_cfg.window,
            percentile=percentile,
            delayed=self._policy_cfg.delayed,
        )
        precision = self._policy_cfg.precision
        policy_cfg = replace(
            self._policy_cfg, precision="float32" if precision == "auto" else precision
        )
        policy = make_decision_transformer(group, policy_cfg).to(self._device)
        assert isinstance(policy, DecisionTransformer)
        largest = float(np.abs(sampler.returns_to_go).max())
        policy.core.scale.fill_(cfg.return_scale or largest or 1.0)
        policy.core.conditioned.fill_(float(cfg.percentile is None))
        if self.cfg.train.compile:
            compiled = torch.compile(policy.forward_sequences)
            policy.forward_sequences = compiled  # type: ignore[method-assign]
        optimiser = make_optimiser(policy, optimiser_config(self.cfg))
        self._samplers.append(sampler)
        self._learners.append(DecisionLearner(policy, optimiser, cfg))

    @property
    def policies(self) -> list[Policy]:
        """One for each group of agents."""
        return [learner.policy for learner in self._learners]

    @property
    def steps(self) -> int:
        """Steps of sequences that were learned from."""
        return self._steps

    def start(self, seed: int) -> None:
        """Look at all observations, so that they can be normalised, and at all returns."""
        for learner, sampler in zip(self._learners, self._samplers, strict=True):
            policy, data = learner.policy, sampler.data
            highest = float(data.returns.max())
            policy.ask(highest if self._train.target is None else self._train.target)
            if any(bool(scale.count) for scale in policy.scales):
                continue  # it began with another run's policy, whose weights expect its scales
            for first in range(0, len(data.observations), NOTED_AT_ONCE):
                rows = np.array(data.observations[first : first + NOTED_AT_ONCE])
                policy.note(torch.from_numpy(rows).to(self._device))

    def collect(self) -> None:
        """Draw the batches of an update, and count their steps."""
        cfg = self._train
        self._drawn = [
            [sampler.draw(cfg.batch_size, self._random) for _ in range(cfg.batches)]
            for sampler in self._samplers
        ]
        self._steps += sum(int(s.mask.sum()) for drawn in self._drawn for s in drawn)

    def update(self, progress: float, learning_rate: float) -> dict[str, float]:
        """Learn from them."""
        losses: dict[str, float] = {}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            # What dropout leaves out follows from the seed and the update alone.
            torch.manual_seed(derive(self.cfg.seed, DROPOUT, self._updates) >> 1)
            for learner, drawn, name in zip(self._learners, self._drawn, self._names, strict=True):
                set_learning_rate(learner.optimiser, learning_rate)
                told = learner.update(drawn, self._device)
                prefix = "" if len(self._learners) == 1 else f"{name}/"
                losses |= {f"{prefix}{key}": value for key, value in told.items()}
        self._updates, self._drawn = self._updates + 1, []
        return losses

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> tuple[Tensors, dict[str, Any]]:
        """All that the engine needs to go on exactly, but the data."""
        tensors: Tensors = {}
        optimisers = []
        for i, learner in enumerate(self._learners):
            optimisers.append(keep_network(tensors, i, learner.policy, learner.optimiser))
        return tensors, {
            "optimisers": optimisers,
            "random": keep_chance([self._random]),
            "data": [sampler.data.metadata["checksum"] for sampler in self._samplers],
        }

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], seed: int) -> None:
        """Go on from a checkpoint."""
        for i, (learner, sampler) in enumerate(zip(self._learners, self._samplers, strict=True)):
            if sampler.data.metadata["checksum"] != state["data"][i]:
                raise UsageError(
                    f"train.data: given {str(sampler.data.folder)!r}, whose episodes are not those "
                    "that the run began with; allowed: the same ones. Begin a new run with "
                    "--init-from."
                )
            rest = state["optimisers"][i]
            recall_network(tensors, i, learner.policy, learner.optimiser, rest)
        recall_chance([self._random], state["random"])
        self._steps, self._updates = int(state["steps"]), int(state["updates"])
