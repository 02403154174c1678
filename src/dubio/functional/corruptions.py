"""Corrupted images: noise, blur, contrast, rotation and inversion of images in [0, 1], which stay in [0, 1].

At its neutral value (0, or a contrast of 1) each leaves the images as they are.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

__all__ = ["blurred", "inverted", "rotated", "with_contrast", "with_noise"]

Images = Float[Tensor, "batch channel height width"]


def with_noise(images: Images, noise: Images, std: float) -> Images:
    """``x + std * noise``, cut to [0, 1]; the noise is standard normal."""
    return (images + std * noise).clamp(0.0, 1.0)


def blurred(images: Images, std: float) -> Images:
    """Convolution with a Gaussian of this many pixels, cut off at four of them; edges go on as they end."""
    radius = int(4.0 * std + 0.5)
    if radius == 0:
        return images
    offsets = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    kernel = (-0.5 * (offsets / std).square()).exp()
    kernel = kernel / kernel.sum()
    num_channels = images.shape[1]
    across = kernel.expand(num_channels, 1, 1, -1)
    padded = F.pad(images, (radius, radius, radius, radius), mode="replicate")
    rows = F.conv2d(padded, across, groups=num_channels)
    return F.conv2d(rows, across.transpose(-1, -2), groups=num_channels).clamp(0.0, 1.0)


def with_contrast(images: Images, factor: float) -> Images:
    """``m + factor * (x - m)`` with m the mean of each image and channel, cut to [0, 1]."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return torch.lerp(mean, images, factor).clamp(0.0, 1.0)


def rotated(images: Images, degrees: float) -> Images:
    """Counterclockwise about the centre, by bilinear interpolation; what comes in from outside is black."""
    height, width = images.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Where a pixel comes from, in coordinates that run from -1 to 1 along either side, whatever its length.
    source = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    theta = torch.tensor(source, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False).clamp(0.0, 1.0)


def inverted(images: Images, amount: float) -> Images:
    """``(1 - amount) x + amount (1 - x)``: at 1 the negative, at one half an even grey."""
    return torch.lerp(images, 1.0 - images, amount)
