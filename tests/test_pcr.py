"""The paper's formulas, written out in loops, against the batched code; and evaluation image by image."""

import math

import numpy as np
import pytest
import torch

from pcr_ray.learner import Learner
from pcr_ray.memory import Recalled
from pcr_ray.methods._base import mean_per_class, nearest_mean
from pcr_ray.methods.pcr import pcr_loss
from pcr_ray.models import CosineHead
from pcr_ray.stream import Batch
from pcr_ray.study.resolve import resolve

GAMMA = 1 / 0.09


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(5)


@pytest.fixture
def learner(root):
    def build(**raw):
        return Learner(resolve({"buffer": 12, "fraction": 0.05, **raw}), root=root, device="cpu")

    return build


def cosine(a, b):
    return (a * b).sum() / ((a * a).sum() * (b * b).sum()).sqrt()


def literal_pcr(z, w, labels):
    """Equation 9: every anchor against the proxy of every entry of the batch, repeated classes repeated."""
    total = 0
    for anchor, y in zip(z, labels):
        numerator = torch.exp(GAMMA * cosine(anchor, w[y]))
        denominator = sum(torch.exp(GAMMA * cosine(anchor, w[j])) for j in labels)
        total = total - torch.log(numerator / denominator)
    return total / len(labels)


def literal_cross_entropy(z, w, labels, seen):
    """Equations 2 and 4: every image against the proxies of all classes seen so far."""
    total = 0
    for anchor, y in zip(z, labels):
        scores = [GAMMA * cosine(anchor, proxy) for proxy in w[:seen]]
        total = total - torch.log(torch.exp(scores[y]) / sum(torch.exp(s) for s in scores))
    return total / len(labels)


# The proxies


def test_the_cosine_head_is_gamma_times_the_cosine(rng):
    head = CosineHead(6, 4, GAMMA).double()
    z = torch.randn(5, 6, generator=rng, dtype=torch.float64)
    scores = head(z)
    assert scores.shape == (5, 4)
    for anchor, row in zip(z, scores):
        for w, score in zip(head.weight, row):
            torch.testing.assert_close(score, GAMMA * cosine(anchor, w))


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 1, 3, 3, 3, 0, 5], [2, 2, 2, 2], [4], [0, 1, 2, 3, 4, 5]],
    ids=["repeated and absent classes", "one class", "one anchor", "every class once"],
)
def test_pcr_is_the_papers_equation_in_value_and_gradient(labels, rng):
    head = CosineHead(7, 6, GAMMA).double()
    z = torch.randn(len(labels), 7, generator=rng, dtype=torch.float64, requires_grad=True)
    ours, literal = pcr_loss(head(z), torch.tensor(labels)), literal_pcr(z, head.weight, labels)
    torch.testing.assert_close(ours, literal, rtol=1e-12, atol=1e-12)
    for ours_grad, literal_grad in zip(
        torch.autograd.grad(ours, [z, head.weight]), torch.autograd.grad(literal, [z, head.weight])
    ):
        torch.testing.assert_close(ours_grad, literal_grad, rtol=1e-10, atol=1e-12)


def test_proxies_of_classes_absent_from_the_batch_get_no_gradient(rng):
    head = CosineHead(7, 6, GAMMA)
    pcr_loss(head(torch.randn(4, 7, generator=rng)), torch.tensor([0, 1, 1, 3])).backward()
    touched = head.weight.grad.abs().sum(1) > 0
    assert touched.tolist() == [True, True, False, True, False, False]


# Whole losses, from stored images to the number


def second_task(learner):
    """The second task's first batch, and what six slots hold after the first task."""
    learner.run_task()
    learner.method.begin_task(learner.stream.tasks[1])
    learner.method.train()
    batch = next(learner.stream.batches(1))
    return [batch, learner.method.memory.at(np.arange(6))] if learner.method.uses_memory else [batch]


def manual_features(method, batches):
    """Per batch, from stored bytes to float64 features, through BatchNorm jointly or batch by batch."""
    images = [b.images.permute(0, 3, 1, 2) / 255 for b in batches]
    if method.config.batchnorm == "separate":
        return [method.net.backbone(x).double() for x in images]
    return list(method.net.backbone(torch.cat(images)).double().split([len(x) for x in images]))


@pytest.mark.parametrize(
    "name, batchnorm",
    [("finetune", "joint"), ("er", "joint"), ("er", "separate"), ("pcr", "joint"), ("pcr", "separate")],
)
def test_the_loss_of_a_step_is_the_papers_equation(name, batchnorm, learner):
    trial = learner(method=name, augment="none", batchnorm=batchnorm)
    batches = second_task(trial)
    method = trial.method
    z, labels = manual_features(method, batches), [b.labels.tolist() for b in batches]
    w = method.net.head.weight.double()
    assert method.task.seen == 4
    if name == "pcr":
        expected = literal_pcr(torch.cat(z), w, [y for part in labels for y in part])
    else:
        expected = sum(literal_cross_entropy(f, w, y, seen=4) for f, y in zip(z, labels))
    loss = method.loss(batches[0], batches[1] if method.uses_memory else None)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


def test_joint_and_separate_batchnorm_give_different_features(learner):
    trial = learner(method="pcr", augment="none", batchnorm="joint")
    batches = second_task(trial)
    views = trial.method.views(*batches)
    features = {}
    for batchnorm in ("joint", "separate"):
        trial.method.config = trial.config.model_copy(update={"batchnorm": batchnorm})
        features[batchnorm] = trial.method.features(*views)
        for ours, manual in zip(features[batchnorm], manual_features(trial.method, batches)):
            torch.testing.assert_close(ours.double(), manual, rtol=1e-3, atol=1e-4)
    assert (features["joint"][0] - features["separate"][0]).abs().max() > 1e-2


def test_views_are_originals_then_augmented_copies_with_their_labels(learner):
    method = learner().method
    images = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)
    batch = Batch(images, torch.tensor([4, 0, 2]), np.array([4, 0, 2]))
    (views,) = method.views(batch)
    assert views.labels.tolist() == [4, 0, 2, 4, 0, 2]
    torch.testing.assert_close(views.images[:3], images.permute(0, 3, 1, 2) / 255)
    assert not torch.allclose(views.images[3:], views.images[:3])
    method.config = method.config.model_copy(update={"views": "augmented"})
    assert method.views(batch)[0].images.shape == (3, 3, 16, 16)
    method.config = method.config.model_copy(update={"views": "original"})
    torch.testing.assert_close(method.views(batch)[0].images, images.permute(0, 3, 1, 2) / 255)


def test_stream_and_memory_are_augmented_from_their_own_generators(learner):
    method = learner().method
    batch = Batch(torch.zeros((2, 16, 16, 3), dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), np.zeros(2, int))
    stream, memory = method.stream_rng.get_state(), method.memory_rng.get_state()
    method.views(batch)
    assert not torch.equal(stream, method.stream_rng.get_state())
    assert torch.equal(memory, method.memory_rng.get_state())
    stream = method.stream_rng.get_state()
    method.memory.reservoir(batch)
    recalled = method.memory.sample(2)
    assert isinstance(recalled, Recalled)
    method.views(recalled)
    assert torch.equal(stream, method.stream_rng.get_state())
    assert not torch.equal(memory, method.memory_rng.get_state())


# Pixels


def test_pixels_are_scaled_to_one_and_normalised_by_the_training_sets_moments(learner):
    trial = learner(normalise=True)
    stored = trial.stream.images[:5]
    train = trial.stream.data.images[: sum(trial.stream.data.train_counts)].astype(np.float64) / 255
    for image, seen in zip(stored, trial.method.normalised(trial.method.pixels(stored))):
        for channel in range(3):
            values = train[..., channel]
            expected = (image[..., channel].double() / 255 - values.mean()) / values.std()
            torch.testing.assert_close(seen[channel].double(), expected, rtol=1e-4, atol=1e-5)
    plain = learner(normalise=False).method
    assert torch.equal(plain.normalised(plain.pixels(stored)), plain.pixels(stored))
    extremes = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 4, 4, 2)[..., [0, 1, 1]]
    assert plain.pixels(extremes).unique().tolist() == [0.0, 1.0]


# Nearest class mean


def literal_nearest_mean(features, exemplars, labels, classes):
    """Image by image; a class without exemplars has no mean."""
    means = {}
    for c in range(classes):
        own = [e / e.norm() for e, y in zip(exemplars, labels) if y == c]
        if own:
            means[c] = sum(own) / len(own)
    return [max(means, key=lambda c, f=f: float(cosine(f, means[c]))) for f in features]


def test_the_nearest_mean_is_found_and_never_a_class_without_exemplars(rng):
    # All features point away from all means: the zero row of an absent class would be the nearest.
    exemplars = torch.randn(30, 5, generator=rng, dtype=torch.float64).abs()
    features = -torch.randn(40, 5, generator=rng, dtype=torch.float64).abs()
    labels = torch.randint(0, 5, (30,), generator=rng)
    labels = labels + (labels >= 2).long()  # class 2 has none
    means = mean_per_class(exemplars, labels, 6)
    found = nearest_mean(features, means).tolist()
    assert found == literal_nearest_mean(features, exemplars, labels.tolist(), 6)
    assert means[2].tolist() == [0] * 5
    assert set(found) <= {0, 1, 3, 4, 5}
    assert len(set(found)) > 2


# Gradients of the proxies


def test_proxy_gradients_add_up_the_norms_of_each_step(learner):
    trial = learner(method="er", proxy_gradients=True, augment="none", fraction=0.07, lr=0.01)
    trial.run_task()
    twin = learner(method="er", proxy_gradients=True, augment="none", fraction=0.07, lr=0.01)
    method, expected = twin.method, torch.zeros(10)
    method.begin_task(twin.stream.tasks[0])
    method.train()
    steps = 0
    for batch in twin.stream.batches(0):
        loss = method.loss(batch, method.recall(batch))
        gradients = torch.autograd.grad(loss, list(method.net.parameters()))
        with torch.no_grad():
            for p, g in zip(method.net.parameters(), gradients):
                if p is method.net.head.weight:
                    expected += torch.tensor([math.sqrt(sum(float(x) ** 2 for x in row)) for row in g])
                p -= 0.01 * g
        method.remember(batch)
        steps += 1
    assert steps == 2
    torch.testing.assert_close(torch.tensor(trial.proxy_gradients[0]), expected, rtol=1e-4, atol=1e-5)
    assert expected[:2].min() > 0
    assert expected[2:].tolist() == [0] * 8  # not seen yet


# Evaluation


def test_evaluation_is_what_one_image_at_a_time_gives(learner):
    trial = learner(method="pcr", fraction=0.1, buffer=20)
    for _ in range(2):
        trial.run_task()
    net, memory = trial.method.net.eval(), trial.method.memory
    proxies = net.head.weight.detach()
    data, order = trial.stream.data, trial.stream.class_order

    @torch.no_grad()
    def look(image):
        return net.backbone(torch.tensor(image).permute(2, 0, 1)[None].float() / 255)[0]

    exemplars = [look(image) for image in memory.images[: memory.filled].numpy()]
    for task in range(2):
        truth = [y for y in (2 * task, 2 * task + 1) for _ in data.rows("test", order[y])]
        z = [look(data.images[row]) for y in sorted(set(truth)) for row in data.rows("test", order[y])]
        softmax = [max(range(4), key=lambda c, f=f: float(cosine(f, proxies[c]))) for f in z]
        ncm = literal_nearest_mean(z, exemplars, memory.labels.tolist(), 4)
        for name, found in (("softmax", softmax), ("ncm", ncm)):
            right = sum(a == b for a, b in zip(found, truth))
            assert trial.matrices[name][1][task] == 100 * right / len(truth)
