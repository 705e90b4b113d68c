"""ER-DVC's loss and retrieval score against loops in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pcr_ray.methods.er_dvc import negative_entropy
from pcr_ray.study.resolve import resolve
from tests.methods_support import cross_entropies, exact, scaled, twin, warmed


def softmax(row, classes):
    exponentials = [math.exp(row[c]) for c in range(classes)]
    return [e / sum(exponentials) for e in exponentials]


def literal_terms(z, augmented, joint, classes, everything, dl):
    """The entropy term and the distance term of lists of logits, from the formula."""
    kinds = [[softmax(row, classes) for row in rows] for rows in (z, augmented, joint)]
    n, entropy, distance = len(z), 0.0, 0.0
    for rows in kinds:
        for c in range(classes):
            mean = sum(row[c] for row in rows) / n
            entropy += mean * math.log(mean) / 3
    for rows in kinds[:2]:
        for single, both in zip(rows, kinds[2]):
            distance += sum(abs(both[c] - single[c]) for c in range(classes))
    return entropy, dl * distance / (2 * n * everything)


@pytest.mark.parametrize(("softmax", "classes"), [("seen", 4), ("all", 10)])
def test_consistency_terms_are_the_entropy_and_the_distance_of_the_formula(root, softmax, classes):
    learner, _ = warmed(root, "er_dvc", softmax=softmax, params={"dl": 3.5})
    method = learner.method
    method.joint.double()
    rng = torch.Generator().manual_seed(0)
    z, augmented = 2 * torch.randn(2, 7, 10, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        terms = method.consistency(z, augmented)
        joint = method.joint(torch.cat([z, augmented], 1)).tolist()
    expected = literal_terms(z.tolist(), augmented.tolist(), joint, classes, 10, 3.5)
    assert [float(t) for t in terms] == pytest.approx(expected, rel=1e-12)


def test_joint_network_sees_both_views_through_128_hidden_units(root):
    learner, _ = warmed(root, "er_dvc", (1,))
    first, _, second = learner.method.joint
    assert first.weight.shape == (128, 20) and second.weight.shape == (10, 128)
    optimised = {id(p) for group in learner.method.optimiser.param_groups for p in group["params"]}
    assert {id(p) for p in learner.method.joint.parameters()} <= optimised


@pytest.mark.parametrize("views", ["both", "original"])
def test_loss_adds_three_terms_for_the_stream_and_three_for_the_memory(root, views):
    learner, batch = warmed(root, "er_dvc", views=views)
    method, other = learner.method, twin(learner, root)
    memory = method.memory.at(np.arange(8))
    expected = 0.0
    joint_net = exact(other.joint)
    for part in (batch, memory):
        (view,) = other.views(part)  # the same generators: the same views
        logits = exact(other.net)(view.images.double(), logits=True).detach()
        expected += float(sum(cross_entropies(logits, view.labels, 4))) / len(logits)
        z, augmented = logits[: len(part)], logits[-len(part) :]
        joint = joint_net(torch.cat([z, augmented], 1)).tolist()
        expected += sum(literal_terms(z.tolist(), augmented.tolist(), joint, 4, 10, method.params.dl))
    assert len(view.labels) == (16 if views == "both" else 8)
    assert float(method.loss(batch, memory).detach()) == pytest.approx(expected, rel=1e-4)


def test_score_is_the_rise_of_the_gradient_at_the_head_in_l1_norm(root):
    learner, batch = warmed(root, "er_dvc")
    method, other = learner.method, twin(learner, root)
    candidates = method.memory.at(np.arange(20))

    def gradient_norms(net):
        """From the gradient itself, one image after the other."""
        net = exact(net)
        features, norms = net(scaled(candidates.images)).detach(), []
        for feature, label in zip(features, candidates.labels):
            (loss,) = cross_entropies(net.head(feature[None]), label[None], 4)
            (gradient,) = torch.autograd.grad(loss, net.head.weight)
            norms.append(gradient.abs().sum())
        return torch.stack(norms)

    before = gradient_norms(other.net)
    other.learn(batch, None)
    after = gradient_norms(other.net)
    error = method.scores(batch, candidates).double() - (after - before)
    # In float32 a difference is as exact as its terms.
    assert (error.abs() <= 1e-5 * (before + after)).all()


def test_recall_takes_the_candidates_with_the_highest_scores(root):
    learner, batch = warmed(root, "er_dvc", params={"candidates": 20}, replay_batch_size=4)
    other = twin(learner, root)
    candidates = other.memory.sample(20)
    scores = other.scores(batch, candidates).tolist()
    ranked = sorted(range(20), key=lambda i: -scores[i])
    assert scores[ranked[3]] - scores[ranked[4]] > 1e-4  # the cut is clear of rounding
    assert sorted(learner.method.recall(batch).slots.tolist()) == sorted(candidates.slots[ranked[:4]].tolist())


def test_entropy_of_a_class_without_probability_is_zero_with_finite_gradient():
    logits = torch.tensor([[0.0, -2000.0], [0.0, -2000.0]], requires_grad=True)
    value = negative_entropy(logits.softmax(1))
    value.backward()
    assert value.item() == 0.0 and logits.grad.isfinite().all()


def test_weight_of_the_distance_depends_on_the_dataset_unless_given():
    by_dataset = {d: resolve({"dataset": d, "method": "er_dvc"}).params["dl"] for d in ("cifar10", "cifar100")}
    assert by_dataset == {"cifar10": 2.0, "cifar100": 4.0}
    assert resolve({"dataset": "cifar100", "method": "er_dvc", "params": {"dl": 1.0}}).params["dl"] == 1.0
