"""Convolutional networks for images, and what counts as one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fugu.core.errors import UsageError

SMALLEST = 16  # side of an image
SCALE = 1.0 / 255.0  # of bytes
SMALLEST_NATURE = 36  # side that the Nature network's three convolutions need


class Feature(nn.Module):
    """Maps a part of an observation to `width` float32 numbers, `[..., width]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, tree: Any) -> Tensor:
        """Return the features of the part, whose leaves keep all leading axes."""
        raise NotImplementedError("forward(tree) -> Tensor [..., width]")


@dataclass(frozen=True)
class ImageShape:
    """The axes of an image."""

    shape: tuple[int, ...]  # Shape of the array
    order: tuple[int, ...]  # The axes as frames and channels, height, width

    @classmethod
    def of(cls, shape: tuple[int, ...], named: bool = False) -> ImageShape | None:
        """Return the image shape of an array: [h, w, c], [c, h, w] or four axes, frames first.

        Channels are last unless the first axis is shorter. An image has 16 pixels or more on both
        sides. If the user named the network, [h, w] is an image too.

        >>> ImageShape.of((84, 84, 3)).order, ImageShape.of((4, 84, 84)).order
        ((2, 0, 1), (0, 1, 2))
        >>> ImageShape.of((4, 96, 96, 3)).channels
        12
        """
        rank = len(shape)
        if rank == 2 and named:
            order: tuple[int, ...] = (0, 1)
        elif rank in (3, 4):
            first, last = rank - 3, rank - 1
            chosen = last if shape[last] <= shape[first] else first
            sides = tuple(axis for axis in range(first, rank) if axis != chosen)
            order = (*range(first), chosen, *sides)
        else:
            return None
        image = cls(shape, order)
        return image if min(image.sides) >= SMALLEST else None

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        return self.shape[self.order[-2]], self.shape[self.order[-1]]

    @property
    def channels(self) -> int:
        """Channels of all frames."""
        return math.prod(self.shape[axis] for axis in self.order[:-2])


class Convolution(Feature):
    """uint8 images, scaled by 1/255, through a convolutional network."""

    def __init__(self, image: ImageShape, network: nn.Module) -> None:
        with torch.no_grad():
            width = network(torch.zeros(1, image.channels, *image.sides)).numel()
        super().__init__(width)
        self.image, self.network = image, network

    def forward(self, tree: Tensor) -> Tensor:
        """Map `[..., *shape]` to `[..., width]`."""
        lead = tree.shape[: tree.dim() - len(self.image.shape)]
        pixels = tree.reshape(-1, *self.image.shape)
        pixels = pixels.permute(0, *(axis + 1 for axis in self.image.order))
        pixels = pixels.reshape(-1, self.image.channels, *self.image.sides)
        if isinstance(self.network, NatureCnn):
            features = self.network.of_bytes(pixels)
        else:
            features = self.network(pixels.to(torch.float32) * SCALE)
        return features.reshape(*lead, self.width)


class NatureCnn(nn.Sequential):
    """Three convolutions, as in Mnih et al. 2015."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels, 32, 8, 4), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 4, 2), nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(inplace=True),
            nn.Flatten(),
        )  # fmt: skip

    def of_bytes(self, pixels: Tensor) -> Tensor:
        """Apply the network to bytes `[batch, channels, height, width]`, scaled by 1/255."""
        first, *others = self
        assert isinstance(first, nn.Conv2d)
        hidden = convolve_patches(pixels, first)
        for layer in others:
            hidden = layer(hidden)
        return hidden


def convolve_patches(pixels: Tensor, layer: nn.Conv2d) -> Tensor:
    """Apply a convolution with a stride of 4 and a kernel of 4 or 8 to bytes, scaled by 1/255.

    It takes less than half of the time, gradients included: windows are whole patches of 4 x 4, so
    the numbers of a patch are contiguous channels of a smaller image.
    """
    side, across = layer.stride[0], layer.kernel_size[0] // layer.stride[0]
    batch, channels, *sides = pixels.shape
    rows, columns = ((length - side * across) // side + across for length in sides)
    pixels = contiguous(pixels[:, :, : rows * side, : columns * side])
    words = pixels.view(torch.int32).view(batch, channels, rows, side, columns)  # of 4 bytes
    patches = contiguous(words.permute(0, 2, 4, 1, 3)).view(batch, rows, columns, channels * side)
    patches = patches.view(torch.uint8).permute(0, 3, 1, 2)  # [batch, numbers, rows, columns]
    weight = layer.weight.view(-1, channels, across, side, across, side).permute(0, 1, 3, 5, 2, 4)
    weight = weight.reshape(-1, channels * side * side, across, across) * SCALE
    return nn.functional.conv2d(patches.to(torch.float32), weight, layer.bias)


def contiguous(tensor: Tensor) -> Tensor:
    """Return a contiguous copy from the beginning of its memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


class ImpalaCnn(nn.Sequential):
    """Three stages of a convolution, a pooling and two blocks, as in Espeholt et al. 2018."""

    def __init__(self, channels: int, stages: tuple[int, ...] = (16, 32, 32)) -> None:
        layers: list[nn.Module] = []
        for out in stages:
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [ResidualBlock(out), ResidualBlock(out)]
            channels = out
        super().__init__(*layers, nn.ReLU(), nn.Flatten())


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return images of the same shape."""
        inner: Tensor = self.second(torch.relu(self.first(torch.relu(pixels))))
        return pixels + inner


def make_convolution(image: ImageShape, name: str) -> Convolution:
    """Make the named network; "auto" is the Nature CNN where it fits, else IMPALA's."""
    fits = min(image.sides) >= SMALLEST_NATURE
    if name == "nature" and not fits:
        raise UsageError(
            f"encoder: given 'nature' for images of {image.sides[0]} x {image.sides[1]}; allowed: "
            f"{SMALLEST_NATURE} x {SMALLEST_NATURE} or more. Take 'impala', or 'auto'."
        )
    if name == "nature" or (name == "auto" and fits):
        return Convolution(image, NatureCnn(image.channels))
    return Convolution(image, ImpalaCnn(image.channels))
