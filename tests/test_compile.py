"""`--compile`: a step's views, forward, loss and backward are one graph, traced twice in a trial and never again.

The tracing is real, the code generator left out: it takes minutes on a machine that has not compiled the step before.
"""

import logging
from itertools import islice

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS
from pcr_ray.study.resolve import resolve

graphs = []  # of all methods: what one has traced serves the others, as in a worker that runs trial after trial

WHOLE = [m.name for m in METHODS if not m.uncompiled and m.one_loss()]
# What is computed beside the loss, on the compiled network, is traced when it is first needed.
ALONE = [name for name in WHOLE if name not in ("aser", "gss")]
LATER = {"ss_il": "nothing is replayed before", "hpcr": "two of its terms begin there"}  # a graph in the second task


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


@pytest.fixture(scope="module", autouse=True)
def afresh():
    trace = logging.getLogger("torch.__trace")
    trace.propagate = False  # pytest listens, and for a listener every graph is written down, slowly
    yield torch.compiler.reset()
    torch.compiler.reset()
    trace.propagate = True


def run(root, method, *, compiled, seed=0, backend=backend, **fields):
    """Losses, batch sizes and newly traced graphs of each step of three tasks."""
    # Tasks of 42 to 57 images, last batches of 8 to 15: for fewer than 16 views torch chooses another convolution.
    raw = {"method": method, "buffer": 25, "batch_size": 16, "fraction": 0.1, "tasks": 3, "lr": 1e-4, "seed": seed}
    raw |= fields
    learner = Learner(resolve(raw), root=root, device="cpu")
    if compiled:
        learner.method.compile_loss(backend)
    losses, sizes, traced = [], [], []
    for task in learner.stream.tasks:
        learner.method.begin_task(task)
        learner.method.train()
        batches = list(learner.stream.batches(task.index))
        for batch in [*islice(batches, 2), batches[-1]]:
            before = len(graphs)
            losses.append(learner.method.step(batch).item())
            sizes.append(len(batch))
            traced.append(len(graphs) - before)
        learner.method.end_task()
    return losses, sizes, traced


@pytest.mark.parametrize("method", METHODS.names())
def test_compiled_steps_are_the_eager_ones_and_a_second_trial_traces_nothing(root, method):
    counters.clear()
    eager, sizes, _ = run(root, method, compiled=False)
    assert len(set(sizes)) > 1  # the last batch of a task is shorter
    losses, _, traced = run(root, method, compiled=True)
    assert losses == pytest.approx(eager, rel=1e-4)  # sums in another order; a higher lr multiplies that
    assert sum(traced), "nothing was compiled"
    assert not counters["unimplemented"] and not counters["graph_break"]
    if method in ALONE:
        memory = METHODS.get(method).uses_memory
        begins = [1, 0, 0] if method == "ss_il" or not memory else [1, 1, 0]  # without memory, with it
        assert traced == [*begins, int(method in LATER), *[0] * 5]
    _, _, again = run(root, method, compiled=True, seed=1)
    assert sum(again) == 0


@pytest.mark.parametrize("fields", [
    {"augment": "ocm"}, {"augment": "dvc"}, 
    {"augment": "crop_flip", "views": "augmented", "replay_batch_size": 20},
    {"augment": "none", "batchnorm": "joint", "replay_batch_size": 20},
    {"batchnorm": "views", "normalise": True}, {"softmax": "all"},
], ids=str)  # fmt: skip
def test_every_kind_of_views_can_be_compiled(root, fields):
    eager, _, _ = run(root, "er", compiled=False, **fields)
    losses, _, traced = run(root, "er", compiled=True, **fields)
    assert losses == pytest.approx(eager, rel=1e-4)
    assert traced == [1, 1, *[0] * 7]


def test_other_batch_sizes_and_one_image_left_over(root):
    """The sizes of the first trial are no constants; but torch compiles anew for size 1."""
    run(root, "er_a", compiled=True)
    _, _, traced = run(root, "er_a", compiled=True, batch_size=17, replay_batch_size=6)
    assert sum(traced) == 0
    samples = Learner(resolve({"fraction": 0.1, "tasks": 3}), root=root, device="cpu").stream.samples(0)
    eager, sizes, _ = run(root, "er_a", compiled=False, batch_size=samples - 1)
    assert sizes[1] == 1
    losses, _, traced = run(root, "er_a", compiled=True, batch_size=samples - 1)
    assert losses == pytest.approx(eager, rel=1e-4)
    assert traced[:2] == [0, 1] and sum(traced) <= 2


def test_a_step_leaves_the_task_and_the_batch_as_they_were(root):
    learner = Learner(resolve({"method": "er", "fraction": 0.1}), root=root, device="cpu")
    learner.method.compile_loss(backend)
    task = learner.stream.tasks[1]
    learner.method.begin_task(task)
    batch = next(learner.stream.batches(1))
    learner.method.step(batch)
    assert learner.method.task is task and not batch.draws


@pytest.mark.parametrize("method", ["pcr", "agem"])
def test_the_backward_pass_is_one_graph_too(root, method):
    """With a memory and without. A-GEM takes two gradients of one pass through the network."""
    passes = []

    def noting(kind):
        return lambda graph, inputs: passes.append(kind) or make_boxed_func(graph.forward)

    aot = aot_autograd(fw_compiler=noting("forward"), bw_compiler=noting("backward"))
    eager, _, _ = run(root, method, compiled=False)
    losses, _, _ = run(root, method, compiled=True, backend=aot)
    assert losses == pytest.approx(eager, rel=1e-4)
    assert passes.count("forward") == passes.count("backward") == len(passes) / 2
    if method == "pcr":
        assert len(passes) == 4
