"""Sequence tasks: what is right is paid, and nothing else."""

from __future__ import annotations

from typing import Any

import gymnasium.utils.env_checker
import numpy as np
import pytest
from sequence_task import SequenceTask

from fugu.core.errors import UsageError


def write(env: SequenceTask, wrong: int) -> tuple[float, Any]:
    """Copy or reverse the prompt with so many mistakes at its end."""
    seen, _ = env.reset(seed=4)
    prompt = seen[: int(np.flatnonzero(seen)[-1])]
    wanted = prompt[::-1] if env._task == "reverse" else prompt
    reward, info, ended = 0.0, {}, False
    for place, token in enumerate(wanted):
        assert not ended
        off = place >= len(wanted) - wrong
        seen, reward, ended, _, info = env.step((int(token) - 1 + off) % 4)
        assert reward == 0.0 or ended
    assert ended
    return reward / len(wanted), info


@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_right_tokens_are_paid(task: Any) -> None:
    env = SequenceTask(task, shortest=4, longest=4)
    assert write(env, 0) == (0.25, {"exact": 1.0})
    assert write(env, 1)[0] == 0.75 / 4
    assert write(SequenceTask(task, shortest=4, longest=4, reward="exact"), 1)[0] == 0.0


def test_the_same_seed_gives_the_same_prompt() -> None:
    env = SequenceTask(longest=12)
    prompts = [env.reset(seed=seed)[0].tolist() for seed in (1, 1, 2)]
    assert prompts[0] == prompts[1] != prompts[2]


def test_gymnasiums_checker_is_content() -> None:
    gymnasium.utils.env_checker.check_env(SequenceTask(), skip_render_check=True)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="copy, reverse"):
        SequenceTask("sort")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="shortest=5"):
        SequenceTask(shortest=5, longest=4)
