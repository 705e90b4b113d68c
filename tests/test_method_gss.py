"""GSS's gradients, scores and replacement against one backward pass an image in double precision."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from pcr_ray.methods.gss import draw_slots, replaces
from pcr_ray.stream import Batch
from tests.methods_support import cross_entropies, exact, fresh, scaled, warmed

CLOSE = 1e-3  # of a gradient's length: a ReLU near 0 may be on in float32 and off in float64


def gradient(method, images, labels):
    """Of the mean loss over all parameters, as a list of numbers; running statistics in BatchNorm."""
    net = exact(method.net).eval()
    losses = cross_entropies(net(scaled(images), logits=True), labels, method.task.seen)
    parts = torch.autograd.grad(sum(losses) / len(losses), list(net.parameters()))
    return torch.cat([p.flatten() for p in parts])


def cosine(a, b):
    return float((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))


def scores(method, batch, reference):
    each = [gradient(method, batch.images[i : i + 1], batch.labels[i : i + 1]) for i in range(len(batch))]
    return [max(cosine(g, r) for r in reference) for g in each]


def full(root, **config):
    """A memory of ten images, all in the one batch that is compared with."""
    learner, _ = warmed(root, "gss", (3,), buffer=10, **config)
    memory = learner.method.memory
    return learner.method, memory, [gradient(learner.method, memory.images, memory.labels)]


def snapshot(memory):
    return memory.images.clone(), memory.labels.clone(), memory.extras["score"].clone()


def twin_of(generator):
    """A generator that draws what this one will."""
    return torch.Generator().set_state(generator.get_state())


def opposed(memory):
    """The images in memory with the other of two labels: with two classes, their gradients point the other way."""
    labels = 1 - memory.labels
    return Batch(memory.images.clone(), labels, labels.numpy())


def test_gradients_are_those_of_the_mean_loss_and_of_each_image(root):
    learner, batch = warmed(root, "gss", (2,))
    method = learner.method
    rows = [method.gradient(batch.images, batch.labels), *method.each_gradient(batch)]
    parts = [slice(None), *(slice(i, i + 1) for i in range(len(batch)))]
    for row, part in zip(rows, parts, strict=True):
        expected = gradient(method, batch.images[part], batch.labels[part])
        assert (row - expected).norm() < CLOSE * expected.norm()
    assert method.training


def test_first_batch_enters_with_score_one_tenth_and_the_next_with_its_largest_cosine(root):
    learner = fresh(root, "gss", buffer=14, params={"compare": 5})
    method, memory = learner.method, learner.method.memory
    method.begin_task(learner.stream.tasks[0])
    first, second = list(learner.stream.batches(0))[:2]
    method.remember(first)
    torch.testing.assert_close(memory.extras["score"][:10], torch.full((10,), 0.1))
    groups = torch.randperm(10, generator=twin_of(memory.keep_rng)).view(2, 5)
    expected = scores(method, second, [gradient(method, first.images[g], first.labels[g]) for g in groups])
    method.remember(second)
    assert memory.extras["score"][10:].tolist() == pytest.approx(expected[:4], abs=1e-4)
    assert torch.equal(memory.images, torch.cat([first.images, second.images[:4]]))
    assert memory.host_labels.tolist() == memory.labels.tolist() == first.labels.tolist() + second.labels[:4].tolist()
    assert memory.seen == 20


def test_compared_gradients_come_from_disjoint_batches_of_the_memory(root):
    learner, _ = warmed(root, "gss", (3,), buffer=17, params={"strength": 10, "compare": 5})
    method, memory = learner.method, learner.method.memory
    state = memory.keep_rng.get_state()
    got = method.memory_gradients()
    memory.keep_rng.set_state(state)
    slots = torch.randperm(17, generator=memory.keep_rng)[:15].view(3, 5)
    assert len(got) == 3
    for row, group in zip(got, slots):
        expected = gradient(method, memory.images[group], memory.labels[group])
        assert (row - expected).norm() < CLOSE * expected.norm()


def test_full_memory_ignores_a_batch_whose_gradient_agrees_with_it(root):
    method, memory, _ = full(root)
    before = snapshot(memory)
    method.remember(Batch(memory.images.clone(), memory.labels.clone(), memory.host_labels.copy()))
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(memory)))
    assert memory.seen == 40


def test_full_memory_takes_opposed_images_with_their_scores(root):
    method, memory, reference = full(root)
    batch = opposed(memory)
    assert cosine(gradient(method, batch.images, batch.labels), reference[0]) < 0
    expected = scores(method, batch, reference)
    memory.extras["score"] = torch.linspace(-0.8, 0.9, 10)
    images, labels, old = snapshot(memory)
    rng = twin_of(memory.keep_rng)
    torch.randperm(10, generator=rng)  # the memory's batches
    slots, uniform = draw_slots(old, 10, rng).tolist(), torch.rand(10, generator=rng).tolist()
    method.remember(batch)
    entered = 0
    for row, slot in enumerate(slots):
        s, c = float(old[slot]), expected[row]
        if uniform[row] < (s + 1) / ((s + 1) + (c + 1)):
            images[slot], labels[slot], old[slot] = batch.images[row], batch.labels[row], c
            entered += 1
    assert 0 < entered < 10
    assert torch.equal(memory.images, images) and torch.equal(memory.labels, labels)
    torch.testing.assert_close(memory.extras["score"], old, rtol=0, atol=1e-4)
    assert memory.host_labels.tolist() == memory.labels.tolist()


def test_batch_larger_than_the_memory_offers_as_many_images_as_there_are_slots(root):
    learner, _ = warmed(root, "gss", (2,), buffer=4)
    memory = learner.method.memory
    repeated = torch.arange(4).repeat(3)
    labels = 1 - memory.labels[repeated]
    learner.method.remember(Batch(memory.images[repeated], labels, labels.numpy()))
    assert memory.filled == 4 and memory.host_labels.tolist() == memory.labels.tolist()


@pytest.mark.parametrize(("s", "c"), [(0.5, -0.5), (-0.9, 0.9), (0.0, 0.0), (-1.0, 0.3)])
def test_replacement_happens_with_its_probability(s, c):
    n = 20_000
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(1))
    share = replaces(torch.full((n,), s), torch.full((n,), c), uniform).double().mean()
    p = (s + 1) / ((s + 1) + (c + 1))
    assert abs(float(share) - p) <= 5 * math.sqrt(p * (1 - p) / n)


def test_slots_are_drawn_in_proportion_to_scaled_scores():
    rng, n = torch.Generator().manual_seed(2), 6000
    stored = torch.tensor([-0.5, 0.0, 0.25, 0.5])  # scaled to 0, 1/2, 3/4, 1
    drawn = Counter(int(draw_slots(stored, 1, rng)) for _ in range(n))
    assert drawn[0] == 0
    for slot, weight in ((1, 0.5), (2, 0.75), (3, 1.0)):
        p = weight / 2.25
        assert abs(drawn[slot] / n - p) < 5 * math.sqrt(p * (1 - p) / n)
    assert sorted(draw_slots(stored, 4, rng).tolist()) == [0, 1, 2, 3]


def test_equal_scores_are_drawn_evenly():
    rng, n = torch.Generator().manual_seed(3), 4000
    drawn = Counter(s for _ in range(n) for s in draw_slots(torch.full((5,), 0.1), 2, rng).tolist())
    for slot in range(5):
        assert abs(drawn[slot] / n - 0.4) < 5 * math.sqrt(0.4 * 0.6 / n)
