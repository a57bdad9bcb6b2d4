"""d3rlpy's Decision Transformer, timed: three layers of 128 with one head, 20 steps of context."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import d3rlpy
import numpy as np
from watching import Watch, read_settings

STEPS = 10  # of the optimiser between two looks at the watch


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    data = np.load(Path(settings["data"]) / "arrays.npz")
    dataset = d3rlpy.dataset.MDPDataset(
        observations=data["observations"],
        actions=data["actions"],
        rewards=data["rewards"],
        terminals=data["terminations"],
        timeouts=data["truncations"],
    )
    algorithm = d3rlpy.algos.DiscreteDecisionTransformerConfig(
        batch_size=64,
        context_size=20,
        max_timestep=1024,
        num_heads=1,
        num_layers=3,
        activation_type="relu",
        position_encoding_type=d3rlpy.PositionEncodingType.SIMPLE,
        encoder_factory=d3rlpy.models.VectorEncoderFactory([128], exclude_last_activation=True),
        observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(),
    ).create(device="cpu:0")
    watch = Watch({"goal": "rate", "seconds": settings["seconds"]})

    def after_step(algorithm: Any, epoch: int, step: int) -> None:
        if step % STEPS == 0 and watch.done(step):
            networks = algorithm.impl.modules.transformer
            watch.answer(parameters=sum(p.numel() for p in networks.parameters()))

    algorithm.fit(
        dataset,
        n_steps=10**6,
        n_steps_per_epoch=10**6,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        callback=after_step,
    )


if __name__ == "__main__":
    main()
