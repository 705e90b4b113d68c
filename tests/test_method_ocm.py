"""OCM: rotations by hand, every term against a literal sum, the teacher, and whole steps."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pcr_ray.config import TrialConfig
from pcr_ray.learner import Learner
from pcr_ray.methods import Method
from pcr_ray.methods.ocm import log_probabilities, rotations, same_label_loss, similarity, stream_loss
from pcr_ray.study.resolve import resolve

FLOOR = 1e-8


def trial(**fields: object) -> TrialConfig:
    small = {"fraction": 0.03, "batch_size": 4, "replay_batch_size": 3, "buffer": 12, "optimiser": "adam", "lr": 0.002}
    return resolve({"method": "ocm", "dataset": "digits", **small, **fields})


def begin(learner: Learner, task: int) -> Method:
    learner.method.begin_task(learner.stream.tasks[task])
    return learner.method.train()


def by_hand(image: Tensor) -> list[Tensor]:
    """The 16 turned versions of one (3, H, W) image."""
    middle = (image.shape[2] + 1) // 2
    versions = []
    for quarters in range(4):
        for left, right in ((False, False), (True, False), (True, True), (False, True)):
            turned = image.clone()
            if left:
                turned[:, :, :middle] = torch.rot90(image[:, :, :middle], 2, (1, 2))
            if right:
                turned[:, :, middle:] = torch.rot90(image[:, :, middle:], 2, (1, 2))
            versions.append(torch.rot90(turned, quarters, (1, 2)))
    return versions


def literal_rows(s: Tensor, *, without_self: bool) -> list[list[Tensor]]:
    """-log(p + floor) of each row's softmax, p_ii = 0 where a row leaves itself out."""
    rows = []
    for i in range(len(s)):
        e = [s.new_zeros(()) if without_self and i == j else torch.exp(s[i, j]) for j in range(s.shape[1])]
        rows.append([-torch.log(x / sum(e) + FLOOR) for x in e])
    return rows


def literal_same_label(rows: list[list[Tensor]], labels: list[int]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(rows):
        same = [row[j] for j in range(len(labels)) if labels[j] == labels[i]]
        total = total + sum(same) / len(same)
    return total / len(rows)


def literal_stream(s: Tensor, labels: list[int]) -> Tensor:
    rows, n = literal_rows(s, without_self=True), len(labels) // 2
    copies = sum(rows[i][i + n] + rows[i + n][i] for i in range(n)) / (2 * n)
    return copies + 2 * literal_same_label(rows, labels)


@pytest.mark.parametrize("size", [4, 5])
def test_rotations_turn_halves_and_the_whole(size: int) -> None:
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = [by_hand(image) for image in images]
    ours = rotations(images).view(16, 2, 3, size, size)
    for rotation in range(16):
        for number in range(2):
            assert torch.equal(ours[rotation, number], expected[number][rotation])
    assert len({tuple(version.flatten().tolist()) for version in expected[0]}) == 16


def test_each_class_in_each_rotation_is_a_label_of_its_own(root: Path) -> None:
    learner = Learner(trial(augment="none"), root=root, device="cpu")
    method = begin(learner, 0)
    batch = next(iter(learner.stream.batches(0)))
    pairs = method.pairs(batch)
    images = batch.images.permute(0, 3, 1, 2).float() / 255
    labels: dict[tuple[int, int], int] = {}
    for number, image in enumerate(images):
        for rotation, version in enumerate(by_hand(image)):
            for row in (4 * rotation + number, 64 + 4 * rotation + number):  # and its augmented copy
                torch.testing.assert_close(pairs.images[row], version)
                key = (int(batch.labels[number]), rotation)
                assert labels.setdefault(key, int(pairs.labels[row])) == int(pairs.labels[row])
    assert len(set(labels.values())) == len(labels) == 32


def test_similarity_adds_the_projections_and_a_slice_of_the_features() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    u = torch.nn.functional.normalize(torch.randn(5, 4, generator=generator, dtype=torch.float64))
    ours = similarity(features, u, start=3)
    for i in range(5):
        for j in range(5):
            sliced = sum(u[i, k] * features[j, 3 + k] / features[j].norm() for k in range(4))
            assert float(ours[i, j]) == pytest.approx(float(sliced + u[i] @ u[j]), abs=1e-12)


@pytest.mark.parametrize("spread", [1.0, 12.0])  # at 12 many probabilities are below the floor
def test_contrastive_terms_and_their_gradients_equal_the_literal_sums(spread: float) -> None:
    labels = [0, 1, 0, 2, 0, 1, 0, 2]
    s = spread * torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tensor = torch.tensor(labels)
    cases = [
        (lambda x: stream_loss(x, tensor), lambda x: literal_stream(x, labels)),
        (
            lambda x: same_label_loss(log_probabilities(x), tensor),
            lambda x: literal_same_label(literal_rows(x, without_self=False), labels),
        ),
    ]
    for function, literal in cases:
        x, y = s.clone().requires_grad_(), s.clone().requires_grad_()
        loss, expected = function(x), literal(y)
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-8, atol=1e-12)


def contrastive_parts(method: Method, groups: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Unit-length projections and features of image groups that go through the network together."""
    features = method.net(torch.cat(groups)).detach().double().split([len(g) for g in groups])
    weight, bias = (p.detach().double() for p in (method.projector.weight, method.projector.bias))
    projections = [f @ weight.T + bias for f in features]
    return [p / p.norm(dim=1, keepdim=True) for p in projections], [f / f.norm(dim=1, keepdim=True) for f in features]


def literal_loss(method: Method, batch: object, memory: object, teacher: tuple | None, share: float = 1.0) -> Tensor:
    """The whole loss, with the negative of an image for its augmented copy and that share of the similarities."""
    parts = [b for b in (batch, memory) if b is not None]
    images = [b.images.permute(0, 3, 1, 2).float() / 255 for b in parts]
    turned = [torch.stack([v for group in zip(*map(by_hand, x)) for v in group]) for x in images]
    labels = [[y + 1000 * r for _ in range(2) for r in range(16) for y in b.labels.tolist()] for b in parts]
    u, f = contrastive_parts(method, [torch.cat([t, 1 - t]) for t in turned])
    clone = torch.Generator().set_state(method.rng.get_state())
    starts = torch.randint(160 - 128 + 1, (2,), generator=clone).tolist()
    s = [share * (p @ z[:, a : a + 128].T + p @ p.T) / 0.07 for p, z, a in zip(u, f, starts)]
    seen, old = method.task.seen, method.task.old
    logits = method.net(1 - images[-1], logits=True).detach().double()
    ce = [-math.log(math.exp(row[y]) / sum(math.exp(row[c]) for c in range(seen)))
          for row, y in zip(logits, parts[-1].labels.tolist())]  # fmt: skip
    total = literal_stream(s[0], labels[0]) + sum(ce) / len(ce)
    if memory is None:
        return total
    net, projector = teacher
    half = len(turned[1])
    before = projector(net(turned[1])).detach().double()
    before = before / before.norm(dim=1, keepdim=True)
    previous = literal_rows(u[1][:half] @ before.T / 0.07, without_self=False)
    squares = (logits[:, :old] - net(1 - images[1], logits=True).detach().double()[:, :old]) ** 2
    total = total + literal_same_label(literal_rows(s[1], without_self=False), labels[1])
    return total + literal_same_label(previous, labels[1][:half]) + squares.sum() / squares.numel()


@pytest.mark.parametrize("halve", [False, True])
def test_the_loss_of_the_first_and_of_a_later_task_equal_the_literal_sums(root: Path, halve: bool) -> None:
    learner = Learner(trial(batch_size=2, params={"halve": halve}), root=root, device="cpu")
    method = begin(learner, 0)
    method.augmentation = lambda images, rng: 1 - images
    for batch in learner.stream.batches(0):
        expected = literal_loss(method, batch, None, None)
        torch.testing.assert_close(method.step(batch).double(), expected, rtol=1e-4, atol=1e-4)
        break
    method.end_task()
    # The teacher normalises by batch statistics, as a network in training mode does.
    teacher = copy.deepcopy(method.net).train(), copy.deepcopy(method.projector)
    begin(learner, 1)
    for step, batch in enumerate(learner.stream.batches(1)):
        memory = method.memory.sample(2)
        if step == 1:  # by now model and teacher differ
            expected = literal_loss(method, batch, memory, teacher, 0.5 if halve else 1.0)
            torch.testing.assert_close(method.learn(batch, memory).double(), expected, rtol=1e-4, atol=1e-4)
            break
        method.learn(batch, memory)


def test_similarities_are_halved_on_cifar10_alone_unless_said_otherwise() -> None:
    assert trial(dataset="cifar10").params["halve"]
    assert not trial().params["halve"] and not trial(dataset="cifar100").params["halve"]
    assert not trial(dataset="cifar10", params={"halve": False}).params["halve"]


def test_the_teacher_is_the_previous_model_and_never_learns(root: Path) -> None:
    learner = Learner(trial(fraction=0.02), root=root, device="cpu")
    method = learner.method

    def frozen() -> list[Tensor]:
        return [v.clone() for v in method.teacher.state_dict().values()]

    def model() -> list[Tensor]:
        return [*method.net.state_dict().values(), *method.projector.state_dict().values()]

    learner.run_task()
    after_first = frozen()
    assert all(map(torch.equal, after_first, model()))
    begin(learner, 1)
    for batch in learner.stream.batches(1):
        method.step(batch)
    assert all(map(torch.equal, after_first, frozen()))
    assert not any(torch.equal(a, b) for a, b in zip(after_first, model()) if a.dim() == 4)
    optimised = {id(p) for group in method.optimiser.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in [*method.net.parameters(), *method.projector.parameters()]}


def test_nothing_is_replayed_in_the_first_task(root: Path) -> None:
    learner = Learner(trial(), root=root, device="cpu")
    method = begin(learner, 0)
    batch = next(iter(learner.stream.batches(0)))
    method.memory.reservoir(batch)
    assert method.recall(batch) is None
    begin(learner, 1)
    recalled = method.recall(batch)
    assert recalled is not None and len(recalled) == 3


def test_batches_of_one_and_tasks_of_one_class(root: Path) -> None:
    config = trial(batch_size=1, replay_batch_size=1, buffer=1, replay_current=False, tasks=10, fraction=0.02)
    learner = Learner(config, root=root, device="cpu")
    for _ in range(3):
        assert learner.run_task()["loss"] > 0
