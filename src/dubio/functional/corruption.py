"""Formulas of corrupted data: wrong labels, corrupted images, and images of another size.

Labels. A transition matrix holds how often a true class (row) is recorded as another (column). Its rows sum to 1, and
at p = 0 it is the identity (T-71).

Images in [0, 1] stay in [0, 1]: noise, blur, contrast, rotation and inversion. At its neutral value (0, or a contrast
of 1) each leaves the images as they are.

Area resizing. A new pixel is the mean of all it covers, fractions of old pixels included. The mean of an image is
exactly the same for all sizes; where one size divides the other, the result is an average pool.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Images = Float[Tensor, "batch channel height width"]


def patterned_transition(destinations: Int[Tensor, " class"], p: float) -> Float[Tensor, "class class"]:
    """``(1 - p) I + p F``, where row i of F has its single 1 at ``destinations[i]`` (E-67)."""
    pattern = F.one_hot(destinations.long(), len(destinations)).double()
    return (1.0 - p) * torch.eye(len(destinations), dtype=torch.float64, device=destinations.device) + p * pattern


def symmetric_transition(num_classes: int, p: float) -> Float[Tensor, "class class"]:
    """``(1 - p) I + p / (C - 1) (1 - I)``: with probability p one of the other classes (section 13.1)."""
    identity = torch.eye(num_classes, dtype=torch.float64)
    return (1.0 - p) * identity + p / (num_classes - 1) * (1.0 - identity)


def uniform_transition(num_classes: int, p: float) -> Float[Tensor, "class class"]:
    """``(1 - p) I + p / C``: with probability p any class, the true one included (section 13.1)."""
    return (1.0 - p) * torch.eye(num_classes, dtype=torch.float64) + p / num_classes


def flip_destinations(offsets: Int[Tensor, " class"]) -> Int[Tensor, " class"]:
    """For every class another one, from numbers 0 to C - 2 that count through the others (f(i) != i of E-67)."""
    classes = torch.arange(len(offsets), device=offsets.device)
    return offsets + (offsets >= classes)


def redrawn_labels(
    labels: Int[Tensor, " example"], transition: Float[Tensor, "class class"], uniforms: Float[Tensor, " example"]
) -> Int[Tensor, " example"]:
    """Each label drawn anew from its row of the transition matrix, by inversion of a uniform number in [0, 1)."""
    cumulative = transition.cumsum(dim=1)
    cumulative = cumulative / cumulative[:, -1:]  # so that the last is 1 and above every uniform number
    redrawn = labels.clone()
    for label in labels.unique().tolist():
        rows = labels == label
        redrawn[rows] = torch.searchsorted(cumulative[label], uniforms[rows], right=True).to(labels.dtype)
    return redrawn


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


def area_resized(
    images: Float[Tensor, "*batch height width"], size: tuple[int, int]
) -> Float[Tensor, "*batch rows columns"]:
    """Images of ``size`` rows and columns, each pixel the mean of what it covers."""
    if not all(1 <= new <= old for new, old in zip(size, images.shape[-2:], strict=True)):
        raise ValueError(f"size must be from 1 pixel to that of the images, {tuple(images.shape[-2:])}, got {size}")
    rows, columns = (_shares(old, new).to(images) for old, new in zip(images.shape[-2:], size, strict=True))
    return rows @ images @ columns.mT


def small_image(
    image: Float[Tensor, "channel height width"], largest: int = 64
) -> UInt8[Tensor, "channel rows columns"]:
    """An image with values from 0 to 1 as bytes, made smaller where a side is longer than ``largest``."""
    height, width = image.shape[-2:]
    factor = min(1.0, largest / max(height, width))
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    resized = image if size == (height, width) else area_resized(image, size)
    return (resized.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


def _shares(old: int, new: int) -> Float[Tensor, "new old"]:
    """What share of each new pixel every old one has, along one axis."""
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    before = torch.arange(old, dtype=torch.float64)
    begin, end = edges[:-1, None], edges[1:, None]
    overlap = torch.minimum(end, before + 1.0) - torch.maximum(begin, before)
    return overlap.clamp_min(0.0) * (new / old)
