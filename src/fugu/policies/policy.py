"""Policies: an encoder, a core, and one layer that gives action params and values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.config import PolicyConfig, Precision
from fugu.policies.cores import Core, make_core
from fugu.policies.distribution import ActionDistribution
from fugu.policies.encoders import make_encoder
from fugu.policies.layers import RunningScale, noting
from fugu.policies.tokens import make_token_parts
from fugu.policies.unpack import torch_dtype

Device: TypeAlias = torch.device | str | None
# Maps agents' indices and rows to what their policy reads; each vector has its own.
Viewer: TypeAlias = Callable[[NDArray[np.int64], Buffers], NDArray[Any]]


class Policy(nn.Module):
    """Maps observations to params of the actions' distribution, and to values.

    The outputs of a row do not depend on other rows.

    Attributes:
        encoder: Maps flat rows `[batch, size]` in the layout's dtype to hidden vectors.
        decoder: Maps hidden vectors to the distribution's outputs and the values, side by side.
        log_std: Of the continuous dimensions, equal in all states; None if there are none.
        num_params: Numbers of a row of params.
        num_critics: Values of an observation.
        state_size: Numbers of an agent's recurrent state; 0 if there is none.

    >>> from gymnasium import spaces
    >>> from fugu.spaces import Layout
    >>> layouts = Layout.of(spaces.Box(-1, 1, (4,))), Layout.of(spaces.Discrete(2))
    >>> policy = make_policy(AgentGroup("agent", (0,), *layouts), PolicyConfig(core="lstm"))
    >>> state = policy.initial_state(8)
    >>> params, values, state = policy(torch.zeros(8, 4), state)
    >>> tuple(params.shape), tuple(values.shape), tuple(state.shape)
    ((8, 2), (8, 1), (8, 256))
    """

    log_std: nn.Parameter | None

    def __init__(
        self,
        encoder: nn.Module,
        core: Core,
        decoder: nn.Module,
        distribution: ActionDistribution,
        num_critics: int = 1,
        log_std: float = 0.0,
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        self._short = precision == "bfloat16"
        self.encoder, self.core, self.decoder = encoder, core, decoder
        self.distribution = distribution
        self.num_params: int = distribution.num_params
        self.num_critics = num_critics
        self.state_size: int = core.state_size
        dims = distribution.num_continuous
        initial = nn.Parameter(torch.full((dims,), float(log_std))) if dims else None
        self.register_parameter("log_std", initial)

    def initial_state(self, batch: int, device: Device = None) -> Tensor:
        """Return zeros, the states at the start of episodes, `[batch, state_size]`."""
        return torch.zeros(batch, self.state_size, device=device)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step.

        Args:
            observations: `[batch, size]` in the layout's dtype.
            state: `[batch, state_size]`

        Returns:
            params `[batch, num_params]`, values `[batch, critics]` and the new state.
        """
        with self._products(observations.device):
            hidden, state = self.core(self.encoder(observations), state)
            params, values = self._decode(hidden)
        return params, values, state

    def forward_segments(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take whole segments; the result is that of `forward` step by step.

        Args:
            observations: `[rows, time, size]` in the layout's dtype.
            state: Before the first step, `[rows, state_size]`.
            resets: `[rows, time]`; set where an episode ended just before, so that the state is
                zeroed before this observation. Leave them on the CPU: the host reads them.

        Returns:
            params `[rows, time, num_params]` and values `[rows, time, critics]`.
        """
        rows, steps = observations.shape[:2]
        with self._products(observations.device):
            hidden = self.encoder(observations.flatten(0, 1))
            hidden = hidden.reshape(rows, steps, hidden.shape[-1])
            return self._decode(self.core.forward_segments(hidden, state, resets))

    def look(self, observations: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows that the policy reads of agents' observations; most are the same."""
        return observations

    def viewer(self) -> Viewer:
        """Return what maps batches of one vector to the rows that the policy reads."""
        return lambda agents, rows: self.look(rows.observations, agents)

    def stored(self, group: AgentGroup) -> AgentGroup:
        """Return the group with the layout of stored rows; most store observations."""
        return group

    def acted(self, state: Tensor, samples: NDArray[np.float32]) -> Tensor:
        """Return the state after these samples `[batch, numbers]` were drawn; most ignore them."""
        return state

    def earned(self, state: Tensor, rewards: NDArray[np.float32]) -> Tensor:
        """Return the state after these rewards `[batch]` were received; most ignore them."""
        return state

    @property
    def scales(self) -> list[RunningScale]:
        """The modules that normalize observations."""
        return [module for module in self.modules() if isinstance(module, RunningScale)]

    @torch.no_grad()
    def note(self, observations: Tensor) -> None:
        """Update the normalization by observations `[batch, size]`."""
        if self.scales:
            with noting(self.scales):
                self.encoder(observations)

    def _products(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self._short)

    def _decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Params and values of hidden vectors `[..., hidden]`."""
        outputs = exactly(self.decoder, hidden)
        sizes = [self.distribution.num_outputs, self.num_critics]
        params, values = torch.split(outputs, sizes, -1)
        if self.log_std is not None:
            log_std = self.log_std.to(params.dtype).expand(*params.shape[:-1], -1)
            params = torch.cat([params, log_std], -1)
        return params, values


def frozen_copy(policy: Policy) -> Policy:
    """Return a copy of a policy that does not learn and shares nothing with it.

    Methods that torch compiled are bound to the module that they were compiled for, and a plain
    deep copy keeps them: it would compute with the weights of the original. The copy has its own,
    which are not compiled.
    """
    found = copy.deepcopy(policy).requires_grad_(False)
    for module in found.modules():
        for name, value in list(vars(module).items()):
            if hasattr(value, "_torchdynamo_orig_callable"):
                delattr(module, name)
    return found


def make_policy(
    group: AgentGroup,
    cfg: PolicyConfig,
    num_critics: int = 1,
    *,
    encoder: nn.Module | None = None,
    core: Core | None = None,
    decoder: nn.Module | None = None,
) -> Policy:
    """Make a policy for a group of agents.

    Args:
        group: The group of agents.
        cfg: Settings.
        num_critics: Values of an observation.
        encoder: Your own: flat rows `[batch, size]` (`fugu.policies.unpack` gives their tree) to
            hidden vectors of any width.
        core: Your own; see `fugu.policies.Core`.
        decoder: Your own: `[..., hidden]` to `[..., outputs + critics]`, with the distribution's
            `num_outputs` outputs.

    Raises:
        UsageError: If a part does not fit the one before it.
    """
    distribution = ActionDistribution(group.action_layout, cfg.continuous)
    layout = group.observation_layout
    if num_critics and _has_own_critic(cfg, encoder=encoder, core=core, decoder=decoder):
        encoder, core, decoder = _make_separate(group, cfg, distribution.num_outputs, num_critics)
    if cfg.core == "tokens" and encoder is None and core is None:
        encoder, core = make_token_parts(layout, cfg.hidden_size, cfg.layers)
    if encoder is None:
        encoder, width = make_encoder(layout, cfg), cfg.hidden_size
    else:
        width = _width(
            "encoder", encoder, torch.zeros(2, layout.size, dtype=torch_dtype(layout.dtype))
        )
    if core is None:
        core = make_core(cfg.core, width, cfg.hidden_size, cfg.window)
    outputs = distribution.num_outputs
    if decoder is None:
        decoder = make_head(core.output_size, outputs, num_critics)
    elif _width("decoder", decoder, torch.zeros(2, core.output_size)) != outputs + num_critics:
        raise UsageError(
            f"decoder: given one of another width; allowed: {outputs + num_critics} outputs, "
            f"{outputs} for the actions and {num_critics} for the critics."
        )
    return Policy(encoder, core, decoder, distribution, num_critics, cfg.log_std, cfg.precision)


def _has_own_critic(cfg: PolicyConfig, **parts: nn.Module | None) -> bool:
    """Return whether the critic has its own network, given the user's own parts."""
    given = [name for name, part in parts.items() if part is not None]
    if cfg.critic == "own" and given:
        raise UsageError(
            f"policy.critic: given 'own' with your own {given[0]}, of which there is one; "
            "allowed: 'auto', 'shared'."
        )
    return cfg.critic != "shared" and not given


def exactly(head: nn.Module, hidden: Tensor) -> Tensor:
    """Apply a head in float32, even where other products are bfloat16.

    The rounding error of a bfloat16 value is as large as advantages are.
    """
    found: Tensor
    if not torch.is_autocast_enabled(hidden.device.type):  # nothing to turn off, in every step
        found = head(hidden)
        return found
    with torch.autocast(hidden.device.type, enabled=False):
        found = head(hidden.float())
    return found


def make_head(hidden_size: int, outputs: int, critics: int) -> nn.Linear:
    """Make a linear layer for action outputs, small at first to explore, and for values."""
    head = nn.Linear(hidden_size, outputs + critics)
    with torch.no_grad():
        if outputs:
            nn.init.orthogonal_(head.weight[:outputs], 0.01)
        if critics:
            nn.init.orthogonal_(head.weight[outputs:], 1.0)
        head.bias.zero_()
    return head


def _width(name: str, module: nn.Module, rows: Tensor) -> int:
    """Return the outputs per row of a user's module, called with two rows."""
    training = module.training
    try:
        with torch.no_grad():
            out = module.eval()(rows)
    finally:
        module.train(training)
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(rows):
        given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise UsageError(
            f"{name}: given a module that makes {given} of rows {tuple(rows.shape)}; allowed: a "
            f"tensor of shape ({len(rows)}, width)."
        )
    return out.shape[1]


# ---------------------------------------------------------------------- separate actor and critic


class SeparateEncoder(nn.Module):
    """The actor's and the critic's encoder, whose hidden vectors are joined in one row."""

    def __init__(self, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def forward(self, observations: Tensor) -> Tensor:
        """Map `[batch, size]` to both hidden vectors, `[batch, 2 * hidden]`."""
        return torch.cat([self.actor(observations), self.critic(observations)], -1)


class SeparateCore(Core):
    """The actor's and the critic's core; an agent's state is its actor's, then its critic's."""

    def __init__(self, actor: Core, critic: Core) -> None:
        super().__init__(
            actor.state_size + critic.state_size, actor.output_size + critic.output_size
        )
        self.actor, self.critic = actor, critic

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step, `[batch, 2 * hidden]`."""
        (actor, critic), (actor_state, critic_state) = halves(hidden), halves(state)
        actor, actor_state = self.actor(actor, actor_state)
        critic, critic_state = self.critic(critic, critic_state)
        return torch.cat([actor, critic], -1), torch.cat([actor_state, critic_state], -1)

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Take whole segments, `[rows, time, 2 * hidden]`."""
        (actor, critic), (actor_state, critic_state) = halves(hidden), halves(state)
        outputs = self.actor.forward_segments(actor, actor_state, resets)
        return torch.cat([outputs, self.critic.forward_segments(critic, critic_state, resets)], -1)


class SeparateHead(nn.Module):
    """The actor's hidden vector gives action outputs, the critic's gives values."""

    def __init__(self, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `[..., 2 * hidden]` to `[..., outputs + critics]`."""
        actor, critic = halves(hidden)
        return torch.cat([self.actor(actor), self.critic(critic)], -1)


def halves(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Split numbers into the actor's and the critic's, each contiguous, as kernels need it."""
    actor, critic = numbers.chunk(2, -1) if numbers.shape[-1] else (numbers, numbers)
    return actor.contiguous(), critic.contiguous()


def _make_separate(
    group: AgentGroup, cfg: PolicyConfig, outputs: int, critics: int
) -> tuple[SeparateEncoder, SeparateCore, SeparateHead]:
    """Make the parts of an actor and of a critic that share nothing."""
    alone = replace(cfg, critic="shared")
    actor, critic = (make_policy(group, alone, 0), make_policy(group, alone, 0))
    heads = [
        make_head(actor.core.output_size, outputs, 0),
        make_head(critic.core.output_size, 0, critics),
    ]
    return (
        SeparateEncoder(actor.encoder, critic.encoder),
        SeparateCore(actor.core, critic.core),
        SeparateHead(*heads),
    )
