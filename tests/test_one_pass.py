"""Stream and memory pass the network together, with statistics of their own: against one pass each."""

import copy

import pytest
import torch

from pcr_ray.contract.operations import of_a_step
from pcr_ray.models import build


def network():
    return build("reduced_resnet18", "cosine", 10, 10.0, 3, image_size=8).double().train()


def learned(net, images, passes):
    """Features, gradients, and the state afterwards, of a loss that no statistics hide from."""
    features = torch.cat([net(images[start:end], parts) for start, end, parts in passes])
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(1), dtype=features.dtype)
    (features.square() * weights).sum().backward()
    return [features.detach(), *(p.grad for p in net.backbone.parameters()), *net.state_dict().values()]


@pytest.mark.parametrize("parts", [[6, 6], [7, 4], [5, 2, 9]])
def test_one_pass_with_parts_is_a_pass_for_each(parts):
    rng = torch.Generator().manual_seed(0)
    images = [torch.randn(n, 3, 8, 8, generator=rng, dtype=torch.float64) * (i + 1) for i, n in enumerate(parts)]
    images = torch.cat(images).to(memory_format=torch.channels_last)
    together, apart = network(), network()
    ends = torch.tensor(parts).cumsum(0).tolist()
    got = learned(together, images, [(0, sum(parts), parts)])
    wanted = learned(apart, images, [(end - n, end, None) for n, end in zip(parts, ends)])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    norm = together.backbone.stem[1]
    assert norm.num_batches_tracked == len(parts) and (norm.running_var - 1).abs().max() > 0.01  # it moved
    joint = learned(network(), images, [(0, sum(parts), None)])
    assert (joint[0] - got[0]).abs().max() > 0.01  # statistics of its own make a difference


def test_the_gradient_is_the_slope():
    norm = network().backbone.stem[1]
    x = torch.randn(5, norm.num_features, 2, 2, dtype=torch.float64, requires_grad=True)

    def normalised(x, weight, bias):
        mine = copy.deepcopy(norm)
        del mine.weight, mine.bias
        mine.weight, mine.bias = weight, bias
        return mine(x, [2, 3])

    assert torch.autograd.gradcheck(normalised, (x, norm.weight, norm.bias))


def test_in_evaluation_parts_make_no_difference():
    net, images = network().eval(), torch.randn(6, 3, 8, 8, dtype=torch.float64)
    assert torch.equal(net(images, [2, 4]), net(images))


def test_a_step_asks_for_little(root, record_property):
    """803 operations on the device with a pass for each, views for each, and the optimiser tensor by tensor."""
    count = of_a_step(root, method="pcr")
    record_property("operations", sum(count.values()))
    print(f"{sum(count.values())} operations per step of PCR: {count.most_common(12)}")
    assert count["convolution"] == count["convolution_backward"] == 20  # each layer once
    assert sum(count.values()) <= 420
