"""Every form of a flag of `fugu train`, and which settings win, by what --dry-run prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from fugu import native
from fugu.cli.main import main
from fugu.store import Run

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dry(capsys: pytest.CaptureFixture[str]) -> object:
    """What a command line would use, as `section.key` to what is printed."""

    def run(*args: str) -> dict[str, str]:
        assert main(["train", *args, "--dry-run"]) == 0
        found, section = {}, ""
        for line in capsys.readouterr().out.splitlines():
            if line.startswith("["):
                section = line.strip("[]") + "."
            else:
                key, _, value = line.partition(" = ")
                found[f"{section}{key}"] = value.partition("  # ")[0]
        return found

    return run


def test_the_whole_line(dry) -> None:  # type: ignore[no-untyped-def]
    Run.create("runs", "before", env="cartpole")
    line = (
        "cartpole --train.learning-rate 0.01 --vec.num-workers 2 --policy.core lstm "
        "--env.gravity 9.5 --env.max-steps 100 --device cpu --init-from before --seeds 5 --seed 7"
    )
    expected = {
        "train.learning_rate": "0.01",
        "vec.num_workers": "2",
        "policy.core": "'lstm'",
        "env_kwargs": "{'gravity': 9.5, 'max_steps': 100}",
        "device": "'cpu'",
        "init_from": "'runs/before'",
        "seeds": "5",
        "seed": "7",
        "env": "'cartpole'",
    }
    assert expected.items() <= dry(*line.split()).items()


@pytest.mark.parametrize(
    "form",
    [
        ["--train.learning-rate", "0.01"],
        ["--train.learning-rate=0.01"],
        ["--train.learning_rate", "1e-2"],
        ["--train.learning-rate", "1", "--train.learning-rate", "0.01"],
    ],
)
def test_forms_of_a_value(dry, form: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert dry("cartpole", *form)["train.learning_rate"] == "0.01"
    assert dry(*form, "cartpole")["train.learning_rate"] == "0.01"


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (["--run.tensorboard"], "True"),
        (["--run.tensorboard", "true"], "True"),
        (["--run.tensorboard=false"], "False"),
        (["--run.tensorboard", "--run.no-tensorboard"], "False"),
    ],
)
def test_forms_of_a_switch(dry, form: list[str], value: str) -> None:  # type: ignore[no-untyped-def]
    assert dry("cartpole", *form)["run.tensorboard"] == value


def test_names_that_python_keeps_and_nothing(dry) -> None:  # type: ignore[no-untyped-def]
    found = dry("cartpole", "--train.lambda", "0.9", "--vec.num-workers", "none")
    assert (found["train.lambda_"], found["vec.num_workers"]) == ("0.9", "None")
    assert dry("cartpole", "--seeds=3", "--seed=-2")["seed"] == "-2"


def test_later_layers_win(dry, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Defaults, the environment's own file, --preset, --config, flags."""
    plain, own = dry("cartpole"), dry("breakout")
    assert plain["train.total_steps"] == "1000000"
    assert own["train.total_steps"] != plain["train.total_steps"]
    (tmp_path / "my.toml").write_text(
        "seed = 3\n[train]\ntotal_steps = 77\nclip = 0.3\n[env_kwargs]\nlives = 2\n"
    )
    found = dry("breakout", "--config", "my.toml")
    assert (found["train.total_steps"], found["seed"]) == ("77", "3")
    assert found["vec.num_envs"] == own["vec.num_envs"], "what a file leaves out stays"
    assert dry("breakout", "--preset", "classic")["train.clip"] == "0.1"
    found = dry("breakout", "--preset", "classic", "--config", "my.toml")
    assert (found["train.clip"], found["train.learning_rate"]) == ("0.3", "0.00025")
    flags = ["--train.total-steps", "88", "--seed", "4", "--env.lives", "1"]
    for order in ([*flags, "--config", "my.toml"], ["--config", "my.toml", *flags]):
        found = dry("breakout", *order)
        assert (found["train.total_steps"], found["seed"]) == ("88", "4")
        assert found["env_kwargs"] == "{'lives': 1}"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["cartpol"], "Nearest: "),
        (["cartpole", "--env.gravty", "1"], "Did you mean 'gravity'"),
        (["cartpole", "--init-from", "nothing"], "holds no runs"),
        (["cartpole", "--config"], "Missing value for argument '--config'"),
        (["cartpole", "--vec.num-worker", "2"], "nearest: vec.num_workers"),
    ],
)
def test_a_dry_run_finds_what_is_wrong(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *args, "--dry-run"]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_dry_run_tells_where_each_setting_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my.toml").write_text("[train]\nepochs = 3\n")
    line = "train CartPole-v1 --config my.toml --train.gamma 0.9 --preset classic --dry-run"
    assert main(line.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gamma = 0.9  # given" in lines
    assert "epochs = 3  # my.toml" in lines
    assert "clip = 0.1  # preset classic" in lines
    assert "total_steps = 100000  # settings of classic_control:CartPole-v1" in lines
    assert "normalise = True  # observed: observations without images" in lines
    assert "warmup = 0.0" in lines  # a plain default
