"""Augmentation against torchvision: each op for the same parameters, the drawn parameters in distribution."""

from __future__ import annotations

import colorsys
import itertools

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from scipy import stats
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from pcr_ray import augment
from pcr_ray.augment import PIPELINES, TRIES, Augmentation

SIZES = (8, 16, 32, 84)
P_VALUE = 1e-4  # a right implementation fails a test of this kind once in 10,000 seeds; the seeds are fixed
# Sources are computed as (o + 0.5) * length / size - 0.5 + start: a rounding of 84 is 4e-6, on pixels in [0, 1].
RESIZE_TOLERANCE = 1e-5
COLOUR_TOLERANCE = {"brightness": 1e-6, "contrast": 1e-6, "saturation": 1e-6, "hue": 5e-6}  # hue: divides by chroma
WHOLE = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}  # no crop


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, size: int, seed: int = 0) -> Tensor:
    """Random images; the first are black, white, mid-grey, grey-scale, pure colours, and 8-bit with equal channels."""
    images = torch.rand(n, 3, size, size, generator=rng(seed))
    images[0], images[1], images[2] = 0, 1, 0.5
    images[3] = images[3, :1]
    images[4] = images[4].round()
    images[5] = (images[5] * 255).round() / 255
    images[5, 1] = images[5, 0]  # ties between channels
    images[6, 2] = images[6, 1]
    return images


def random_boxes(n: int, size: int, seed: int) -> Tensor:
    """Any boxes inside the image: whole, single pixels in corners, single rows and columns, and random ones."""
    g = rng(seed)
    h, w = torch.randint(1, size + 1, (2, n), generator=g)
    top = (torch.rand(n, generator=g) * (size - h + 1)).long()
    left = (torch.rand(n, generator=g) * (size - w + 1)).long()
    boxes = torch.stack([top, left, h, w], 1)
    last = size - 1
    edge = [(0, 0, size, size), (0, 0, 1, 1), (last, last, 1, 1), (last, 0, 1, size), (0, last, size, 1)]
    edge += [(size - 2, 1, 2, size - 1), (0, 0, last, size), (1, 1, last, last), (0, size - 3, 2, 3)]
    boxes[: len(edge)] = torch.tensor(edge)
    return boxes


def applied(op: str, image: Tensor, factor: Tensor) -> Tensor:
    """torchvision's op on one image."""
    return getattr(tv, f"adjust_{op}")(image, float(factor))


# The ops.


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_crop_resize_and_flip_equal_torchvision(size: int, antialias: bool) -> None:
    n = 48
    images, boxes = pictures(n, size).roll(5, 0), random_boxes(n, size, seed=size)
    flip = torch.rand(n, generator=rng(1)) < 0.5
    expected = [
        tv.resized_crop(image, *map(int, box), [size, size], antialias=antialias)[None]
        for image, box in zip(images, boxes)
    ]
    expected = torch.cat([tv.hflip(image) if f else image for image, f in zip(expected, flip)])
    torch.testing.assert_close(
        augment.crop_resize(images, boxes.float(), flip), expected, atol=RESIZE_TOLERANCE, rtol=0
    )


def test_the_whole_image_as_box_changes_nothing() -> None:
    images = pictures(10, 32)
    boxes = torch.tensor([[0.0, 0, 32, 32]]).repeat(10, 1)
    assert torch.equal(augment.crop_resize(images, boxes, torch.zeros(10, dtype=torch.bool)), images)
    assert torch.equal(augment.crop_resize(images, boxes, torch.ones(10, dtype=torch.bool)), images.flip(3))


def test_images_of_unequal_sides_are_cropped_as_in_torchvision() -> None:
    images = torch.rand(3, 3, 12, 20, generator=rng())
    boxes = torch.tensor([[2, 3, 7, 11], [0, 0, 12, 20], [11, 0, 1, 20]])
    expected = torch.stack([tv.resized_crop(i, *map(int, b), [12, 20]) for i, b in zip(images, boxes)])
    ours = augment.crop_resize(images, boxes.float(), torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(ours, expected, atol=RESIZE_TOLERANCE, rtol=0)


@pytest.mark.parametrize("op", ["brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("size", [16, 84])
def test_colour_ops_equal_torchvision(op: str, size: int) -> None:
    images = pictures(64, size)
    low, high, neutral = (-0.5, 0.5, 0.0) if op == "hue" else (0.0, 2.0, 1.0)
    factors = low + (high - low) * torch.rand(64, generator=rng(2))
    factors[10:13] = torch.tensor([low, high, neutral])
    expected = torch.stack([applied(op, image, f) for image, f in zip(images, factors)])
    ours = getattr(augment, op)(images, factors)
    torch.testing.assert_close(ours, expected, atol=COLOUR_TOLERANCE[op], rtol=0)
    assert ours.min() >= 0 and ours.max() <= 1


@pytest.mark.parametrize("shift", [-0.5, -0.1, -1 / 6, 0.0, 1 / 3, 0.1])
def test_hue_equals_torchvision_on_edge_colours(shift: float) -> None:
    levels = (0.0, 1 / 255, 0.5, 254 / 255, 1.0)
    image = torch.tensor(list(itertools.product(levels, repeat=3))).T.reshape(1, 3, 5, 25)
    ours = augment.hue(image, torch.tensor([shift]))
    torch.testing.assert_close(ours[0], applied("hue", image[0], torch.tensor(shift)), atol=5e-6, rtol=0)


def test_grey_equals_torchvision() -> None:
    images = pictures(32, 32)
    torch.testing.assert_close(augment.grey(images), tv.rgb_to_grayscale(images, 3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_jitter_equals_torchvision_ops_in_the_same_order(order: list[int]) -> None:
    """Factors of u = 0, 1/4, 1/2, 1 are 0.6, 0.8, 1, 1.4 (hue -0.1, -0.05, 0, 0.1)."""
    u = torch.tensor([0.0, 0.25, 0.5, 1.0])[torch.randint(0, 4, (4, 24), generator=rng(3))]
    scale = {0.0: (0.6, -0.1), 0.25: (0.8, -0.05), 0.5: (1.0, 0.0), 1.0: (1.4, 0.1)}
    images = pictures(24, 16)
    expected = images.clone()
    for i, k in itertools.product(range(24), order):
        factor = scale[float(u[k, i])][k == 3]
        expected[i] = applied(("brightness", "contrast", "saturation", "hue")[k], expected[i], torch.tensor(factor))
    paper = Augmentation()
    torch.testing.assert_close(paper.colours(images, paper.factors(u), order), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name, pipeline in PIPELINES.items() if pipeline])
def test_batches_drawn_apart_and_applied_together_are_as_each_alone(name: str) -> None:
    pipeline, first, second = PIPELINES[name], pictures(9, 16), pictures(12, 16).flip(0)
    assert pipeline is not None
    draws = [pipeline.draw(9, (16, 16), rng(1)), pipeline.draw(12, (16, 16), rng(2))]
    together = pipeline.apply(torch.cat([first, second]), draws)
    assert torch.equal(together, torch.cat([pipeline(first, rng(1)), pipeline(second, rng(2))]))


# The crops that are drawn.


@pytest.mark.parametrize("size", [32, 84])
def test_boxes_are_distributed_as_torchvisions(size: int) -> None:
    n = 6000
    paper = PIPELINES["paper"]
    ours = paper.boxes(torch.rand(2 * TRIES + 2, n, generator=rng(4)), size, size)
    image = torch.zeros(3, size, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        draw = RandomResizedCrop.get_params
        theirs = torch.tensor([draw(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(n)]).float()
    for name, statistic in {
        "top": lambda b: b[:, 0],
        "left": lambda b: b[:, 1],
        "height": lambda b: b[:, 2],
        "width": lambda b: b[:, 3],
        "area": lambda b: b[:, 2] * b[:, 3],
        "ratio": lambda b: b[:, 3] / b[:, 2],
        "room used above": lambda b: b[:, 0] / (size - b[:, 2] + 1),
        "bottom right": lambda b: b.sum(1),
    }.items():
        p = stats.ks_2samp(statistic(ours).numpy(), statistic(theirs).numpy()).pvalue
        assert p > P_VALUE, f"{name}: p = {p:.2g}"


@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-24])
@pytest.mark.parametrize("size", range(8, 86))
def test_boxes_stay_inside_the_image_for_extreme_draws(size: int, extreme: float) -> None:
    u = torch.rand(2 * TRIES + 2, 200, generator=rng(size))
    u[2 * TRIES :] = extreme  # the largest number below 1 that torch.rand gives
    top, left, h, w = Augmentation().boxes(u, size, size).unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (h >= 1).all() and (w >= 1).all()
    assert (top + h <= size).all() and (left + w <= size).all()
    touches = (top + h == size) if extreme else (top == 0)
    assert touches.all()


def test_the_first_try_that_fits_is_taken_and_the_whole_image_when_none_does() -> None:
    u = torch.zeros(2 * TRIES + 2, 2)
    u[:TRIES], u[TRIES : 2 * TRIES] = 1.0, 1.0  # area 1 and ratio 4/3: too wide
    u[3, 1], u[TRIES + 3, 1] = 0.5, 0.5  # second image, fourth try: area 0.6, ratio 1
    u[4, 1] = 0.0  # a later try that fits too
    boxes = Augmentation().boxes(u, 100, 100)
    assert boxes.tolist() == [[0, 0, 100, 100], [0, 0, 77, 77]]  # sqrt(0.6) = 0.7746


# The pipeline.


def sided(n: int) -> Tensor:
    """A coloured image, brighter on the left: flip, jitter and grey can all be read off the result."""
    image = torch.tensor([0.6, 0.4, 0.3])[:, None, None].repeat(1, 8, 8)
    image[:, :, 4:] *= 0.5
    return image.repeat(n, 1, 1, 1)


def test_flip_jitter_and_grey_come_independently_with_their_probabilities() -> None:
    n, batches = 2000, 5
    images = sided(n)
    pipeline, g = Augmentation(**WHOLE), rng(6)
    table = torch.zeros(2, 2, 2)
    for _ in range(batches):
        out = pipeline(images, g)
        flipped = out[:, 0, 0, 0] < out[:, 0, 0, -1]
        greyed = (out[:, 0] == out[:, 1]).flatten(1).all(1)
        plain = torch.where(flipped[:, None, None, None], images.flip(3), images)
        plain = torch.where(greyed[:, None, None, None], tv.rgb_to_grayscale(plain, 3), plain)
        jittered = (out - plain).abs().flatten(1).amax(1) > 1e-6
        table.index_put_((flipped.long(), jittered.long(), greyed.long()), torch.ones(n), accumulate=True)
    flip, jitter, grey = torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8]), torch.tensor([0.8, 0.2])
    expected = n * batches * flip[:, None, None] * jitter[:, None] * grey
    assert stats.chisquare(table.flatten().numpy(), expected.flatten().numpy()).pvalue > P_VALUE


def only(**ranges: float) -> Augmentation:
    none = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    return Augmentation(**WHOLE, flip=0.0, jitter=1.0, grey=0.0, **none | ranges)


@pytest.mark.parametrize("op", ["brightness", "contrast", "saturation", "hue"])
def test_jitter_factors_are_uniform_over_their_range(op: str) -> None:
    images = sided(4000)
    out = only(**{op: 0.1 if op == "hue" else 0.4})(images, rng(7))
    if op == "brightness":
        factors = out[:, 0, 0, 0] / 0.6
    elif op == "contrast":
        factors = (out[:, 0, 0, 0] - out[:, 0, 0, -1]) / 0.3
    elif op == "saturation":
        factors = (out[:, 0, 0, 0] - out[:, 1, 0, 0]) / 0.2
    else:
        base = colorsys.rgb_to_hsv(0.6, 0.4, 0.3)[0]
        hues = torch.tensor([colorsys.rgb_to_hsv(*pixel)[0] for pixel in out[:, :, 0, 0].tolist()])
        factors = (hues - base + 0.5) % 1 - 0.5
    low, width = (-0.1, 0.2) if op == "hue" else (0.6, 0.8)
    assert stats.kstest(factors.numpy(), stats.uniform(low, width).cdf).pvalue > P_VALUE


def test_every_image_of_a_batch_gets_its_own_parameters() -> None:
    image = torch.rand(1, 3, 32, 32, generator=rng(8))
    out = PIPELINES["paper"](image.repeat(64, 1, 1, 1), rng(9)).flatten(1)
    assert torch.pdist(out).min() > 0.1


def test_an_image_is_augmented_the_same_whatever_stands_beside_it() -> None:
    images = pictures(10, 32)
    other = images.clone()
    other[1:] = torch.rand(9, 3, 32, 32, generator=rng(10))
    first, second = (PIPELINES["paper"](batch, rng(11))[0] for batch in (images, other))
    torch.testing.assert_close(first, second, atol=1e-6, rtol=0)


def test_the_generator_decides_the_result_alone() -> None:
    images, g = pictures(10, 16), rng(12)
    kept, before = images.clone(), torch.get_rng_state()
    state = g.get_state()
    first, second = PIPELINES["paper"](images, g), PIPELINES["paper"](images, g)
    assert not torch.equal(first, second)
    torch.manual_seed(123)
    assert torch.equal(PIPELINES["paper"](images, g.set_state(state)), first)
    torch.set_rng_state(before)
    PIPELINES["paper"](images, g)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("size", SIZES)
def test_results_stay_within_zero_and_one(size: int) -> None:
    g = rng(13)
    images = torch.cat([pictures(30, size), pictures(30, size).round()])
    for _ in range(10):
        out = PIPELINES["paper"](images, g)
        assert out.shape == (60, 3, size, size) and out.dtype == torch.float32
        assert out.min() >= 0 and out.max() <= 1
    white = torch.ones(len(boxes := random_boxes(200, size, 14)), 3, size, size)
    assert augment.crop_resize(white, boxes.float(), torch.zeros(200, dtype=torch.bool)).max() <= 1


# A crop after padding, and draws per batch.


@pytest.mark.parametrize("size", SIZES)
def test_padded_crop_and_flip_equal_torchvision(size: int) -> None:
    n = 20
    images = pictures(n, size)
    offsets = torch.randint(0, 9, (n, 2), generator=rng(2))
    offsets[:4] = torch.tensor([[0, 0], [8, 8], [0, 8], [4, 4]])
    flip = torch.rand(n, generator=rng(1)) < 0.5
    expected = [tv.crop(tv.pad(image, [4]), *map(int, o), size, size) for image, o in zip(images, offsets)]
    expected = [tv.hflip(image) if f else image for image, f in zip(expected, flip)]
    assert torch.equal(augment.padded_crop(images, offsets, flip, 4), torch.stack(expected))


def test_crop_flip_draws_each_of_81_windows_and_each_side_alike_per_image() -> None:
    n = 8100
    images = torch.arange(1.0, 10 * 10 + 1).view(1, 1, 10, 10).expand(n, 3, 10, 10)  # every pixel is its own
    out = PIPELINES["crop_flip"](images, rng(3))
    inner = out[:, 0, 4:6, 4:6]  # pixels that every window has: the middle 2 by 2 of the output
    flipped = inner[:, 0, 0] > inner[:, 0, 1]
    left = torch.where(flipped, inner[:, 0, 1], inner[:, 0, 0]).long() - 1
    windows = torch.bincount(left // 10 * 10 + left % 10, minlength=100).view(10, 10)
    counts = windows[windows > 0]
    assert len(counts) == 81 and stats.chisquare(counts).pvalue > P_VALUE
    assert stats.binomtest(int(flipped.sum()), n).pvalue > P_VALUE


def test_the_dvc_pipeline_treats_all_images_of_a_batch_alike_and_always_jitters() -> None:
    dvc = PIPELINES["dvc"]
    assert isinstance(dvc, Augmentation)
    image = pictures(8, 16)[7:]
    for seed in range(20):
        out = dvc(image.expand(6, -1, -1, -1), rng(seed))
        torch.testing.assert_close(out, out[:1].expand_as(out), rtol=0, atol=0)
    one_at_a_time = [dvc(pictures(8, 16)[7:], rng(seed)) for seed in range(20)]
    assert len({tuple(x.flatten().tolist()) for x in one_at_a_time}) == 20  # another draw per batch
    whole = Augmentation(**WHOLE, flip=0, grey=0, jitter=dvc.jitter, per_batch=True)
    assert not any(torch.allclose(whole(image, rng(seed)), image, atol=1e-3) for seed in range(200))


def test_one_draw_per_batch_is_the_draw_of_a_batch_of_one() -> None:
    images, dvc = pictures(7, 32), PIPELINES["dvc"]
    assert dvc is not None
    for seed in range(5):
        alone = torch.cat([dvc(image[None], rng(seed)) for image in images])
        torch.testing.assert_close(dvc(images, rng(seed)), alone)
