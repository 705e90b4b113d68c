"""Batched augmentation on the learner's device, with parameters drawn per image.

Images are float (N, 3, H, W) in [0, 1]. Each op takes one parameter per image and equals torchvision's
functional op for that parameter. What is random, crops included, is decided on the host and copied over at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcr_ray.device import send
from pcr_ray.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor


GREY = (0.2989, 0.587, 0.114)
TRIES = 10  # torchvision's number of attempts to find a crop that fits


@dataclass(frozen=True)
class Draw:
    """The random choices for a number of images: what each pipeline draws and applies. On the host, until sent."""

    values: Tensor  # (parameters, N)
    order: list[int]  # of the colour operations

    def sent(self, device: torch.device) -> Draw:
        """For compiled code, whose graph may not depend on the order: as data, below the parameters of each image."""
        order = torch.tensor(self.order, dtype=self.values.dtype)[:, None].expand(-1, self.values.shape[1])
        return Draw(send(torch.cat([self.values, order]), device), [])


class Pipeline:
    """Draws on the host, applies on the device: several batches can be drawn apart and applied together."""

    def draw(self, count: int, size: tuple[int, int], rng: torch.Generator) -> Draw:
        raise NotImplementedError

    def apply(self, images: Tensor, draws: list[Draw]) -> Tensor:
        raise NotImplementedError

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        height, width = images.shape[-2:]
        return self.apply(images, [self.draw(len(images), (height, width), rng)])


@dataclass(frozen=True)
class Augmentation(Pipeline):
    """RandomResizedCrop, flip, ColorJitter and grey, as probabilities and ranges.

    With `per_batch` one draw holds for all images of a batch, as torchvision's transforms do with a batch.

    With `reflect` the crop is a window on the image rather than a cut-out: pixels beside the window take part
    in the interpolation at its edge, and where a sampled position leaves the image, the image goes on mirrored
    at its border. The windows drawn here lie inside the image, at half pixels too, so that a position leaves it
    by less than half a pixel; `crop_resize` itself takes any window.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grey: float = 0.2
    reflect: bool = False
    per_batch: bool = False

    def draw(self, count: int, size: tuple[int, int], rng: torch.Generator) -> Draw:
        """The parameters of so many images of this height and width, on the host."""
        u = torch.rand(2 * TRIES + 9, 1 if self.per_batch else count, generator=rng)
        order = torch.randperm(4, generator=rng).tolist()  # as in kornia: one order per batch, factors per image
        rest = u[2 * TRIES + 3 :]
        rows = [
            *self.boxes(u[: 2 * TRIES + 2], *size).unbind(1),
            (u[2 * TRIES + 2] < self.flip).float(),
            (rest[0] < self.jitter).float(),
            *self.factors(rest[1:5]),
            (rest[5] < self.grey).float(),
        ]
        return Draw(torch.stack(rows).expand(-1, count), order)

    def apply(self, images: Tensor, draws: list[Draw]) -> Tensor:
        """Images of one or more draws, one after the other. One copy to the device, however many."""
        values = joined(draws, images.device)
        yes = values > 0.5
        images = crop_resize(images, values[:4].T, yes[4], reflect=self.reflect)
        if self.jitter:
            coloured = self.coloured(images, values, draws)
            images = torch.where(_per_image(yes[5]), coloured, images)
        return torch.where(_per_image(yes[10]), grey(images), images) if self.grey else images

    def coloured(self, images: Tensor, values: Tensor, draws: list[Draw]) -> Tensor:
        """Each draw's images by its factors and in its order."""
        if torch.compiler.is_compiling():
            return self.colours_by_data(images, values[6:10], values[11:15])
        counts = [d.values.shape[1] for d in draws]
        parts = zip(images.split(counts), values[6:10].split(counts, 1), draws)
        return torch.cat([self.colours(part, factors, draw.order) for part, factors, draw in parts])

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Crops (N, 4) as top, left, height, width: the first of ten tries that fits, else the whole image."""
        area = height * width * _between(u[:TRIES], *self.scale)
        ratio = torch.exp(_between(u[TRIES : 2 * TRIES], math.log(self.ratio[0]), math.log(self.ratio[1])))
        w, h = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)  # (tries, N)
        first = fits.int().argmax(0, keepdim=True)
        found = fits.any(0)
        w = torch.where(found, w.gather(0, first)[0], torch.full_like(w[0], width))
        h = torch.where(found, h.gather(0, first)[0], torch.full_like(h[0], height))
        steps = 2 if self.reflect else 1  # positions per pixel
        top = torch.floor(u[2 * TRIES] * (steps * (height - h) + 1)) / steps
        left = torch.floor(u[2 * TRIES + 1] * (steps * (width - w) + 1)) / steps
        return torch.stack([top, left, h, w], 1)

    def factors(self, u: Tensor) -> Tensor:
        """What the four colour operations take (4, N), from numbers in [0, 1)."""
        limits = [(1 - x, 1 + x) for x in (self.brightness, self.contrast, self.saturation)] + [(-self.hue, self.hue)]
        return torch.stack([_between(one, *limit) for one, limit in zip(u, limits)])

    @staticmethod
    def colours(images: Tensor, factors: Tensor, order: list[int]) -> Tensor:
        """Brightness, contrast, saturation and hue by their rows of `factors` (4, N), in this order."""
        for i in order:
            images = (brightness, contrast, saturation, hue)[i](images, factors[i])
        return images

    @staticmethod
    def colours_by_data(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
        """The same with an order (4, N) on the device: at each place all four are computed and one is taken.

        A graph for each order would be 24 of them, and 576 with the memory's own.
        """
        for place in order:
            before = images
            for i, operation in enumerate((brightness, contrast, saturation, hue)):
                images = torch.where(_per_image(place == i), operation(before, factors[i]), images)
        return images


@dataclass(frozen=True)
class CropFlip(Pipeline):
    """RandomCrop of the image's size after padding with black, and flip."""

    padding: int = 4
    flip: float = 0.5

    def draw(self, count: int, size: tuple[int, int], rng: torch.Generator) -> Draw:
        """The parameters of so many images, on the host."""
        u = torch.rand(3, count, generator=rng)
        return Draw(torch.cat([torch.floor(u[:2] * (2 * self.padding + 1)), (u[2:] < self.flip).float()]), [])

    def apply(self, images: Tensor, draws: list[Draw]) -> Tensor:
        """Images of one or more draws, one after the other. One copy to the device, however many."""
        values = joined(draws, images.device)
        return padded_crop(images, values[:2].long().T, values[2] > 0.5, self.padding)


def joined(draws: list[Draw], device: torch.device) -> Tensor:
    """The values of all of them, on the device: what was not sent before goes in one copy."""
    values = torch.cat([d.values for d in draws], 1)
    return values if values.device == device else send(values, device)


PIPELINES: dict[str, Pipeline | None] = {
    "paper": Augmentation(),
    "ocm": Augmentation(scale=(0.3, 1.0), jitter=0.0, grey=0.25, reflect=True),
    "dvc": Augmentation(jitter=1.0, per_batch=True),
    "crop_flip": CropFlip(),
    "none": None,
}


def padded_crop(images: Tensor, offsets: Tensor, flip: Tensor, padding: int) -> Tensor:
    """The window at `offsets` (N, 2), top and left, of each image padded with black, mirrored where `flip`."""
    height, width = images.shape[-2:]
    rows = offsets[:, :1] + torch.arange(height, device=images.device)  # (N, H)
    columns = torch.arange(width, device=images.device).expand(len(images), -1)
    columns = offsets[:, 1:] + torch.where(flip[:, None], columns.flip(1), columns)  # (N, W)
    which = torch.arange(len(images), device=images.device)[:, None, None]
    window = F.pad(images, [padding] * 4)[which, :, rows[:, :, None], columns[:, None]]  # (N, H, W, 3)
    return window.permute(0, 3, 1, 2)


def crop_resize(images: Tensor, boxes: Tensor, flip: Tensor, *, reflect: bool = False) -> Tensor:
    """Crop each image, resize it back bilinearly and mirror it where `flip`.

    Both directions are one matrix each: row o holds the hat function around the source position of
    output pixel o. Positions are clamped to the crop, as torchvision crops before it resizes; with `reflect`
    they are mirrored at the image's border instead, as `grid_sample` does with reflection padding.
    """
    height, width = images.shape[-2:]
    rows = _interpolation(boxes[:, 0], boxes[:, 2], height, reflect)  # (N, H, H)
    columns = _interpolation(boxes[:, 1], boxes[:, 3], width, reflect)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ images @ columns.transpose(1, 2)[:, None]


def _interpolation(start: Tensor, length: Tensor, size: int, reflect: bool) -> Tensor:
    pixels = torch.arange(size, device=start.device, dtype=start.dtype)
    source = (pixels + 0.5) * (length / size)[:, None] - 0.5
    if reflect:
        folded = (source + start[:, None] + 0.5) % (2 * size)  # the image spans 0 to size, its mirror image the rest
        source = (size - (size - folded).abs() - 0.5).clamp(0, size - 1)
    else:
        source = torch.minimum(source.clamp(min=0), length[:, None] - 1) + start[:, None]
    return (1 - (source[:, :, None] - pixels).abs()).clamp(min=0)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * _per_image(factor)).clamp(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images), factor)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by `shift` turns, keeping value and saturation.

    Channel c of a colour with hue h, value v and chroma d is v - d * clamp(min(k, 4 - k), 0, 1) with
    k = (n_c + 6h) mod 6 and n = 5, 3, 1 for red, green, blue.
    """
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    safe = chroma.masked_fill(chroma == 0, 1)
    sextant = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sextant = sextant + 6 * shift[:, None, None]
    n = torch.arange(5, 0, -2, dtype=images.dtype, device=images.device)
    k = (n[:, None, None] + sextant[:, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    return _grey(images).expand_as(images)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (GREY[0] * red).add(green, alpha=GREY[1]).add(blue, alpha=GREY[2])[:, None]


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor * images + (1 - factor) * other, in [0, 1]."""
    return torch.lerp(other, images, _per_image(factor)).clamp(0, 1)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u
