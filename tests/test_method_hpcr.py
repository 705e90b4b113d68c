"""HPCR: schedule, PCD and SCD against literal sums, and what is stored with an image."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from pcr_ray.config import TrialConfig
from pcr_ray.learner import Learner
from pcr_ray.methods import Method
from pcr_ray.methods.hpcr import schedule, structure_loss
from pcr_ray.stream import Batch
from pcr_ray.study.resolve import ConfigProblems, resolve
from tests.slow_reference import same_views


def trial(**fields: object) -> TrialConfig:
    return resolve({"method": "hpcr", "dataset": "digits", "fraction": 0.1, "buffer": 20, **fields})


def begin(learner: Learner, task: int) -> Method:
    learner.method.begin_task(learner.stream.tasks[task])
    return learner.method.train()


def literal_pcr(s: torch.Tensor, labels: list[int]) -> torch.Tensor:
    total = s.new_zeros(())
    for i, y in enumerate(labels):
        total = total - s[i, y] + torch.log(sum(torch.exp(s[i, c]) for c in labels))
    return total / len(labels)


def literal_scd(now: torch.Tensor, stored: torch.Tensor, gamma: float) -> torch.Tensor:
    """Rows are features."""

    def probabilities(f: torch.Tensor, i: int) -> dict[int, torch.Tensor]:
        e = {j: torch.exp(gamma * f[i] @ f[j] / (f[i].norm() * f[j].norm())) for j in range(len(f)) if j != i}
        return {j: value / sum(e.values()) for j, value in e.items()}

    total = now.new_zeros(())
    for i in range(len(now)):
        p, q = probabilities(stored, i), probabilities(now, i)
        total = total - sum(p[j] * torch.log(q[j]) for j in p)
    return total / len(now)


def test_the_schedule_swings_between_its_ends_once_a_period() -> None:
    values = [schedule(i, 0.5625, 1.8, 500) for i in (0, 125, 250, 375, 500, 750)]
    assert values == pytest.approx([0.5625, 1.18125, 1.8, 1.18125, 0.5625, 1.8])
    for i in (1, 77, 499):
        assert schedule(i, 0.5625, 1.8, 500) == pytest.approx(0.5625 + 0.61875 * (1 - math.cos(math.pi * i / 250)))


def test_the_defaults_are_those_of_the_authors() -> None:
    assert trial().params == {"alpha": 0.1, "beta": 0.5, "low": 0.5625, "high": 1.8, "period": 500}


def test_it_needs_proxies() -> None:
    with pytest.raises(ConfigProblems, match="head: method 'hpcr' needs head cosine"):
        trial(head="linear")


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_scd_and_its_gradient_equal_the_literal_sum(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    now, stored = torch.randn(2, rows, 4, generator=generator, dtype=torch.float64)
    ours, literal = now.clone().requires_grad_(), now.clone().requires_grad_()
    u, v = (torch.nn.functional.normalize(f) for f in (ours, stored))
    loss, expected = structure_loss(5 * u @ u.T, 5 * v @ v.T), literal_scd(literal, stored, 5.0)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, literal.grad, rtol=1e-9, atol=1e-12)


def test_scd_of_a_single_row_is_zero_with_gradient_zero() -> None:
    now = torch.ones(1, 1, requires_grad=True)
    structure_loss(now, torch.ones(1, 1)).backward()
    assert now.grad.tolist() == [[0.0]]


@pytest.mark.parametrize("views", ["both", "augmented"])
@pytest.mark.parametrize("alpha, beta", [(0.1, 0.5), (3.0, 0.0), (0.0, 2.0)])
def test_the_loss_of_a_later_task_equals_the_literal_sum(root: Path, views: str, alpha: float, beta: float) -> None:
    learner = Learner(trial(params={"alpha": alpha, "beta": beta}, views=views), root=root, device="cpu")
    method = begin(learner, 0)
    for batch in learner.stream.batches(0):
        method.step(batch)
    begin(learner, 1)
    batch = next(iter(learner.stream.batches(1)))
    method.step(batch)
    memory = method.memory.sample(4)
    assert memory is not None
    features = [method.net(v.images).detach().double() for v in same_views(method, batch, memory)]
    proxies = method.net.head.weight.detach().double()
    proxies = proxies / proxies.norm(dim=1, keepdim=True)
    gamma = 1 / 0.09
    logits = [gamma * f / f.norm(dim=1, keepdim=True) @ proxies.T for f in features]
    copies = 2 if views == "both" else 1
    labels = (batch.labels.tolist() * copies) + (memory.labels.tolist() * copies)
    stored_logits = [memory.extras["logits"][i].double() for i in range(4)] * copies
    stored_features = torch.stack([memory.extras["features"][i].double() for i in range(4)] * copies)
    pcd = [float(logits[1][i, y] - stored_logits[i][y]) ** 2 for i in range(4 * copies) for y in labels]
    weight = 0.5625 + 0.61875 * (1 - math.cos(2 * math.pi * 1 / 500))  # the second step of its task
    expected = (
        weight * literal_pcr(torch.cat(logits), labels)
        + alpha * sum(pcd) / len(pcd)
        + beta * literal_scd(features[1], stored_features, gamma)
    )
    torch.testing.assert_close(method.loss(batch, memory).double(), expected, rtol=1e-4, atol=1e-5)


def test_the_first_task_has_the_weighted_pcr_loss_alone_and_each_task_starts_the_schedule_anew(root: Path) -> None:
    learner = Learner(trial(augment="none", params={"period": 7}), root=root, device="cpu")

    def literal(batch: Batch, weight: float) -> torch.Tensor:
        forwards = [batch] if memory is None else [batch, memory]
        logits = [learner.method.net(v.images, logits=True) for v in same_views(learner.method, *forwards)]
        labels = torch.cat([b.labels for b in forwards]).tolist()
        return weight * literal_pcr(torch.cat(logits).detach().double(), labels)

    method, memory = begin(learner, 0), None
    for step, batch in enumerate(learner.stream.batches(0)):
        expected = literal(batch, 0.5625 + 0.61875 * (1 - math.cos(2 * math.pi * step / 7)))
        torch.testing.assert_close(method.loss(batch, memory).double(), expected, rtol=1e-4, atol=1e-5)
        method.step(batch)
        memory = method.memory.sample(5)
    begin(learner, 1)
    batch, memory = next(iter(learner.stream.batches(1))), None
    torch.testing.assert_close(method.loss(batch, None).double(), literal(batch, 0.5625), rtol=1e-4, atol=1e-5)


def test_an_image_is_stored_with_the_logits_and_features_it_had_before_the_update(root: Path) -> None:
    learner = Learner(trial(), root=root, device="cpu")
    method = begin(learner, 0)
    for number, batch in enumerate(learner.stream.batches(0)):
        before = copy.deepcopy(method.net).train()
        (view,) = same_views(method, batch)
        slots = range(method.memory.seen, method.memory.seen + len(batch))  # while there is room
        method.step(batch)
        with torch.no_grad():
            features = before(view.images)[: len(batch)]  # batch statistics of both views, rows of the originals
            logits = before.head(features)
        assert torch.equal(method.memory.extras["features"][slots], features)
        assert torch.equal(method.memory.extras["logits"][slots], logits)
        assert not torch.equal(before.head.weight, method.net.head.weight)
        if number == 1:
            break


@pytest.mark.parametrize("views", ["both", "original"])
def test_batches_of_one_and_tasks_of_one_class(root: Path, views: str) -> None:
    config = trial(batch_size=1, replay_batch_size=1, tasks=10, fraction=0.02, buffer=2, views=views)
    learner = Learner(config, root=root, device="cpu")
    for _ in range(3):
        assert learner.run_task()["loss"] >= 0
