"""Dreamer's encoder, decoder and actor, for any kind of observation and action."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from fugu.algos.dreamer.agent import DreamerAgent
from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig
from fugu.algos.dreamer.networks import Decoder, Encoder, make_stages
from fugu.data.replay import Sequences
from fugu.envs.contract import AgentGroup
from fugu.policies.images import ImageShape
from fugu.spaces import Layout

SMALL = DreamerPolicyConfig(
    deter=16, hidden=8, stoch=4, classes=4, blocks=4, units=12, depth=2, layers=1, bins=15
)
CFG = DreamerConfig(batch_size=3, batch_length=5, imagination_starts=2, imagination_length=4)
EVERYTHING = spaces.Dict(
    place=spaces.Box(-5.0, 5.0, (2, 2)),
    gear=spaces.Discrete(5, start=-2),
    hand=spaces.MultiDiscrete([3, 4]),
    lamps=spaces.MultiBinary(3),
    few=spaces.Box(0, 3, (2,), np.int64),
    many=spaces.Box(0, 100_000, (1,), np.int64),
    view=spaces.Box(0, 255, (16, 21, 3), np.uint8),
    name=spaces.Text(4, charset="abc"),
    bag=spaces.Sequence(spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))))),
    either=spaces.OneOf((spaces.Discrete(4), spaces.Box(-1.0, 1.0, (3,)))),
    nothing=spaces.Box(0.0, 1.0, (0,)),
)
ACTIONS = {
    "choice": spaces.Discrete(3),
    "choices": spaces.MultiDiscrete([2, 2, 5]),
    "numbers": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "mixed": spaces.Dict(go=spaces.Discrete(3), to=spaces.Box(-1.0, 1.0, (2,))),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
}


def make_group(observation: Any, action: Any = ACTIONS["choice"]) -> AgentGroup:
    return AgentGroup("agent", (0,), Layout.of(observation, limits=None), Layout.of(action))


def everything() -> AgentGroup:
    return AgentGroup("agent", (0,), Layout.of(EVERYTHING, limits=3), Layout.of(ACTIONS["mixed"]))


def rows_of(layout: Layout, count: int, seed: int = 0) -> Tensor:
    layout.space.seed(seed)
    rows = layout.zeros(count)
    for row in rows:
        value = layout.space.sample()
        if isinstance(value, dict) and "bag" in value:
            value["bag"] = value["bag"][:3]
        layout.pack(value, row)
    return torch.from_numpy(rows)


def make_batch(agent: DreamerAgent, group: AgentGroup, seed: int = 0) -> Sequences:
    time, batch = CFG.batch_length + 1, CFG.batch_size
    random = np.random.default_rng(seed)
    layout, number = group.observation_layout, agent.distribution
    params = np.zeros((time * batch, number.num_params), np.float32)
    samples, _ = number.sample(params, None, random)
    first = torch.from_numpy(random.random((time, batch)) < 0.2)
    last = first.roll(-1, 0)
    return Sequences(
        observations=rows_of(layout, time * batch, seed).view(time, batch, -1),
        samples=torch.from_numpy(samples).view(time, batch, -1),
        masks=torch.ones(time, batch, group.mask_width, dtype=torch.bool),
        rewards=torch.from_numpy(random.normal(size=(time, batch)).astype(np.float32)),
        first=first,
        last=last,
        terminal=last & torch.from_numpy(random.random((time, batch)) < 0.5),
        deter=torch.zeros(batch, SMALL.deter),
        stoch=torch.zeros(batch, SMALL.stoch, dtype=torch.int64),
        places=np.zeros((time, batch), np.int64),
    )


def test_every_leaf_has_the_loss_of_its_kind() -> None:
    decoder = Decoder(10, everything().observation_layout, SMALL)
    kinds = {part.name: part.kind for part in decoder.parts}
    assert kinds == {
        "place": "numbers",
        "gear": "categories",
        "hand": "categories",
        "lamps": "flags",
        "few": "categories",
        "many": "numbers",
        "view": "image",
        "name/mask": "flags",
        "name/characters": "categories",
        "bag/mask": "flags",
        "bag/items/0": "categories",
        "bag/items/1": "numbers",
        "either/index": "categories",
        "either/0": "categories",
        "either/1": "numbers",
    }


@pytest.mark.parametrize("action", ACTIONS)
def test_all_parts_of_an_agent_learn_from_any_observation_and_action(action: str) -> None:
    torch.manual_seed(0)
    layout = everything().observation_layout
    group = AgentGroup("agent", (0,), layout, Layout.of(ACTIONS[action]))
    agent = DreamerAgent(group, SMALL)
    for head in (agent.critic, agent.world.reward):  # zeros let no gradient pass
        head.network[-1].weight.data.normal_(0, 0.1)
    batch, random = make_batch(agent, group), torch.Generator().manual_seed(0)
    loss, parts, latents = agent.losses(batch, replace(CFG, free_nats=0.0), random)
    loss.backward()
    assert all(torch.isfinite(part) for part in parts.values())
    assert latents.deter.shape == (5, 3, 16)
    still = [
        name
        for name, weight in agent.named_parameters()
        if not name.startswith(("slow_critic", "world.masks"))
        and (weight.grad is None or not weight.grad.any())
    ]
    # What no sample holds may stand still.
    assert [name for name in still if "features" not in name] == []


def test_what_a_sequence_lacks_does_not_count() -> None:
    layout = everything().observation_layout
    decoder = Decoder(10, layout, SMALL)
    row = rows_of(layout, 1)
    value = layout.unpack(row[0].numpy(), True)
    value["bag"], value["name"], value["either"] = (), "a", (0, np.int64(1))
    layout.pack(value, row[0].numpy())
    features = torch.randn(1, 10)
    before = decoder.loss(features, row)
    tree = layout.views(row.numpy())
    tree["bag"]["items"][1][:] = 77.0
    tree["name"]["characters"][:, 1:] = 2
    tree["either"]["options"][1][:] = -5.0
    assert torch.equal(decoder.loss(features, row), before)
    tree["either"]["options"][0][:] = 3
    assert not torch.equal(decoder.loss(features, row), before)


def test_losses_of_numbers_categories_and_flags() -> None:
    space = spaces.Dict(
        a=spaces.Box(-9.0, 9.0, (2,)), b=spaces.Discrete(3), c=spaces.MultiBinary(1)
    )
    layout = Layout.of(space)
    decoder = Decoder(4, layout, SMALL)
    assert decoder.output is not None
    decoder.output.weight.data.zero_()
    bias = [0.5, -1.0, 0.0, math.log(2.0), 0.0, math.log(3.0)]  # a, a, b b b, c
    decoder.output.bias.data[:] = torch.tensor(bias)
    row = layout.zeros(1)
    value = {"a": np.array([math.e - 1, 0.0], np.float32), "b": 1, "c": np.array([1], np.int8)}
    layout.pack(value, row[0])
    found = decoder.loss(torch.zeros(1, 4), torch.from_numpy(row)).item()
    numbers = (0.5 - 1.0) ** 2 + (-1.0 - 0.0) ** 2
    assert found == pytest.approx(numbers - math.log(0.5) - math.log(0.75), rel=1e-5)
    outputs = decoder(torch.zeros(1, 4))
    best = [part.best(output) for part, output in zip(decoder.parts, outputs, strict=True)]
    assert best[0][0].tolist() == pytest.approx([math.exp(0.5) - 1, 1 - math.e], rel=1e-5)
    assert best[1].tolist() == [1]
    assert best[2].tolist() == [[1.0]]


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize("shape", [(16, 21, 3), (3, 33, 47), (64, 64, 1)])
def test_images_keep_their_shape_and_their_places(shape: tuple[int, ...], strided: bool) -> None:
    cfg = DreamerPolicyConfig(depth=2, units=8, layers=1, strided=strided)
    space = spaces.Box(0, 255, shape, np.uint8)
    layout = Layout.of(space)
    encoder = Encoder(layout, cfg)
    rows = rows_of(layout, 6).view(2, 3, -1)
    assert encoder(rows).shape == (2, 3, encoder.num_tokens)
    decoder = Decoder(5, layout, cfg)
    (prediction,) = decoder(torch.randn(2, 3, 5))
    assert prediction.shape == (2, 3, *shape)
    image = ImageShape.of(shape)
    assert image is not None
    assert min(make_stages(image, 2).sides[-1]) >= 3
    # A bias of one channel reaches that channel alone.
    last = decoder.images[0].layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
        last.bias[0] = 100.0
    (prediction,) = decoder(torch.randn(1, 5))
    channels = np.moveaxis(prediction[0].detach().numpy(), image.order[0], 0)
    assert np.allclose(channels[0], 1.0)
    assert np.allclose(channels[1:], 0.5)


@pytest.mark.parametrize(
    ("side", "sides"),
    [
        (256, [256, 128, 64, 32, 16]),  # 16 is small enough
        (257, [257, 129, 65, 33, 17, 9]),  # 17 is not
        (20, [20, 10, 5, 3]),  # 2 would be too small
        (16, [16, 8, 4]),
    ],
)
def test_images_are_halved_four_times_and_until_they_are_small(side: int, sides: list[int]) -> None:
    stages = make_stages(ImageShape.of((side, side, 3)), 8)
    assert stages.sides == [(each, each) for each in sides]
    assert stages.channels == [3, 16, 24, 32, 32, 32][: len(sides)]


def test_numbers_are_read_as_symlogs() -> None:
    layout = Layout.of(spaces.Box(-1e9, 1e9, (2,)))
    encoder = Encoder(layout, SMALL)
    (given,) = encoder.features(torch.tensor([[1e6, -3.0]]))
    assert given.tolist() == pytest.approx([math.log(1e6 + 1), -math.log(4.0)])


def make_actor(action: Any) -> DreamerAgent:
    torch.manual_seed(0)
    return DreamerAgent(make_group(spaces.Box(-1.0, 1.0, (2,)), action), SMALL)


def test_every_choice_keeps_its_share_of_the_uniform_distribution() -> None:
    agent = make_actor(ACTIONS["choices"])
    agent.actor.network[-1].bias.data[:] = torch.tensor([99.0, 0, 0, 99, 0, 99, 0, 0, 0])
    chances = agent.actor(torch.zeros(1, 32)).exp()[0]
    high = [0.99 + 0.01 / count for count in (2, 2, 5)]
    assert chances[[0, 3, 5]].tolist() == pytest.approx(high, rel=1e-5)
    assert chances[[1, 2, 4]].tolist() == pytest.approx([0.005, 0.005, 0.002], rel=1e-4)


def test_numbers_are_normals_within_their_bounds() -> None:
    agent = make_actor(ACTIONS["numbers"])
    agent.actor.network[-1].bias.data[:] = torch.tensor([99.0, -99.0, -99.0, 99.0])
    means, log_stds = agent.actor(torch.zeros(1, 32))[0].chunk(2)
    assert means.tolist() == pytest.approx([2.0, 0.0], abs=1e-5)
    assert log_stds.exp().tolist() == pytest.approx([0.1 * 2, 1.0 * 5], rel=1e-5)
    agent.actor.network[-1].bias.data.zero_()
    means, log_stds = agent.actor(torch.zeros(1, 32))[0].chunk(2)
    spread = 0.9 / (1 + math.exp(-2)) + 0.1
    assert means.tolist() == pytest.approx([0.0, 5.0])
    assert log_stds.exp().tolist() == pytest.approx([spread * 2, spread * 5], rel=1e-5)


def test_draws_are_those_of_the_distribution_and_heed_masks() -> None:
    agent = make_actor(spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,)))))
    chances = torch.tensor([0.2, 0.5, 0.3])
    params = torch.cat([chances.log(), torch.tensor([0.4, math.log(0.5)])]).expand(20_000, -1)
    random = torch.Generator().manual_seed(0)
    drawn = agent.actor.draw(params, None, random)
    counts = torch.bincount(drawn[:, 0].long(), minlength=3) / 20_000
    assert counts.tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
    assert drawn[:, 1].mean().item() == pytest.approx(0.4, abs=0.02)
    assert drawn[:, 1].std().item() == pytest.approx(0.5, abs=0.02)
    masks = torch.tensor([True, False, True]).expand(20_000, -1)
    drawn = agent.actor.draw(params, masks, random)
    counts = torch.bincount(drawn[:, 0].long(), minlength=3) / 20_000
    assert counts.tolist() == pytest.approx([0.4, 0.0, 0.6], abs=0.015)


def test_actions_are_encoded_in_units_of_their_bounds() -> None:
    agent = make_actor(ACTIONS["mixed"])
    assert agent.world.code(torch.tensor([[2.0, 0.5, -3.0]])).tolist() == [[0, 0, 1, 0.5, -3.0]]
    agent = make_actor(ACTIONS["numbers"])
    assert agent.world.code(torch.tensor([[2.0, 2.5]])).tolist() == [[1.0, -0.5]]
    rssm = agent.world.rssm
    assert torch.equal(
        rssm.embed_actions(torch.tensor([[1.0, -1.0]])),
        rssm.embed_actions(torch.tensor([[7.0, -3.0]])),
    )
    assert not agent.world.code.state_dict(), "bounds are the environment's and are not learned"
