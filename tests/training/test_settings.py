"""Settings of runs: where they come from, which ones win, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.training.config import PRESETS, resolve_config
from fugu.training.session import train


def test_later_layers_win(tmp_path: Path) -> None:
    assert resolve_config("memory").policy.core == "lstm"  # the environment's own file
    file = tmp_path / "mine.toml"
    file.write_text("[train]\ngamma = 0.9\nclip = 0.3\n[policy]\ncore = 'gru'\n")
    cfg = resolve_config(
        "memory", preset="classic", files=(file,), overrides={"train": {"clip": 0.25}}
    )
    assert (cfg.policy.core, cfg.train.gamma, cfg.train.clip) == ("gru", 0.9, 0.25)
    assert (cfg.train.learning_rate, cfg.train.reward_clip) == (2.5e-4, 1.0)


@pytest.mark.parametrize("env", ["memory", "CartPole-v1", "dm_control:cartpole-balance"])
def test_the_classic_preset_is_ppo_as_published(env: str) -> None:
    train = resolve_config(env, preset="classic").train
    assert (train.advantage, train.value_loss) == ("gae", "mse")
    assert (train.horizon, train.epochs, train.minibatches) == (128, 4, 4)
    assert (train.clip, train.schedule, train.optimiser) == (0.1, "linear", "adamw")
    assert (train.alpha, train.best_episodes, train.intrinsic) == (0.0, 0, "none")
    assert train.target_kl is train.desired_kl is train.replay_ratio is None
    assert train.entropy_coefficient == 0.01
    assert train.final_entropy_coefficient is None


def test_presets_set_nothing_that_their_other_settings_leave_unread() -> None:
    for name, preset in PRESETS.items():
        train = preset.get("train", {})
        if "value_clip" in train:
            assert "clipped" in train.get("value_loss", ""), name
        if {"rho_clip", "c_clip", "first_ratios"} & train.keys():
            assert train.get("advantage") != "gae", name
        if {"beta", "priorities"} & train.keys():
            assert train.get("alpha", 0.0) > 0.0, name


def test_flags_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--train.learning-rate", "0.01", "--vec.num-workers", "2", "--policy.core", "lstm"]
    more = ["--env.gravity", "5", "--train.lambda=0.9", "--dry-run", "--seed", "4"]
    assert main(["train", "cartpole", *flags, *more]) == 0
    shown = capsys.readouterr().out
    for line in ("learning_rate = 0.01", "core = 'lstm'", "{'gravity': 5}", "lambda_ = 0.9"):
        assert line in shown
    assert "seed = 4" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--train.learning-rat", "1"], "nearest: train.learning_rate"),
        (["--train.learning-rate", "fast"], "given 'fast'; allowed: a number"),
        (["--train.gamma", "2"], "train.gamma: given 2.0; allowed: 0 to 1"),
        (["--policy.core", "rnn"], "policy.core: given 'rnn'; allowed: none"),
        (["--sed", "1"], "unknown option '--sed'; nearest: '--seed'"),
        (["--preset", "best"], "preset: given 'best'; allowed: "),
        (["--config", "nowhere.toml"], "a file that exists"),
        (["--env.gravty", "1"], "Did you mean 'gravity'"),
        (["other"], "given 'other' beyond what it takes"),
        (["--device", "warp"], "device: given 'warp', which cannot be used here"),
    ],
)
def test_what_is_wrong_is_named(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "cartpole", *flags, "--quiet"]) in (1, 2)
    assert message in capsys.readouterr().err


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--train.gamma FLOAT", "--vec.num-envs", "--policy.core", "--run.keep"):
        assert flag in shown


def test_init_from_takes_the_policy_alone(tmp_path: Path) -> None:
    options = {"show": False, "vec": {"num_envs": 8}, "run": {"folder": tmp_path}}
    first = train("bandit", train={"total_steps": 4000}, **options)
    assert first.run is not None
    again = train(
        "bandit",
        train={"total_steps": 300, "learning_rate": 0.0},
        init_from=first.run.folder,
        **options,
    )
    one, other = first.policies[0].state_dict(), again.policies[0].state_dict()
    assert all((one[name] == other[name]).all() for name in one)
    with pytest.raises(UsageError, match="init-from"):
        train("cartpole", train={"total_steps": 300}, init_from=first.run.folder, **options)
