"""A loss function of one's own takes the place of PPO's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fugu
from fugu.algos.ppo import PPOConfig, ppo_loss
from fugu.algos.segment_view import Minibatch
from fugu.algos.settings import read_config
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.envs.untrusted import UntrustedError
from fugu.policies.policy import Policy
from fugu.training.config import resolve_config
from fugu.training.trainer import Trainer
from fugu.training.untrusted import check_settings

SMALL: dict[str, Any] = {"vec": {"num_envs": 8}, "policy": {"hidden_size": 16}, "seed": 3}


def policy_gradient(
    policy: Policy, batch: Minibatch, cfg: PPOConfig
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """A plain policy gradient with a critic: nothing is clipped."""
    params, values = policy.forward_segments(batch.observations, batch.states, batch.resets)
    log_probs, _ = policy.distribution.evaluate(params, batch.samples, batch.masks)
    weights = batch.weights / (batch.weights != 0).sum()
    actor = -(log_probs * batch.advantages * weights).sum()
    critic = ((values - batch.returns).square().sum(-1) * weights).sum()
    return actor + cfg.value_coefficient * critic, {"actor_loss": actor, "critic_loss": critic}


def nothing(policy: Policy, batch: Minibatch, cfg: PPOConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """A control: a loss without a gradient."""
    return ppo_loss(policy, batch, cfg)[0] * 0.0, {}


def trained(loss: Any = None, **train: Any) -> tuple[list[Tensor], dict[str, float]]:
    """Return the weights after a few updates, and the metrics of the last one."""
    seen: list[dict[str, float]] = []
    settings = {"total_steps": 2048, "horizon": 32, **train}
    found = fugu.train(
        "cartpole",
        train=settings,
        loss=loss,
        keep=False,
        show=False,
        callbacks=[lambda trainer, progress: seen.append(dict(progress.losses))],
        **SMALL,
    )
    return [p.detach().clone() for p in found.policies[0].parameters()], seen[-1]


def test_one_of_ones_own_learns_and_its_metrics_are_logged() -> None:
    score = fugu.train(
        "cartpole", train={"total_steps": 300_000}, loss=policy_gradient, keep=False, show=False
    ).score
    assert score is not None
    assert score > 120
    control = fugu.train(
        "cartpole", train={"total_steps": 50_000}, loss=nothing, keep=False, show=False
    ).score
    assert control is not None
    assert control < 40
    _, metrics = trained(policy_gradient)
    assert {"actor_loss", "critic_loss", "gradient_norm", "explained_variance"} <= metrics.keys()


@pytest.mark.parametrize(
    "settings",
    [{"advantage": "gae"}, {"advantage": "vtrace"}, {"advantage": "vtrace", "microbatch": 64},
     {"advantage": "gae", "desired_kl": 0.01}],
)  # fmt: skip
def test_ppos_own_loss_handed_in_learns_the_same(settings: dict[str, Any]) -> None:
    plain, metrics = trained(engine="torch", **settings)
    custom, same = trained(ppo_loss, **settings)
    for one, other in zip(plain, custom, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"):
        assert same[name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-5)


def test_ratios_are_measured_where_a_loss_gives_none() -> None:
    def without_ratios(policy: Policy, batch: Minibatch, cfg: PPOConfig) -> Any:
        loss, metrics = ppo_loss(policy, batch, cfg)
        return loss, {"policy_loss": metrics["policy_loss"]}

    given, _ = trained(ppo_loss, advantage="vtrace", minibatches=2, epochs=1)
    measured, metrics = trained(without_ratios, advantage="vtrace", minibatches=2, epochs=1)
    assert "approx_kl" in metrics
    # Ratios are those after the step here, and those before it there: close, and not equal.
    assert all(torch.allclose(a, b, atol=0.1) for a, b in zip(given, measured, strict=True))


def test_the_settings_name_it_and_a_run_resumes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_losses.py").write_text(
        "from fugu.algos.ppo import ppo_loss\n"
        "def half(policy, batch, cfg):\n"
        "    loss, metrics = ppo_loss(policy, batch, cfg)\n"
        "    return loss / 2, {**metrics, 'half': loss.detach() / 2}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = ["--train.loss", "my_losses:half", "--train.total-steps", "1024", "--vec.num-envs", "8"]
    where = ["--run.folder", str(tmp_path), "--run.name", "it", "--quiet"]
    assert main(["train", "cartpole", *flags, "--train.horizon", "32", *where]) == 0
    more: Any = {"train": {"total_steps": 2048}}
    seen: list[Any] = []
    fugu.resume(
        "it",
        root=tmp_path,
        show=False,
        **more,
        callbacks=[lambda trainer, progress: seen.append(progress.losses["half"])],
    )
    assert seen


def test_what_cannot_be_used_is_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="train.engine: given 'native', but the loss is a func"):
        trained(policy_gradient, engine="native")
    with pytest.raises(UsageError, match=r"train\.loss: expected package\.module:name .* got 'no:"):
        fugu.train("cartpole", train={"loss": "no:where"}, keep=False, show=False)
    with pytest.raises(UsageError, match="loss: algo 'grpo' takes no loss function"):
        fugu.train("password", algo="grpo", loss=policy_gradient, keep=False, show=False)


def test_a_stranger_cannot_name_one() -> None:
    cfg = read_config({"env": "cartpole", "train": {"loss": "os:system"}})
    with pytest.raises(UntrustedError, match="train.loss"):
        check_settings(cfg, "")


def test_torch_learns_it() -> None:
    cfg = resolve_config("cartpole", overrides={"train": {"loss": "fugu.algos.ppo:ppo_loss"}})
    trainer = Trainer(cfg)
    try:
        assert trainer.algorithm.facts()["engines"] == ["torch"]
    finally:
        trainer.close()
