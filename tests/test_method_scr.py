"""SCR: its contrastive loss against a literal one, and what follows from having no softmax classifier."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from pcr_ray.config import TrialConfig
from pcr_ray.learner import Learner
from pcr_ray.memory import Recalled
from pcr_ray.methods.scr import supcon_loss
from pcr_ray.stream import Batch
from pcr_ray.study.resolve import resolve


def trial(**fields: object) -> TrialConfig:
    return resolve({"method": "scr", "dataset": "digits", "fraction": 0.25, "buffer": 50, **fields})


def batches(learner: Learner) -> tuple[Batch, Recalled]:
    """The first batch of the first task, and a replay of three of its images."""
    method = learner.method
    method.begin_task(learner.stream.tasks[0])
    batch = next(iter(learner.stream.batches(0)))
    method.memory.reservoir(batch)
    memory = method.memory.sample(3)
    assert memory is not None
    return batch, memory


def literal_supcon(u: torch.Tensor, labels: list[int], temperature: float) -> torch.Tensor:
    n = len(labels)
    total = u.new_zeros(())
    for i in range(n):
        denominator = sum(torch.exp((u[i] * u[j]).sum() / temperature) for j in range(n) if j != i)
        positives = [p for p in range(n) if p != i and labels[p] == labels[i]]
        for p in positives:
            ratio = torch.exp((u[i] * u[p]).sum() / temperature) / denominator
            total = total - torch.log(ratio) / len(positives)
    return total / n


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1, 0], [3, 3], [0, 1, 2, 2], [0, 1, 2]])
def test_supcon_and_its_gradient_equal_the_literal_sum(labels: list[int], temperature: float) -> None:
    generator = torch.Generator().manual_seed(len(labels))
    u = torch.nn.functional.normalize(torch.randn(len(labels), 5, generator=generator, dtype=torch.float64))
    ours, literal = u.clone().requires_grad_(), u.clone().requires_grad_()
    loss = supcon_loss(ours @ ours.T / temperature, torch.tensor(labels))
    expected = literal_supcon(literal, labels, temperature)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    if expected.requires_grad:
        expected.backward()
    loss.backward()
    wanted = torch.zeros_like(u) if literal.grad is None else literal.grad
    torch.testing.assert_close(ours.grad, wanted, rtol=1e-9, atol=1e-12)


def test_a_lone_image_gives_loss_and_gradient_zero() -> None:
    u = torch.randn(1, 4, requires_grad=True)
    loss = supcon_loss(u @ u.T, torch.tensor([5]))
    loss.backward()
    assert loss.item() == 0
    assert (u.grad == 0).all()


@pytest.mark.parametrize(("batchnorm", "temperature"), [("joint", 0.07), ("separate", 0.5)])
def test_the_loss_contrasts_projections_of_memory_and_stream(root: Path, batchnorm: str, temperature: float) -> None:
    config = trial(augment="none", batchnorm=batchnorm, params={"temperature": temperature})
    learner = Learner(config, root=root, device="cpu")
    batch, memory = batches(learner)
    method = learner.method
    images = [b.images.permute(0, 3, 1, 2).float() / 255 for b in (memory, batch)]
    forwards = [torch.cat(images)] if batchnorm == "joint" else images
    first, _, second = method.projector
    assert first.weight.shape == (160, 160) and second.weight.shape == (128, 160)
    z = torch.cat([method.net.backbone(part) for part in forwards])
    u = (z @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    u = (u / u.norm(dim=1, keepdim=True)).double()
    labels = torch.cat([memory.labels, batch.labels]).tolist()
    expected = literal_supcon(u, labels, temperature)
    torch.testing.assert_close(method.loss(batch, memory).double(), expected, rtol=1e-4, atol=1e-4)


def test_views_have_their_own_statistics_and_the_temperature_is_007_unless_said_otherwise() -> None:
    assert trial().batchnorm == "views"
    assert trial().params == {"temperature": 0.07, "review": False}


def test_originals_and_augmented_copies_pass_the_network_one_after_the_other(root: Path) -> None:
    """Features and running statistics are those of two forward passes, each of memory and stream."""
    learner = Learner(trial(), root=root, device="cpu")
    batch, memory = batches(learner)
    method = learner.method
    twin = copy.deepcopy(method.net)
    views = method.views(memory, batch)
    got = method.features(*views)
    originals, copies = (torch.cat([v.images[part] for v, part in zip(views, parts)])
                         for parts in ((slice(3), slice(10)), (slice(3, None), slice(10, None))))  # fmt: skip
    first, second = twin(originals), twin(copies)
    torch.testing.assert_close(got[0], torch.cat([first[:3], second[:3]]))
    torch.testing.assert_close(got[1], torch.cat([first[3:], second[3:]]))
    statistics = dict(twin.named_buffers())
    assert all(torch.equal(value, statistics[name]) for name, value in method.net.named_buffers())


def test_a_review_learns_the_memory_once_more_in_whole_batches_with_a_tenth_of_the_gradient(root: Path) -> None:
    config = trial(buffer=17, replay_batch_size=5, lr=0.5, views="original", params={"review": True})
    learner = Learner(config, root=root, device="cpu")
    method = learner.method
    method.begin_task(learner.stream.tasks[0])
    for batch in learner.stream.batches(0):
        method.remember(batch)
    plain, rng = copy.deepcopy(method.net), torch.Generator().set_state(method.memory.draw_rng.get_state())
    projector = copy.deepcopy(method.projector)
    parameters = [*plain.backbone.parameters(), *projector.parameters()]
    order = torch.randperm(17, generator=rng).tolist()
    for start in (0, 5, 10):  # two of 17 images are left over
        slots = order[start : start + 5]
        images = method.memory.images[slots].permute(0, 3, 1, 2).float() / 255
        u = torch.nn.functional.normalize(projector(plain(images)))
        loss = literal_supcon(u, method.memory.labels[slots].tolist(), 0.07)
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters)):
                p -= 0.05 * g  # a tenth of the learning rate
    method.end_task()
    for ours, expected in zip([*method.net.backbone.parameters(), *method.projector.parameters()], parameters):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=5e-5)  # steps are 1e-3 and more


@pytest.mark.parametrize(("review", "filled"), [(False, 20), (True, 4)])
def test_nothing_is_reviewed_unless_asked_for_and_a_batch_is_there(root: Path, review: bool, filled: int) -> None:
    learner = Learner(trial(replay_batch_size=5, params={"review": review}), root=root, device="cpu")
    method = learner.method
    method.begin_task(learner.stream.tasks[0])
    for batch in learner.stream.batches(0):
        method.remember(Batch(batch.images[:4], batch.labels[:4], batch.host_labels[:4]))  # type: ignore[index]
        if method.memory.filled >= filled:
            break
    before = [p.clone() for p in method.parameters()]
    method.end_task()
    assert all(map(torch.equal, before, method.parameters()))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_softmax_head_is_never_touched(root: Path, optimiser: str) -> None:
    config = trial(optimiser=optimiser, lr=0.01, weight_decay=0.1, fraction=0.1)
    learner = Learner(config, root=root, device="cpu")
    before = {n: p.clone() for n, p in learner.method.named_parameters()}
    learner.run_task()
    changed = {n for n, p in learner.method.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if not n.startswith("net.head.")}


def test_inference_is_by_the_nearest_class_mean_of_the_memory(root: Path) -> None:
    learner = Learner(trial(), root=root, device="cpu")
    method = learner.method
    learner.run_task()
    memory = method.memory
    rows, _ = learner.stream.test(0)
    images = learner.stream.images[rows][::3]

    def features(stored: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = method.net.eval().backbone(stored.permute(0, 3, 1, 2).float() / 255).double()
        return z / z.norm(dim=1, keepdim=True)

    exemplars = features(memory.images[: memory.filled])
    means = [exemplars[memory.labels[: memory.filled] == c].mean(0) for c in range(2)]
    expected = [max(range(2), key=lambda c: float(z @ means[c] / means[c].norm())) for z in features(images)]
    with torch.no_grad():
        method.net.head.weight.copy_(torch.randn_like(method.net.head.weight))
    assert method.predict(method.embed(images), method.class_means()).tolist() == expected
    assert set(expected) == {0, 1}


def test_its_own_accuracy_is_that_of_the_class_means(root: Path) -> None:
    learner = Learner(trial(fraction=0.1), root=root, device="cpu")
    learner.run_task()
    assert learner.matrices["softmax"] == learner.matrices["ncm"]


def test_batches_of_one_and_tasks_of_one_class(root: Path) -> None:
    config = trial(batch_size=1, replay_batch_size=1, tasks=10, fraction=0.02, views="augmented")
    learner = Learner(config, root=root, device="cpu")
    for _ in range(2):
        assert learner.run_task()["loss"] >= 0
