"""How tests make native games and play them."""

import numpy as np

import fugu

UP, RIGHT, DOWN, LEFT = range(4)  # the moves on a board


def make(name, count=1, **settings):
    return fugu.make(name, count, backend="native", num_workers=1, env_kwargs=settings)


def follow(position, target, slack=0.03):
    """Of the actions stay, back and forth, those that lead to the targets."""
    return np.where(target < position - slack, 1, np.where(target > position + slack, 2, 0))


def start(name, num_envs=1, *, seed=0, **settings):
    vec = make(name, num_envs, **settings)
    vec.async_reset(seed=seed)
    return vec, vec.recv()


def play(vec, actions):
    vec.send(np.asarray(actions, np.int64).reshape(-1, 1))
    return vec.recv()


def pick(masks, rng):
    return (rng.random(masks.shape) * masks).argmax(1)
