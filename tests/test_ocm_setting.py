"""The setting of the paper's second accuracy table: its crop with reflection, its replay batch, its preset."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pcr_ray.augment import GREY, PIPELINES, crop_resize
from pcr_ray.identity import identity
from pcr_ray.learner import Learner
from pcr_ray.study.resolve import ConfigProblems, resolve

OCM = PIPELINES["ocm"]


def mirrored(position: int, size: int) -> int:
    """The pixel at an integer position of an image that goes on mirrored: ... 1 0 | 0 1 ... n-1 | n-1 n-2 ..."""
    while not 0 <= position < size:
        position = -1 - position if position < 0 else 2 * size - 1 - position
    return position


def literal_crop(image: np.ndarray, box: list[float], flip: bool) -> np.ndarray:
    """Bilinear samples of (3, H, W) at the centres of an H x W grid laid over the box."""
    _, height, width = image.shape
    top, left, h, w = box
    out = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            column = width - 1 - x if flip else x
            row_at, column_at = top + (y + 0.5) * h / height - 0.5, left + (column + 0.5) * w / width - 0.5
            for dy in (0, 1):
                for dx in (0, 1):
                    r, c = math.floor(row_at) + dy, math.floor(column_at) + dx
                    weight = (1 - abs(row_at - r)) * (1 - abs(column_at - c))
                    out[:, y, x] += weight * image[:, mirrored(r, height), mirrored(c, width)]
    return out


BOXES = [
    [0.0, 0.0, 8.0, 8.0],  # the whole image
    [1.5, 0.5, 5.0, 6.0],  # half pixels
    [3.0, 4.0, 5.0, 4.0],  # in the corner
    [-2.5, 5.0, 6.0, 7.0],  # leaves the image at the top and on the right
    [-11.0, 13.0, 9.0, 20.0],  # outside, mirrored more than once
]


@pytest.mark.parametrize("flip", [False, True])
def test_a_crop_with_reflection_equals_the_literal_one(flip: bool) -> None:
    images = torch.rand(len(BOXES), 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes = torch.tensor(BOXES, dtype=torch.float64)
    ours = crop_resize(images, boxes, torch.tensor([flip] * len(BOXES)), reflect=True)
    for image, box, result in zip(images, BOXES, ours):
        np.testing.assert_allclose(result.numpy(), literal_crop(image.numpy(), box, flip), atol=1e-12)


def test_a_crop_with_reflection_equals_torch_sampling_with_reflection_padding() -> None:
    images = torch.rand(len(BOXES), 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    top, left, h, w = torch.tensor(BOXES, dtype=torch.float64).T
    theta = torch.zeros(len(BOXES), 2, 3, dtype=torch.float64)
    theta[:, 0, 0], theta[:, 1, 1] = w / 8, h / 8
    theta[:, 0, 2], theta[:, 1, 2] = (2 * left + w) / 8 - 1, (2 * top + h) / 8 - 1
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    expected = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    boxes = torch.tensor(BOXES, dtype=torch.float64)
    ours = crop_resize(images, boxes, torch.zeros(len(BOXES), dtype=torch.bool), reflect=True)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)


def test_the_ocm_pipeline_crops_03_to_1_inside_the_image_at_half_pixels() -> None:
    u = torch.rand(22, 4000, generator=torch.Generator().manual_seed(2))
    top, left, h, w = OCM.boxes(u, 32, 32).T
    assert ((top >= 0) & (left >= 0) & (top + h <= 32) & (left + w <= 32)).all()
    area, ratio = h * w / 32**2, w / h
    assert 0.3 - 0.02 < area.min() < 0.33 and 0.97 < area.max() <= 1  # rounding to pixels moves an area by 0.02
    assert 0.7 < ratio.min() < 0.8 and 1.25 < ratio.max() < 1.43
    halves = (2 * top).long() % 2 == 1
    assert torch.equal(2 * top, (2 * top).round())
    assert 0.4 < halves.float().mean() < 0.5  # of 2n + 1 positions n are at half pixels


def test_the_ocm_pipeline_flips_half_and_greys_a_quarter_and_changes_no_other_colour() -> None:
    n = 4000
    left_to_right = torch.linspace(0.1, 0.9, 8).expand(8, 8)
    images = torch.stack([left_to_right, 0.5 * left_to_right, 0.2 * left_to_right]).expand(n, 3, 8, 8)
    out = OCM(images, torch.Generator().manual_seed(3))
    flipped = out[:, 0, 0, 0] > out[:, 0, 0, -1]
    grey = out[:, 0, 0, 0] == out[:, 1, 0, 0]
    assert abs(flipped.float().mean() - 0.5) < 5 * math.sqrt(0.25 / n)  # five deviations of a binomial
    assert abs(grey.float().mean() - 0.25) < 5 * math.sqrt(0.1875 / n)
    coloured, greyed = out[~grey], out[grey]
    torch.testing.assert_close(coloured[:, 1], 0.5 * coloured[:, 0])
    torch.testing.assert_close(coloured[:, 2], 0.2 * coloured[:, 0])
    assert out.amax() <= 0.9 + 1e-6 and torch.equal(greyed[:, 0], greyed[:, 2])
    assert greyed.amax() <= 0.9 * (GREY[0] + 0.5 * GREY[1] + 0.2 * GREY[2]) + 1e-6


@pytest.mark.parametrize(("per_class", "expected"), [(None, [9, 9]), (2, [4, 8]), (3, [6, 9]), (100, [9, 9])])
def test_replay_grows_with_the_classes_seen_up_to_the_batch(root: Path, per_class: int | None, expected: list) -> None:
    config = resolve({"method": "er", "replay_batch_size": 9, "replay_per_class": per_class, "fraction": 0.15})
    learner = Learner(config, root=root, device="cpu")
    counts = []
    for task in range(2):
        learner.method.begin_task(learner.stream.tasks[task])
        for batch in learner.stream.batches(task):
            learner.method.remember(batch)
        counts.append(len(learner.method.recall(batch)))
    assert counts == expected


def test_replay_per_class_must_be_positive_and_does_not_matter_without_memory() -> None:
    with pytest.raises(ConfigProblems, match="replay_per_class"):
        resolve({"replay_per_class": 0})
    without = resolve({"method": "finetune", "replay_per_class": 7})
    assert identity(without) == identity(resolve({"method": "finetune"}))


def test_the_ocm_preset_is_a_valid_trial_of_the_second_table() -> None:
    config = resolve({"preset": "ocm", "dataset": "cifar100", "method": "ocm", "buffer": 1000})
    assert (config.model, config.optimiser, config.lr, config.replay_batch_size) == ("resnet18", "adam", 0.001, 64)
    assert (config.betas, config.weight_decay, config.normalise) == ([0.9, 0.99], 1e-4, True)
    assert (config.class_order, config.replay_per_class, config.augment) == ("natural", 7, "ocm")
    assert (config.softmax, config.params["halve"]) == ("all", False)
    assert (config.batch_size, config.tasks, config.head) == (10, 10, "linear")


def test_normalisation_makes_the_training_pixels_standard(root: Path) -> None:
    learner = Learner(resolve({"normalise": True, "augment": "none"}), root=root, device="cpu")
    batches = [batch for task in range(5) for batch in learner.stream.batches(task)]
    pixels = torch.cat([learner.method.views(batch)[0].images for batch in batches]).double()
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-3, rtol=0)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.ones(3, dtype=torch.float64), atol=1e-3, rtol=0)
