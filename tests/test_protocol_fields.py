"""Fields by which protocols differ: the range of pixels, pooling, what shares BatchNorm's statistics."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from pcr_ray import models
from pcr_ray.identity import identity
from pcr_ray.learner import Learner
from pcr_ray.study.resolve import resolve


def begun(root: Path, **fields: object) -> Learner:
    learner = Learner(resolve({"buffer": 40, "fraction": 0.1, **fields}), root=root, device="cpu")
    learner.method.begin_task(learner.stream.tasks[0])
    return learner


@pytest.mark.parametrize(("pixels", "low", "high"), [("unit", 0.0, 1.0), ("signed", -1.0, 1.0)])
def test_training_and_evaluation_see_pixels_in_the_range_asked_for(
    root: Path, pixels: str, low: float, high: float
) -> None:
    method = begun(root, pixels=pixels, views="original").method
    stored = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 16, 16, 3)
    seen: list[torch.Tensor] = []
    method.net.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    batch = next(begun(root).stream.batches(0))
    batch.images[:3] = stored
    method.embed(stored)
    method.features(*method.views(batch))
    for images in (seen[0], seen[1][:3]):
        expected = [low, low + (high - low) / 5, high]
        assert [float(image.unique()) for image in images] == pytest.approx(expected, abs=1e-6)


def test_the_range_of_pixels_makes_no_difference_where_they_are_normalised() -> None:
    both = [resolve({"normalise": True, "pixels": pixels}) for pixels in ("unit", "signed")]
    assert both[0] == both[1]


@pytest.mark.parametrize(("size", "pool", "features"), [(84, 4, 640), (84, 3, 9 * 160), (84, None, 160), (16, 1, 640)])
def test_features_are_the_means_of_the_cells_that_fit_into_the_last_map(
    size: int, pool: int | None, features: int
) -> None:
    net = models.build("reduced_resnet18", "linear", 5, None, 0, pool=pool, image_size=size).eval()
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = net.backbone.stages(net.backbone.stem(images))
        got = net(images)
        assert net(images, logits=True).shape == (2, 5)
    side = maps.shape[2] if pool is None else pool
    cells = [
        maps[:, :, y : y + side, x : x + side].mean((2, 3))
        for y in range(0, maps.shape[2] - side + 1, side)
        for x in range(0, maps.shape[3] - side + 1, side)
    ]
    assert got.shape == (2, features)
    torch.testing.assert_close(got, torch.stack(cells, 2).flatten(1))


def test_a_pool_as_large_as_the_map_is_the_whole_map() -> None:
    base = {"dataset": "cifar10", "method": "er"}
    assert identity(resolve({**base, "pool": 4})) == identity(resolve(base))
    assert identity(resolve({**base, "pool": 3})) != identity(resolve(base))
    folder = {"dataset": "folder", "folder": "x", "tasks": 2}
    assert resolve({**folder, "image_size": 33, "pool": 4}).pool == 4  # a map of 5 by 5
    assert resolve({**folder, "image_size": 32, "pool": 4}).pool is None


@pytest.mark.parametrize("method", ["pcr", "scr", "er_wa"])
def test_methods_learn_with_pooled_cells(root: Path, method: str) -> None:
    learner = begun(root, method=method, pool=1, lr=0.01)
    assert learner.method.net.backbone.dim == 640
    assert learner.run_task()["loss"] > 0


@pytest.mark.parametrize("batchnorm", ["joint", "separate", "views"])
def test_what_passes_the_network_together_shares_statistics(root: Path, batchnorm: str) -> None:
    learner = begun(root, method="er", batchnorm=batchnorm)
    method, stream = learner.method, learner.stream.batches(0)
    method.remember(next(stream))
    batch, memory = next(stream), method.memory.sample(4)
    assert memory is not None
    views, n, k = method.views(batch, memory), len(batch), 4
    everything = torch.cat([v.images for v in views])  # originals, copies, replayed originals, replayed copies
    parts = everything.split([n, n, k, k])
    groups = {"joint": [(0, 1, 2, 3)], "separate": [(0, 1), (2, 3)], "views": [(0, 2), (1, 3)]}[batchnorm]
    plain, expected = copy.deepcopy(method.net), {}
    for group in groups:
        features = plain(torch.cat([parts[i] for i in group])).split([len(parts[i]) for i in group])
        expected |= dict(zip(group, features))
    for got, wanted in zip(method.features(*views), ((0, 1), (2, 3))):
        torch.testing.assert_close(got, torch.cat([expected[i] for i in wanted]))
    for name, value in plain.named_buffers():
        assert torch.equal(value, dict(method.net.named_buffers())[name])


def test_statistics_per_view_of_one_view_are_joint() -> None:
    assert resolve({"method": "er", "batchnorm": "views", "views": "augmented"}).batchnorm == "joint"
    assert resolve({"method": "scr", "augment": "none"}).batchnorm == "joint"
