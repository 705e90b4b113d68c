"""`--compile`: every method's network can be traced, and goes on being used so. The tracing is real, the code generator
left out: it takes minutes on a machine that has not compiled the network before."""

from itertools import islice

import pytest
import torch
from torch._dynamo.utils import counters

from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS
from pcr_ray.study.resolve import resolve

graphs = []  # of all methods: what one has traced serves the others, as in a worker that runs trial after trial


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


@pytest.fixture(scope="module", autouse=True)
def afresh():
    yield torch.compiler.reset()
    torch.compiler.reset()


def losses(root, method, compiled):
    """Of some steps in each of two tasks."""
    learner = Learner(resolve({"method": method, "buffer": 40, "fraction": 0.1}), root=root, device="cpu")
    if compiled:
        learner.method.net.compile_backbone(backend)
    out = []
    for task in learner.stream.tasks[:2]:
        learner.method.begin_task(task)
        learner.method.train()
        out += [learner.method.step(batch).item() for batch in islice(learner.stream.batches(task.index), 2)]
    return out


@pytest.mark.parametrize("method", METHODS.names())
def test_a_traced_network_takes_the_same_steps_and_is_not_given_up(root, method):
    counters.clear()
    eager = losses(root, method, compiled=False)
    assert losses(root, method, compiled=True) == pytest.approx(eager, rel=1e-6)  # sums over parts in another order
    assert graphs
    assert not counters["unimplemented"]
    assert not counters["graph_break"]
