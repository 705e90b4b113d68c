"""GMED's edit against gradients in double precision around a step that is taken for real."""

from __future__ import annotations

import pytest
import torch

from pcr_ray.study.resolve import resolve
from tests.methods_support import cross_entropies, exact, twin, warmed


def input_gradient(net, images, labels, classes):
    """Of the mean loss, in training mode."""
    images = images.double().requires_grad_()
    loss = sum(cross_entropies(exact(net)(images, logits=True), labels, classes)) / len(labels)
    return torch.autograd.grad(loss, images)[0]


@pytest.mark.parametrize("sign", ["minus", "plus"])
def test_edit_follows_the_formula(root, sign):
    params = {"alpha": 3.0, "beta": 0.5, "decay": 0.8, "regulariser": sign}
    learner, _ = warmed(root, "gmed", params=params)
    method, memory = learner.method, learner.method.memory
    method.net.double()
    memory.extras["edited"] = memory.extras["edited"].double()
    rng = torch.Generator().manual_seed(0)
    ahead = {n: p.detach() + 0.02 * torch.randn(p.shape, generator=rng) for n, p in method.net.named_parameters()}
    drawn = memory.sample(10)
    before, ages = drawn.extras["edited"], drawn.extras["age"].tolist()
    assert len(set(ages)) > 1
    edited = method.edit(drawn, ahead)
    g1 = input_gradient(method.net, before, drawn.labels, 4)
    method.net.load_state_dict(ahead, strict=False)
    g2 = input_gradient(method.net, before, drawn.labels, 4)
    clamped = 0
    for i, age in enumerate(ages):
        regulariser = 0.5 * g1[i] if sign == "plus" else -0.5 * g1[i]
        expected = before[i] + 0.8**age * 3.0 * (g2[i] - g1[i] + regulariser)
        clamped += int(((expected < 0) | (expected > 1)).sum())
        torch.testing.assert_close(edited[i], expected.clamp(0, 1), rtol=0, atol=1e-6)  # decay is in single precision
        assert (expected - before[i]).abs().max() > 1e-3
    assert clamped > 0


def test_recall_looks_ahead_by_the_streams_own_step(root):
    learner, batch = warmed(root, "gmed", views="original", params={"alpha": 3.0, "beta": 0.0})
    other = twin(learner, root)
    for method in (learner.method, other):  # in double precision: where a ReLU is close to zero, rounding decides
        method.double()
        method.pixels = lambda images, single=method.pixels: single(images).double()
        method.memory.extras["edited"] = method.memory.extras["edited"].double()
    drawn = other.memory.sample(10)  # the same generator: the same images
    before = drawn.extras["edited"]
    g1 = input_gradient(other.net, before, drawn.labels, 4)
    other.learn(batch, None)  # theta': the stream's step, taken for real
    g2 = input_gradient(other.net, before, drawn.labels, 4)
    recalled = learner.method.recall(batch)
    assert torch.equal(recalled.slots, drawn.slots)
    expected = (before + 3.0 * (g2 - g1)).clamp(0, 1) - before
    error = (recalled.extras["edited"] - before - expected).flatten(1).norm(dim=1)
    assert (error < 1e-6 * expected.flatten(1).norm(dim=1)).all()


def test_edited_images_are_written_back_and_grow_older(root):
    learner, batch = warmed(root, "gmed", params={"alpha": 1.0})
    memory = learner.method.memory
    before = {name: values.clone() for name, values in memory.extras.items()}
    stored = memory.images.clone()
    recalled = learner.method.recall(batch)
    others = [s for s in range(memory.size) if s not in recalled.slots.tolist()]
    assert torch.equal(memory.extras["edited"][recalled.slots], recalled.extras["edited"])
    assert not torch.equal(before["edited"][recalled.slots], recalled.extras["edited"])
    assert torch.equal(memory.extras["age"][recalled.slots], before["age"][recalled.slots] + 1)
    for name in ("edited", "age"):
        assert torch.equal(memory.extras[name][others], before[name][others])
    assert torch.equal(memory.images, stored)


def test_replay_shows_the_edited_images_and_the_stream_its_own(root):
    learner, batch = warmed(root, "gmed", views="original", params={"alpha": 1.0})
    method = learner.method
    recalled = method.recall(batch)
    assert torch.equal(method.views(recalled)[0].images, recalled.extras["edited"])
    assert torch.equal(method.views(batch)[0].images, method.pixels(batch.images))


def test_edits_smaller_than_a_level_of_the_stored_bytes_add_up(root):
    learner, batch = warmed(root, "gmed", buffer=10, params={"alpha": 0.05})
    method = learner.method
    moved = []
    for _ in range(3):
        recalled = method.recall(batch)
        moved.append((recalled.extras["edited"] - method.pixels(recalled.images)).norm())
    step = (recalled.extras["edited"] - method.pixels(recalled.images)).abs()
    assert 0 < step.median() < 0.5 / 255
    assert moved[0] < moved[1] < moved[2]


def test_an_image_that_takes_a_slot_starts_unedited(root):
    learner, _ = warmed(root, "gmed", (5,), buffer=12, params={"alpha": 1.0})
    method, memory = learner.method, learner.method.memory
    before = memory.images.clone()
    for batch in learner.stream.batches(1):
        method.remember(batch)
    taken = (memory.images != before).flatten(1).any(1)
    assert taken.any() and not taken.all()
    assert torch.equal(memory.extras["edited"][taken], method.pixels(memory.images[taken]))
    assert (memory.extras["age"][taken] == 0).all() and (memory.extras["age"][~taken] > 0).any()


def test_stride_and_regulariser_depend_on_the_dataset_unless_given():
    mini = resolve({"dataset": "mini_imagenet", "method": "gmed", "params": {"beta": 0.2}}).params
    assert (mini["alpha"], mini["beta"]) == (0.25, 0.2)
    cifar10 = resolve({"dataset": "cifar10", "method": "gmed"}).params
    assert (cifar10["alpha"], cifar10["beta"]) == (0.05, 0.001)
