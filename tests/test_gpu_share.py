"""The share of a GPU that `auto` means: its arithmetic, and its estimate against what autograd really keeps."""

from __future__ import annotations

import pytest
import torch

from pcr_ray.execution import gpu
from pcr_ray.models import FILTERS, build
from pcr_ray.study.resolve import resolve
from pcr_ray.study.schema import GPU_SHARE, Resources

GIB = 2**30


@pytest.mark.parametrize("model", FILTERS)
@pytest.mark.parametrize("side", [32, 84])
def test_the_maps_of_a_step_are_those_that_autograd_keeps(model: str, side: int) -> None:
    net, kept = build(model, "linear", 10, None, seed=0), {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = net(torch.rand(2, 3, side, side), logits=True)
    weights = {p.untyped_storage().data_ptr() for p in net.parameters()}
    real = sum(size for place, size in kept.items() if place not in weights) / 2
    assert out.shape == (2, 10) and real <= gpu.kept(FILTERS[model], side) <= 1.1 * real


def test_as_many_trials_share_a_gpu_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [resolve({"dataset": "cifar10", "method": method}) for method in ("er", "pcr")]
    sizes = iter([1.0 * GIB, 3.0 * GIB] * 4)
    monkeypatch.setattr(gpu, "need", lambda trial: next(sizes))
    assert gpu.share(trials, 16 * GIB) == 0.25  # the larger counts: 3 GiB go into 14.72 four times
    assert gpu.share(trials, 10 * GIB) == 0.3333  # three times, and never more than a whole together
    assert gpu.share(trials, 2 * GIB) == 1.0  # it may not fit at all, but it gets what there is
    assert gpu.share(trials, 80 * GIB) == 1 / gpu.MOST


def test_larger_images_networks_and_batches_need_more() -> None:
    def need(**settings: object) -> float:
        return gpu.need(resolve({"dataset": "cifar10", "method": "er", **settings}))

    assert need() < need(model="resnet18") < need(model="resnet18", replay_batch_size=100)
    # 60,000 images of 84 by 84 pixels, a byte for each of three colours.
    assert need(dataset="mini_imagenet") > need() + 60_000 * 3 * (84**2 - 32**2)
    assert gpu.share([resolve({"dataset": "mini_imagenet", "model": "resnet18"})], 8 * GIB) > gpu.share(
        [resolve({"dataset": "cifar10"})], 8 * GIB
    )


def test_without_its_size_a_gpu_is_shared_as_usual() -> None:
    assert gpu.share([resolve({"dataset": "cifar10"})], None) == GPU_SHARE == gpu.share([], 8 * GIB)


@pytest.mark.parametrize(("wanted", "settled"), [(0.5, 0.5), (0.0, 0.0), (None, 0.0)])
def test_what_was_asked_for_stays(wanted: float | None, settled: float) -> None:
    found = Resources(cpu=1, gpu=settled)
    assert gpu.refined(Resources(gpu=wanted), found, [resolve({"dataset": "cifar10"})]) == found
