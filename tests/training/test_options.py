"""What settings and arguments of training do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import fugu
from fugu.algos.ppo import PPOConfig
from fugu.algos.settings import read_config
from fugu.core.errors import UsageError
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import make_policy
from fugu.store.checkpoint import load_checkpoint
from fugu.track.sinks import read_metrics
from fugu.training.trainer import Trainer

TINY: dict[str, Any] = {"total_steps": 4096, "horizon": 16}


def weights(result: Any) -> list[np.ndarray[Any, Any]]:
    return [weight.detach().numpy() for weight in result.policies[0].parameters()]


def alike(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


# ---------------------------------------------------------------------- evaluation


def test_evaluations_are_recorded_and_say_which_checkpoint_is_best(tmp_path: Path) -> None:
    result = fugu.train(
        "cartpole",
        show=False,
        train={"total_steps": 60_000},
        run={"folder": tmp_path, "evaluate_every": 10_000, "evaluation_episodes": 8},
    )
    assert result.run is not None
    lines = [
        line for line in read_metrics(result.run.metrics_path) if "evaluation/episodes" in line
    ]
    assert len(lines) == 6
    best = result.run.best()
    assert best is not None
    score = load_checkpoint(best).state["score"]
    assert score == max(line["evaluation/mean_return"] for line in lines)
    again = fugu.evaluate(result.run, episodes=8, best=True)
    assert np.mean(again.returns) == score


def test_evaluations_change_nothing_of_the_training(tmp_path: Path) -> None:
    plain = fugu.train("cartpole", show=False, keep=False, train=TINY)
    examined = fugu.train(
        "cartpole", show=False, train=TINY, run={"folder": tmp_path, "evaluate_every": 1000}
    )
    assert alike(plain, examined)


# ---------------------------------------------------------------------- things to call


def test_a_lambda_trains_resumes_and_is_evaluated(tmp_path: Path) -> None:
    env = lambda: gymnasium.make("CartPole-v1", max_episode_steps=50)  # noqa: E731
    result = fugu.train(
        env, show=False, train=TINY, vec={"num_envs": 8}, run={"folder": tmp_path, "name": "mine"}
    )
    overrides = {"train": {"total_steps": 8192}}
    with pytest.raises(UsageError, match="something to call"):
        fugu.resume("mine", root=tmp_path, show=False, **overrides)
    more = fugu.resume("mine", root=tmp_path, show=False, env=env, **overrides)
    assert more.steps >= 8192 > result.steps >= 4096
    assert max(fugu.evaluate("mine", root=tmp_path, episodes=4, env=env).lengths) <= 50


def test_a_network_of_your_own_takes_the_encoders_place(tmp_path: Path) -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 24)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(rows))

    factory = lambda group, cfg: make_policy(group, cfg, encoder=Mine())  # noqa: E731
    result = fugu.train(
        "cartpole",
        show=False,
        train=TINY,
        policy_factory=factory,
        run={"folder": tmp_path, "name": "mine"},
    )
    assert isinstance(result.policies[0].encoder, Mine)
    found = fugu.evaluate("mine", root=tmp_path, episodes=4, policy_factory=factory)
    assert len(found.returns) == 4


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_bfloat16_products_leave_weights_and_losses_in_float32(core: str) -> None:
    policy = {"core": core, "precision": "bfloat16"}
    result = fugu.train("cartpole", show=False, keep=False, train=TINY, policy=policy)
    assert {weight.dtype for weight in weights(result)} == {np.dtype(np.float32)}
    exact = fugu.train("cartpole", show=False, keep=False, train=TINY, policy={"core": core})
    assert not alike(result, exact)


def test_bfloat16_gradients_point_where_those_of_float32_do() -> None:
    gradients = {}
    for precision in ("float32", "bfloat16"):
        with fugu.make("breakout", 1) as vec:
            torch.manual_seed(0)
            policy = make_policy(vec.groups[0], PolicyConfig(precision=precision))  # type: ignore[arg-type]
            observations = torch.rand(256, vec.groups[0].observation_layout.size)
        params, values, _ = policy(observations, policy.initial_state(256))
        (params.float().log_softmax(-1)[:, 0].mean() + values.float().square().mean()).backward()
        flat = [weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None]
        gradients[precision] = torch.cat(flat)
    cosine = nn.functional.cosine_similarity(gradients["float32"], gradients["bfloat16"], dim=0)
    assert cosine > 0.999


def test_bfloat16_products_leave_actions_and_values_their_digits() -> None:
    with fugu.make("breakout", 1) as vec:
        policy = make_policy(vec.groups[0], PolicyConfig(precision="bfloat16"))
        observations = torch.rand(256, 2, vec.groups[0].observation_layout.size)
    state, resets = policy.initial_state(256), torch.zeros(256, 2, dtype=torch.bool)
    found = [
        *policy(observations[:, 0], state)[:2],
        *policy.forward_segments(observations, state, resets),
    ]
    for tensor in found:
        assert tensor.dtype == torch.float32
        assert not torch.equal(tensor, tensor.bfloat16().float())


def test_compiled_policies_learn_the_same() -> None:
    cfg = {"total_steps": 1024, "horizon": 16}
    plain = fugu.train("cartpole", show=False, keep=False, train=cfg)
    compiled = fugu.train("cartpole", show=False, keep=False, train={**cfg, "compile": True})
    for mine, other in zip(weights(plain), weights(compiled), strict=True):
        assert np.allclose(mine, other, atol=1e-3)


@pytest.mark.parametrize(("ratio", "steps"), [(None, 8), (0.25, 1), (1.5, 6), (3.0, 12), (0.01, 1)])
def test_the_replay_ratio_says_how_many_minibatches_are_learned(
    ratio: float | None, steps: int
) -> None:
    assert PPOConfig(epochs=2, minibatches=4, replay_ratio=ratio).optimizer_steps(64) == steps


def test_a_single_copy_learns_although_there_are_fewer_rows_than_minibatches() -> None:
    vec = {"num_envs": 1, "backend": "serial"}
    result = fugu.train("CartPole-v1", show=False, keep=False, train=TINY, vec=vec)
    assert result.status == "finished"


def test_a_replay_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="replay_ratio: given 0"):
        PPOConfig(replay_ratio=0)


def test_the_learning_rate_rises_from_the_first_update_on() -> None:
    train = {"total_steps": 64 * 20, "horizon": 16, "learning_rate": 0.1, "schedule": "constant"}
    tree = {"env": "bandit", "train": train | {"warmup": 0.2}, "vec": {"num_envs": 4}}
    trainer, rates = Trainer(read_config(tree)), list[float]()
    try:
        trainer.run(lambda progress: rates.append(progress.losses["learning_rate"]))
    finally:
        trainer.close()
    assert len(rates) == 20
    # Every update but the first sees 64 steps; that sees the 4 first actions of the next, too.
    expected = [0.1 * min(1.0, (64 * (update + 1) + 4) / 256) for update in range(20)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_threads_are_given_and_given_back() -> None:
    before = torch.get_num_threads()
    train = {"threads": before + 1, "engine": "torch"}
    trainer = Trainer(read_config({"env": "bandit", "train": train}))
    assert torch.get_num_threads() == before + 1
    trainer.close()
    assert torch.get_num_threads() == before


def test_deterministic_runs_are_alike_although_batches_are_not_complete() -> None:
    options: dict[str, Any] = {
        "train": {**TINY, "deterministic": True},
        "vec": {"num_envs": 16, "batch_size": 4, "num_workers": 2, "backend": "process"},
    }
    one, other = (fugu.train("CartPole-v1", show=False, keep=False, **options) for _ in range(2))
    assert alike(one, other)
    assert not torch.are_deterministic_algorithms_enabled()


def test_normalised_observations_are_saved_with_the_policy(tmp_path: Path) -> None:
    result = fugu.train(
        "cartpole",
        show=False,
        train=TINY,
        policy={"normalise": True},
        run={"folder": tmp_path, "name": "scaled"},
    )
    count = float(result.policies[0].scales[0].count)
    assert count > 0
    run = result.run
    assert run is not None
    latest = run.latest()
    assert latest is not None
    saved = load_checkpoint(latest).tensors["policy_0"]
    assert any(float(value) == count for name, value in saved.items() if name.endswith("count"))


def test_offloading_on_a_cpu_changes_nothing() -> None:
    run = partial(fugu.train, "cartpole", show=False, keep=False)
    assert alike(run(train=TINY), run(train={**TINY, "cpu_offload": True}))


# ---------------------------------------------------------------------- spaces of nothing


class Nothing(gymnasium.Env[Any, Any]):
    """Ends every episode after one step."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, True, False, {}


EMPTY, ONE = spaces.Box(-1, 1, (0,)), spaces.Box(-1, 1, (1,))


@pytest.mark.parametrize("algo", ["ppo", "grpo", "dreamer"])
@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (
            EMPTY,
            spaces.Discrete(2),
            r"^observation space of 'agent': given Box\(.*Box\(0, 1, \(1,\)\)",
        ),
        (spaces.Dict(), spaces.Discrete(2), r"^observation space of 'agent': given Dict\(\)"),
        (ONE, EMPTY, r"^action space of 'agent': given Box\(.*such as Discrete\(1\)"),
        (ONE, spaces.Tuple(()), r"^action space of 'agent': given Tuple\(\)"),
    ],
)
def test_a_space_without_numbers_is_refused(
    algo: str, observation: Any, action: Any, message: str
) -> None:
    options: dict[str, Any] = {"show": False, "keep": False, "algo": algo}
    with pytest.raises(UsageError, match=message):
        fugu.train(lambda: Nothing(observation, action), vec={"backend": "serial"}, **options)


def test_a_part_of_an_observation_or_action_may_be_empty() -> None:
    observation, action = spaces.Dict(a=EMPTY, b=ONE), spaces.Dict(a=EMPTY, b=spaces.Discrete(2))
    options: dict[str, Any] = {"show": False, "keep": False, "train": {"total_steps": 64}}
    vec = {"num_envs": 2, "backend": "serial"}
    result = fugu.train(lambda: Nothing(observation, action), vec=vec, **options)
    assert result.status == "finished"
