"""ASER: KNN Shapley values against their definition, and retrieval and update against loops."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pcr_ray.methods.aser import knn_shapley, per_class
from pcr_ray.stream import Batch
from pcr_ray.study.resolve import resolve
from tests.methods_support import fresh, twin, warmed


def utility(members, distances, labels, label, k):
    """The KNN classifier's probability of the right label, from these members."""
    nearest = sorted(members, key=lambda i: distances[i])[:k]
    return sum(labels[i] == label for i in nearest) / k


def shapley(distances, labels, label, k):
    """By definition: each candidate's marginal contribution, weighted over all subsets of the others."""
    n = len(labels)
    values = []
    for i in range(n):
        others, total = [j for j in range(n) if j != i], 0.0
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            for subset in combinations(others, size):
                gain = utility((*subset, i), distances, labels, label, k) - utility(subset, distances, labels, label, k)
                total += weight * gain
        values.append(total)
    return values


def recursion(features, label, near, classes, k):
    """The formula, one candidate after the other from the farthest; values in the order of the candidates."""
    n = len(near)
    distance = [float(((features - x) ** 2).sum()) for x in near]
    order = sorted(range(n), key=lambda i: distance[i])
    hit = [float(classes[i] == label) for i in order]
    s = [0.0] * n
    s[n - 1] = hit[n - 1] / n
    for m in range(n - 1, 0, -1):
        s[m - 1] = s[m] + (hit[m - 1] - hit[m]) * min(k, m) / (k * m)
    return {candidate: s[place] for place, candidate in enumerate(order)}


def summed(features, labels, near, classes, k):
    totals = [0.0] * len(near)
    for f, label in zip(features, labels):
        for candidate, value in recursion(f, label, near, classes, k).items():
            totals[candidate] += value
    return totals


@pytest.mark.parametrize(("n", "k"), [(7, 3), (7, 1), (6, 6), (3, 5), (1, 3), (1, 1)])
def test_knn_shapley_equals_the_definition_over_all_subsets(n, k):
    rng = torch.Generator().manual_seed(n * 10 + k)
    features, near = torch.randn(4, 3, generator=rng).double(), torch.randn(n, 3, generator=rng).double()
    labels, classes = torch.randint(0, 3, (4,), generator=rng), torch.randint(0, 3, (n,), generator=rng)
    got = knn_shapley(features, labels, near, classes, k)
    for row, feature, label in zip(got, features, labels):
        distances = [float(((feature - x) ** 2).sum()) for x in near]
        assert row.tolist() == pytest.approx(shapley(distances, classes.tolist(), int(label), k), abs=1e-12)


def test_retrieval_score_is_value_for_the_memory_less_value_for_the_stream(root):
    learner, batch = warmed(root, "aser", (5, 2), buffer=25)
    method = learner.method
    candidates, further = method.memory.at(np.arange(12)), method.memory.at(np.arange(12, 25))
    near, memory, stream = (method.embed(b.images).double() for b in (candidates, further, batch))
    for_memory = summed(memory, further.labels, near, candidates.labels, 3)
    for_stream = summed(stream, batch.labels, near, candidates.labels, 3)
    expected = [m / 13 - s / 10 for m, s in zip(for_memory, for_stream)]
    assert method.scores(candidates, further, batch).tolist() == pytest.approx(expected, abs=1e-5)
    nothing = method.memory.at(np.arange(0))
    alone = method.scores(candidates, nothing, batch).tolist()
    assert alone == pytest.approx([-s / 10 for s in for_stream], abs=1e-5)


def test_retrieval_takes_the_best_of_n_candidates_a_class_once_the_memory_overflowed(root):
    learner, batch = warmed(root, "aser", (6, 2), buffer=25, replay_batch_size=4, params={"candidates": 3})
    method, other = learner.method, twin(learner, root)
    labels, rng = other.memory.host_labels, other.memory.draw_rng
    chosen = per_class(np.arange(25), labels, 3, rng)  # the same generator: the same candidates
    further = per_class(np.array([s for s in range(25) if s not in chosen]), labels, 3, rng)
    scores = other.scores(other.memory.at(chosen), other.memory.at(further), batch).tolist()
    ranked = sorted(range(len(chosen)), key=lambda i: -scores[i])
    assert scores[ranked[3]] - scores[ranked[4]] > 1e-6  # the cut is clear of ties
    assert sorted(method.recall(batch).slots.tolist()) == sorted(chosen[ranked[:4]].tolist())


def test_retrieval_is_uniform_until_more_images_came_than_fit(root):
    learner, batch = warmed(root, "aser", (3,), buffer=30)
    expected = twin(learner, root).memory.sample(10).slots
    assert learner.method.memory.seen == 30
    assert torch.equal(learner.method.recall(batch).slots, expected)


def test_retrieval_leaves_out_the_current_task_when_told_to(root):
    learner, batch = warmed(
        root, "aser", (4, 4), buffer=20, replay_current=False, replay_batch_size=3, params={"candidates": 2}
    )
    method = learner.method
    assert (method.memory.labels >= method.task.old).any()
    assert (method.recall(batch).labels < method.task.old).all()
    method.memory.host_labels[:] = method.task.old
    assert method.recall(batch) is None


def test_full_memory_keeps_the_candidates_with_the_largest_values(root):
    learner, batch = warmed(root, "aser", (4, 1), buffer=30, params={"candidates": 2})
    method, other = learner.method, twin(learner, root)
    memory, rng = other.memory, other.memory.keep_rng
    evaluation = memory.at(per_class(np.arange(30), memory.host_labels, 2, rng))
    others = np.array([s for s in range(30) if s not in evaluation.slots])
    slots = others[torch.randperm(len(others), generator=rng)[:20].numpy()]
    rare = other.rare(batch)
    features = other.embed(torch.cat([evaluation.images, rare.images])).double()
    near = other.embed(torch.cat([memory.images[slots], batch.images])).double()
    classes = torch.cat([memory.labels[slots], batch.labels])
    values = summed(features, torch.cat([evaluation.labels, rare.labels]), near, classes, 3)
    ranked = sorted(range(len(values)), key=lambda i: -values[i])
    kept = ranked[: len(slots)]
    assert values[kept[-1]] - values[ranked[len(slots)]] > 1e-5  # the cut is clear of ties
    pool = [*memory.images[slots].unbind(), *batch.images.unbind()]
    untouched = [memory.images[s] for s in range(30) if s not in slots]
    expected = sorted(image.numpy().tobytes() for image in [*(pool[i] for i in kept), *untouched])
    assert 0 < sum(i >= len(slots) for i in kept) < len(kept)  # some enter, some stay
    method.remember(batch)
    assert sorted(image.numpy().tobytes() for image in method.memory.images) == expected
    assert method.memory.host_labels.tolist() == method.memory.labels.tolist()
    assert method.memory.seen == 60


def test_memory_fills_in_order_and_the_rest_of_the_batch_competes(root):
    learner = fresh(root, "aser", buffer=14, params={"candidates": 1})
    method = learner.method
    method.begin_task(learner.stream.tasks[0])
    first, second = list(learner.stream.batches(0))[:2]
    method.remember(first)
    assert torch.equal(method.memory.images[:10], first.images)
    method.remember(second)
    offered = {image.numpy().tobytes() for b in (first, second) for image in b.images}
    held = [image.numpy().tobytes() for image in method.memory.images]
    assert len(set(held)) == 14 and set(held) <= offered and method.memory.seen == 20


def test_memory_that_is_all_evaluation_stays_as_it_is(root):
    learner, batch = warmed(root, "aser", (2,), buffer=8, params={"candidates": 8})
    before = learner.method.memory.images.clone()
    learner.method.remember(batch)
    assert torch.equal(learner.method.memory.images, before)


def test_class_is_rare_with_the_chance_that_it_lacks_of_its_share(root):
    learner = fresh(root, "aser", buffer=40)
    method, n = learner.method, 3000
    method.memory.host_labels[:] = [0] * 38 + [1] * 2  # of a share of 4 each, class 1 has half and class 2 none
    labels = np.array([0, 1, 2])
    stream = Batch(torch.zeros(3, 1, 1, 3, dtype=torch.uint8), torch.from_numpy(labels), labels)
    found = np.zeros(3)
    for _ in range(n):
        found[method.rare(stream).host_labels] += 1
    assert found[0] == 0 and found[2] == n
    assert abs(found[1] / n - 0.5) < 5 * math.sqrt(0.25 / n)


def test_balanced_draw_takes_up_to_n_of_every_class_evenly():
    labels, rng, n = np.array([2, 0, 0, 1, 0, 2, 2, 2]), torch.Generator().manual_seed(0), 2000
    times = np.zeros(8)
    for _ in range(n):
        drawn = per_class(np.arange(1, 8), labels, 2, rng)  # slot 0 is not offered
        assert np.bincount(labels[drawn]).tolist() == [2, 1, 2] and len(set(drawn)) == 5
        times[drawn] += 1
    assert times[0] == 0 and times[3] == n
    for slot in (1, 2, 4, 5, 6, 7):
        assert abs(times[slot] / n - 2 / 3) < 5 * math.sqrt(2 / 9 / n)


def test_loss_is_one_mean_over_memory_and_stream_in_one_forward(root):
    learner, batch = warmed(root, "aser", (2,))
    method, other = learner.method, twin(learner, root)
    memory = method.memory.at(np.arange(6))
    views = other.views(memory, batch)
    logits = other.net(torch.cat([v.images for v in views]), logits=True)[:, :2]
    labels = torch.cat([v.labels for v in views])
    expected = sum(F.cross_entropy(row[None], label[None]) for row, label in zip(logits, labels)) / 32
    torch.testing.assert_close(method.loss(batch, memory), expected)


def test_candidates_a_class_depend_on_the_dataset():
    names = ("cifar10", "cifar100", "mini_imagenet")
    assert [resolve({"dataset": d, "method": "aser"}).params["candidates"] for d in names] == [9, 2, 3]
