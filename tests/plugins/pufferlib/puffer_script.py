"""A script as people write them for PufferLib 3.0: three kinds of environments, three loops.

It prints what it saw as JSON. Only its import line differs from the one that runs on PufferLib.
"""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import torch

import fugu_pufferlib as pufferlib


class Squares(pufferlib.PufferEnv):
    """Four agents that look for the square they are told; episodes restart by themselves."""

    def __init__(self, num_agents=4, buf=None, seed=0):
        self.single_observation_space = gymnasium.spaces.Box(0, 16, (2, 3), np.float32)
        self.single_action_space = gymnasium.spaces.MultiDiscrete([3, 4])
        self.num_agents = num_agents
        super().__init__(buf)
        self.rng = np.random.default_rng(seed)

    def reset(self, seed=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.age = np.zeros(self.num_agents, int)
        self.observations[:] = self.rng.integers(0, 9, self.observations.shape)
        return self.observations, []

    def step(self, actions):
        self.actions[:] = actions
        self.age += 1 + actions[:, 0]
        self.rewards[:] = actions.sum(1) == self.observations[:, 0, 0] % 6
        self.terminals[:] = self.age > 7
        self.truncations[:] = (self.age == 7) & (actions[:, 1] == 1)
        over = self.terminals | self.truncations
        self.observations[:] += actions[:, :1, None]
        self.observations[:] %= 16
        self.observations[over] = self.rng.integers(0, 9, (over.sum(), 2, 3))
        infos = [{"ages": float(self.age[over].mean())}] if over.any() else []
        self.age[over] = 0
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def close(self):
        pass


class Machine(gymnasium.Env):
    """Structured observations and actions."""

    observation_space = gymnasium.spaces.Dict(
        {
            "gear": gymnasium.spaces.Discrete(4),
            "map": gymnasium.spaces.Box(0, 255, (3, 3), np.uint8),
            "pose": gymnasium.spaces.Box(-9, 9, (2,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Dict(
        {"go": gymnasium.spaces.Discrete(3), "turn": gymnasium.spaces.Discrete(2)}
    )

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.end = 0, int(self.np_random.integers(3, 8))
        self.pose = self.np_random.random(2).astype(np.float32)
        return self.see(), {"begun": 1}

    def step(self, action):
        self.time += 1
        self.pose[0] += action["go"]
        self.pose[1] -= action["turn"]
        reward = float(action["go"]) - 0.5 * action["turn"]
        over = self.time >= self.end
        info = {"turned": action["turn"], "deep": {"time": self.time}} if action["turn"] else {}
        return self.see(), reward, over and self.end % 2 == 0, over and self.end % 2 == 1, info

    def see(self):
        grid = self.np_random.integers(0, 255, (3, 3)).astype(np.uint8)
        return {"gear": self.time % 4, "map": grid, "pose": self.pose.copy()}


class Herd:
    """A ParallelEnv whose agents leave one after the other."""

    possible_agents = ["ann", "bob", "cem"]
    metadata, render_mode = {}, None

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1, 9, (2,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.possible_agents), 0
        self.first = (seed or 0) % 3
        return {agent: self.see(i) for i, agent in enumerate(self.agents)}, {}

    def see(self, i):
        return np.array([i, self.time + self.first], np.float32)

    def step(self, actions):
        self.time += 1
        ages = {"ann": 2, "bob": 4, "cem": 5}
        there = {agent: i for i, agent in enumerate(self.possible_agents) if agent in self.agents}
        observations = {agent: self.see(i) for agent, i in there.items()}
        rewards = {agent: float(actions[agent]) for agent in there}
        dones = {agent: self.time >= ages[agent] for agent in there}
        infos = {agent: {"age": self.time} for agent in there if dones[agent]}
        self.agents = [agent for agent in there if not dones[agent]]
        return observations, rewards, dones, dict.fromkeys(there, False), infos

    def close(self):
        pass


def make_machine(buf=None, seed=0):
    env = pufferlib.EpisodeStats(Machine())
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


def make_herd(buf=None, seed=0):
    return pufferlib.emulation.PettingZooPufferEnv(env_creator=Herd, buf=buf, seed=seed)


def form(array):
    return [list(array.shape), str(array.dtype)]


def plain(value):
    """Infos as JSON has them."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else float(value)


def marks(observations):
    """A number for each row that no other row is likely to have."""
    flat = observations.reshape(len(observations), -1).astype(np.float64)
    return (flat @ np.arange(1, flat.shape[1] + 1)).tolist()


def act(vecenv, observations):
    """Something that only what is seen decides."""
    numbers = observations.reshape(len(observations), -1).astype(np.float64).sum(1)
    space = vecenv.single_action_space
    if isinstance(space, pufferlib.spaces.Discrete):
        return (numbers % space.n).astype(np.int32)
    return (numbers[:, None] % space.nvec).astype(np.int32)


def describe(vecenv):
    driver = vecenv.driver_env
    return {
        "observation": form(vecenv.single_observation_space),
        "joint observation": form(vecenv.observation_space),
        "joint action": form(vecenv.action_space),
        "agents": [vecenv.num_agents, vecenv.agents_per_batch, vecenv.num_envs],
        "driver": [driver.num_agents, form(driver.single_observation_space)],
        "emulated": bool(vecenv.emulated),
    }


def loop(vecenv, steps):
    """recv and send: all that comes, by agent."""
    vecenv.async_reset(seed=7)
    forms, found = set(), []
    for _ in range(steps):
        o, r, d, t, infos, ids, masks = vecenv.recv()
        forms.add(str([form(array) for array in (o, r, d, t, ids, masks)]))
        flags = [array.astype(int).tolist() for array in (ids, d, t, masks)]
        found.append([marks(o), r.tolist(), *flags, plain(infos)])
        vecenv.send(act(vecenv, o))
    vecenv.close()
    return {"forms": sorted(forms), "steps": found}


def sync_loop(vecenv, steps):
    observations, infos = vecenv.reset(seed=3)
    total = 0.0
    for _ in range(steps):
        actions = act(vecenv, observations)
        observations, rewards, terminals, truncations, infos = vecenv.step(actions)
        total += rewards.sum()
    vecenv.close()
    return [float(total), form(observations), form(terminals), form(truncations), plain(infos)]


def policies(vecenv):
    """Both policies and the sampling, from fixed seeds."""
    observations = torch.from_numpy(vecenv.reset(seed=5)[0])
    torch.manual_seed(0)
    policy = pufferlib.models.Default(vecenv.driver_env, hidden_size=16)
    wrapped = pufferlib.models.LSTMWrapper(vecenv.driver_env, policy, 16, 16)
    state = {"lstm_h": None, "lstm_c": None}
    with torch.no_grad():
        for _ in range(2):
            logits, values = wrapped.forward_eval(observations, state)
        row = {"lstm_h": None, "lstm_c": None}
        _, twice = wrapped(torch.stack([observations, observations], 1), row)
        actions, logs, entropies = pufferlib.pytorch.sample_logits(logits)
    names = {name: list(value.shape) for name, value in wrapped.state_dict().items()}
    states = [state["lstm_h"].sum(), row["lstm_c"].sum()]
    tensors = [values, twice, actions, logs, entropies, *states]
    vecenv.close()
    return {
        "parameters": names,
        "forms": [[list(each.shape), str(each.dtype)] for each in tensors],
        "numbers": [each.double().flatten().tolist() for each in tensors],
    }


def main():
    make, found = pufferlib.vector.make, {}
    creators = {"squares": Squares, "machine": make_machine, "herd": make_herd}
    for name, creator in creators.items():
        serial = make(creator, backend=pufferlib.vector.Serial, num_envs=3)
        found[f"{name} is"] = describe(serial)
        found[f"{name} serial"] = loop(serial, 18)
        apart = make(creator, backend="Multiprocessing", num_envs=2, num_workers=2)
        found[f"{name} processes"] = loop(apart, 12)
        parts = make(creator, backend="Multiprocessing", num_envs=2, num_workers=2, batch_size=1)
        found[f"{name} in turns"] = loop(parts, 20)
        found[f"{name} policies"] = policies(make(creator, backend="Serial", num_envs=2))
    found["itself"] = sync_loop(make(Squares, env_kwargs={"num_agents": 5}), 9)
    found["synchronous"] = sync_loop(make(Squares, backend="Serial", num_envs=2), 9)
    env = make_machine()
    first, info = env.reset(seed=1)
    second = env.step(np.array([2, 1], np.int32))
    places = {name: place[1] for name, place in env.obs_dtype.fields.items()}
    found["alone"] = [form(first), plain(info), *plain(list(second[1:4])), places]
    print(json.dumps(found, separators=(",", ":")))


if __name__ == "__main__":
    main()
