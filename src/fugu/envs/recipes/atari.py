"""Atari by the Arcade Learning Environment: one game driven from Python, or ALE's own vector.

Both give the maximum of the last two of four frames, grey, 84 x 84, the last four of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.config import from_tree
from fugu.core.errors import UsageError
from fugu.envs.batch_env import BatchEnv, Moves
from fugu.envs.recipes.pixels import FrameStack, Picture, Shrink
from fugu.envs.recipes.recipe import Recipe
from fugu.envs.states import join_state, split_state


@dataclass(frozen=True)
class AtariSettings:
    """How a game is played; names and meanings are those of ALE's own vector environment.

    Attributes:
        frameskip: Frames of a step.
        stack_num: Pictures in an observation.
        img_height: Height of a picture in pixels.
        img_width: Width of a picture in pixels.
        noop_max: The most frames without an action before a game begins.
        use_fire_reset: Press fire to begin games that wait for it.
        episodic_life: A lost life ends an episode; the game goes on in the next one.
        repeat_action_probability: Probability that the emulator repeats the last action.
        full_action_space: All 18 actions, not only those that do something in the game.
        max_num_frames_per_episode: Frames after which a game is truncated.
    """

    frameskip: int = 4
    stack_num: int = 4
    img_height: int = 84
    img_width: int = 84
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = False
    repeat_action_probability: float = 0.25
    full_action_space: bool = False
    max_num_frames_per_episode: int = 108_000

    def __post_init__(self) -> None:
        for name in ("frameskip", "stack_num", "img_height", "img_width"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: given {getattr(self, name)}; allowed: 1 or more.")


STANDARD = AtariSettings()


class AtariGame(gymnasium.Env[Any, Any]):
    """One game; the info of a game's end has the `score` of the game, not of the last life.

    Attributes:
        ale: The emulator. A seed makes it load the game again, which is slow.
    """

    def __init__(
        self, game: str, cfg: AtariSettings = STANDARD, render_mode: str | None = None
    ) -> None:
        import ale_py
        from ale_py.roms import get_rom_path

        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 60 / cfg.frameskip}
        self.render_mode = render_mode
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", cfg.repeat_action_probability)
        self.ale.setInt("max_num_frames_per_episode", cfg.max_num_frames_per_episode)
        self._rom, self._cfg = get_rom_path(game), cfg
        self.ale.loadROM(self._rom)
        legal, minimal = self.ale.getLegalActionSet(), self.ale.getMinimalActionSet()
        self._actions = legal if cfg.full_action_space else minimal
        self._noop, self._fire = ale_py.Action.NOOP, ale_py.Action.FIRE
        self._needs_fire = cfg.use_fire_reset and self._fire in minimal
        height, width = self.ale.getScreenDims()
        self._two: NDArray[np.uint8] = np.zeros((2, height, width), np.uint8)
        screen = spaces.Box(0, 255, (height, width), np.uint8)
        self._shrink = Shrink(screen, (cfg.img_height, cfg.img_width), grey=True, extra="atari")
        self._frames = FrameStack(cfg.stack_num, self._shrink.shape)
        self.observation_space = spaces.Box(0, 255, self._frames.frames.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))
        self._lives, self._score, self._goes_on = 0, 0.0, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        """Begin a new game; without a seed, after a lost life, continue the game."""
        super().reset(seed=seed)
        if seed is not None:
            self.ale.setInt("random_seed", int(self.np_random.integers(2**31 - 1)))
            self.ale.loadROM(self._rom)
        elif self._goes_on:
            self._goes_on = False
            return self._frames.frames.copy(), {}
        self._begin()
        self._lives, self._score, self._goes_on = self.ale.lives(), 0.0, False
        self._frames.frames[:] = 0
        self._two[0] = 0
        self.ale.getScreenGrayscale(self._two[1])
        return self._frames.push(self._shrink(self._two[1])), {}

    def step(self, action: Any) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        """Repeat the action for `frameskip` frames."""
        chosen, ale, reward = self._actions[int(action)], self.ale, 0.0
        for left in range(self._cfg.frameskip - 1, -1, -1):
            reward += ale.act(chosen)
            if ale.game_over():
                break
            if left < 2:
                ale.getScreenGrayscale(self._two[left])
        seen = self._frames.push(self._shrink(np.maximum(self._two[0], self._two[1])))
        self._score += reward
        truncated = ale.game_truncated()
        over = ale.game_over(with_truncation=False)
        lives, before = ale.lives(), self._lives
        self._lives = lives
        info = {"score": self._score} if over or truncated else {}
        lost = self._cfg.episodic_life and lives < before
        self._goes_on = lost and not (over or truncated)
        return seen, reward, over or lost, truncated, info

    def render(self) -> Any:
        """Return the screen in color."""
        return self.ale.getScreenRGB()

    def state(self) -> bytes:
        """Return the state of the game, its pictures and its random generator."""
        header = {"lives": self._lives, "score": self._score, "goes_on": self._goes_on}
        rng = self.np_random.bit_generator.state
        game = self.ale.cloneState(include_rng=True).serialize()
        arrays = [self._frames.frames.tobytes(), self._two.tobytes()]
        return join_state({**header, "chance": rng}, [bytes(game), *arrays])

    def set_state(self, state: bytes) -> None:
        """Restore a `state()`."""
        import ale_py

        header, (game, frames, two) = split_state(state)
        self._lives, self._score = header["lives"], header["score"]
        self._goes_on = header["goes_on"]
        self.np_random.bit_generator.state = header["chance"]
        self.ale.restoreState(ale_py.ALEState(game))
        self._frames.frames[:] = np.frombuffer(frames, np.uint8).reshape(self._frames.frames.shape)
        self._two[:] = np.frombuffer(two, np.uint8).reshape(self._two.shape)

    def _begin(self) -> None:
        """Reset the game, press fire, and wait for a random number of frames."""
        self.ale.reset_game()
        waits = int(self.np_random.integers(self._cfg.noop_max)) if self._cfg.noop_max else 0
        if self._needs_fire:
            self.ale.act(self._fire)
            waits -= 1
        for _ in range(waits):
            self.ale.act(self._noop)
            if self.ale.game_over():
                self.ale.reset_game()


class AtariBatch(BatchEnv):
    """Many games in the threads of ALE's own vector environment."""

    def __init__(self, game: str, num_envs: int, threads: int, cfg: AtariSettings) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        settings = asdict(cfg)
        self._games = AtariVectorEnv(
            game,
            num_envs,
            num_threads=threads,
            autoreset_mode="SameStep",
            reward_clipping=False,
            life_loss_info=settings.pop("episodic_life"),
            **settings,
        )
        seen = spaces.Box(0, 255, (cfg.stack_num, cfg.img_height, cfg.img_width), np.uint8)
        actions = self._games.single_action_space
        super().__init__(num_envs, seen, spaces.Discrete(int(actions.n)))
        self._scores = np.zeros(num_envs)
        self._frames = np.zeros(num_envs, np.int64)

    def begin(self, seeds: Sequence[int | None]) -> Any:
        """Begin new games."""
        each = [-1 if seed is None else seed % (1 << 31) for seed in seeds]
        seen, info = self._games.reset(seed=np.array(each))
        self._scores[:] = 0.0
        self._frames[:] = info["episode_frame_number"]
        return seen

    def advance(self, actions: Any) -> Moves:
        """Step all; where only a life was lost, the game continues from this observation."""
        seen, rewards, terminations, truncations, info = self._games.step(actions)
        self._scores += rewards
        frames = info["episode_frame_number"]
        began = frames < self._frames
        self._frames[:] = frames
        final = info.get("final_obs")
        if final is not None and (terminations & ~began).any():
            final = np.where(began[:, None, None, None], final, seen)
        infos = {i: {"score": float(self._scores[i])} for i in np.flatnonzero(began).tolist()}
        self._scores[began] = 0.0
        last = seen if final is None else final
        return Moves(seen, rewards, terminations, truncations, last, infos)

    def close(self) -> None:
        """Close the emulators and their threads."""
        self._games.close()


def make(name: str, render_mode: str | None = None, **kwargs: Any) -> AtariGame:
    """Make one game; see `AtariSettings`."""
    return AtariGame(roms()[name], from_tree(AtariSettings, kwargs, "env."), render_mode)


def batch(name: str, num_envs: int, threads: int, **kwargs: Any) -> AtariBatch:
    """Make many games; see `AtariSettings`."""
    return AtariBatch(roms()[name], num_envs, threads, from_tree(AtariSettings, kwargs, "env."))


def roms() -> dict[str, str]:
    """Return the ROMs by Gymnasium's names of them."""
    from ale_py.registration import rom_id_to_name
    from ale_py.roms import get_all_rom_ids

    return {f"{rom_id_to_name(rom)}-v5": rom for rom in sorted(get_all_rom_ids())}


RECIPE = Recipe(
    prefix="ALE/",
    summary="Atari 2600: Breakout, Pong and a hundred more; ALE's own vector with backend batch",
    package="ale_py",
    extra="atari",
    make=make,
    names=roms,
    batch=batch,
)
