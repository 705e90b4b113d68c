"""Small float64 learners and literal loops, to compare methods with their formulas to 1e-10.

A backbone without BatchNorm stands in for the ResNet, so that nothing but the method is float32.
"""

import torch
import torch.nn.functional as F
from torch import nn

from pcr_ray.learner import Learner
from pcr_ray.models import CosineHead
from pcr_ray.study.resolve import resolve

CLASSES, OLD, SEEN = 10, 3, 7  # in the second of three tasks
DIM, LR = 6, 0.05


class Tiny(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.layer = nn.Linear(48, dim)

    def forward(self, x, parts=None):
        return torch.tanh(self.layer(4 * F.adaptive_avg_pool2d(x.double(), 4).flatten(1)))


def small(method, root, dim=DIM, **fields):
    """A learner of 3 tasks of 3, 4 and 3 digits with a float64 network; 4 images from the stream, 6 from memory."""
    fixed = {"dataset": "digits", "tasks": 3, "buffer": 24, "batch_size": 4, "replay_batch_size": 6, "lr": LR}
    config = resolve(fixed | {"method": method} | fields)
    learner = Learner(config, root=root, device="cpu")
    m = learner.method
    torch.manual_seed(5)
    m.net.backbone = Tiny(dim)
    m.net.head = CosineHead(dim, CLASSES, config.gamma) if config.head == "cosine" else nn.Linear(dim, CLASSES)
    m.build()  # what hangs on the network's dimensions
    m.double()
    m.optimiser = torch.optim.SGD(m.parameters(), config.lr)
    return learner


def in_second_task(method, root, steps=9, **fields):
    """Some steps of the first task are done; the method, a batch of the second task and all labels met so far."""
    learner = small(method, root, **fields)
    met = []
    learner.method.begin_task(learner.stream.tasks[0])
    for batch, _ in zip(learner.stream.batches(0), range(steps)):
        learner.method.step(batch)
        met += batch.host_labels.tolist()
    learner.method.begin_task(learner.stream.tasks[1])
    return learner.method, next(learner.stream.batches(1)), met


def same_views(method, *batches):
    """The views that the next call of `loss` will draw."""
    states = method.stream_rng.get_state(), method.memory_rng.get_state()
    views = method.views(*batches)
    method.stream_rng.set_state(states[0])
    method.memory_rng.set_state(states[1])
    return views


def slow_logits(method, view):
    """Logits as rows of scalars, one dot product each."""
    head, rows = method.net.head, []
    for z in method.net.backbone(view.images):
        if isinstance(head, nn.Linear):
            rows.append([z.dot(w) + b for w, b in zip(head.weight, head.bias)])
        else:
            rows.append([head.gamma * z.dot(w) / (z.norm() * w.norm()) for w in head.weight])
    return rows


def slow_ce(rows, labels, classes):
    total = 0
    for row, y in zip(rows, labels.tolist()):
        total = total - torch.log(torch.exp(row[y]) / sum(torch.exp(row[c]) for c in classes))
    return total / len(rows)


def gradients(method, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(method.parameters()))])


def assert_same(method, loss, expected):
    """Value and gradient."""
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradients(method, loss), gradients(method, expected), rtol=1e-9, atol=1e-10)
