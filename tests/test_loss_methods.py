"""IID, ER+A, ER+A+B+C, ER-ACE, SS-IL, ER-WA, A-GEM and DER++ against their formulas written as loops in float64."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS, Method
from pcr_ray.methods.agem import project
from pcr_ray.stream import Task
from pcr_ray.study.resolve import resolve
from tests.slow_reference import (
    CLASSES,
    LR,
    OLD,
    SEEN,
    assert_same,
    gradients,
    in_second_task,
    same_views,
    slow_ce,
    slow_logits,
    small,
)

HEADS = pytest.mark.parametrize("head", ["cosine", "linear"])


def test_iid_hands_out_every_training_image_once_with_all_classes_in_every_part(root):
    stream = small("iid", root).stream
    parts = [list(stream.batches(t)) for t in range(3)]
    got = sorted((im.tobytes(), int(y)) for p in parts for b in p for im, y in zip(b.images.numpy(), b.host_labels))
    expected = sorted(
        (stream.data.images[row].tobytes(), rank)
        for rank, name in enumerate(stream.class_order)
        for row in stream.data.rows("train", name)
    )
    assert got == expected
    for part in parts:
        assert set(np.concatenate([b.host_labels for b in part])) == set(range(CLASSES))
        # 40 images in class order would hold one class or two; shuffled, fewer than 6 have a chance below 1e-7.
        assert len(set(np.concatenate([b.host_labels for b in part[:10]]))) >= 6


@HEADS
def test_iid_loss_is_cross_entropy_over_all_classes_from_the_first_task(root, head):
    learner = small("iid", root, head=head)
    m = learner.method
    m.begin_task(learner.stream.tasks[0])
    batch = next(learner.stream.batches(0))
    assert m.recall(batch) is None
    (view,) = same_views(m, batch)
    assert_same(m, m.loss(batch, None), slow_ce(slow_logits(m, view), view.labels, range(CLASSES)))


@HEADS
@pytest.mark.parametrize("replay", [True, False])
def test_er_a_loss_runs_over_each_class_of_the_joint_batch_once(root, head, replay):
    m, batch, _ = in_second_task("er_a", root, head=head)
    batches = [batch, m.recall(batch)] if replay else [batch]
    views = same_views(m, *batches)
    rows = [row for v in views for row in slow_logits(m, v)]
    labels = torch.cat([v.labels for v in views])
    present = set(labels.tolist())
    assert len(present) < CLASSES
    assert_same(m, m.loss(batch, batches[1] if replay else None), slow_ce(rows, labels, present))


@pytest.mark.parametrize("replay", [True, False])
def test_pcr_c_contrasts_with_repeated_proxies_and_with_all_other_samples(root, replay):
    m, batch, _ = in_second_task("pcr_c", root)
    batches = [batch, m.recall(batch)] if replay else [batch]
    views = same_views(m, *batches)
    rows = [row for v in views for row in slow_logits(m, v)]
    labels = torch.cat([v.labels for v in views]).tolist()
    z = torch.cat([m.net.backbone(v.images) for v in views])
    total = 0
    for i, y in enumerate(labels):
        below, positives = 0, []
        for j, other in enumerate(labels):
            pairs = [rows[i][other]]
            if j != i:
                pairs.append(m.config.gamma * z[i].dot(z[j]) / (z[i].norm() * z[j].norm()))
            for s in pairs:
                below = below + torch.exp(s)
            positives += pairs if other == y else []
        total = total - sum(torch.log(torch.exp(s) / below) for s in positives) / len(positives)
    assert_same(m, m.loss(batch, batches[1] if replay else None), total / len(labels))


@HEADS
def test_er_ace_stream_runs_over_the_task_and_replay_over_all_seen(root, head):
    m, batch, _ = in_second_task("er_ace", root, head=head)
    memory = m.recall(batch)
    stream, replay = same_views(m, batch, memory)
    expected = slow_ce(slow_logits(m, stream), stream.labels, range(OLD, SEEN))
    expected = expected + slow_ce(slow_logits(m, replay), replay.labels, range(SEEN))
    assert_same(m, m.loss(batch, memory), expected)


def test_er_ace_task_free_stream_runs_over_its_batch_and_classes_never_seen(root):
    # One step only: not all classes of the first task are seen.
    m, batch, met = in_second_task("er_ace", root, steps=1, params={"stream_classes": "batch"})
    m.step(batch)
    met += batch.host_labels.tolist()
    batch.labels[:], batch.host_labels[:] = 5, 5  # a batch of one class
    memory = m.recall(batch)
    stream, replay = same_views(m, batch, memory)
    allowed = {5} | (set(range(CLASSES)) - set(met))
    assert allowed & set(range(OLD)) and set(range(OLD, SEEN)) - allowed  # neither contains the task nor lies in it
    expected = slow_ce(slow_logits(m, stream), stream.labels, allowed)
    expected = expected + slow_ce(slow_logits(m, replay), replay.labels, range(SEEN))
    assert_same(m, m.loss(batch, memory), expected)


@pytest.mark.parametrize(("method", "replayed"), [("er_ace", range(SEEN)), ("ss_il", range(OLD))])
def test_stream_leaves_old_proxies_alone_and_replay_moves_those_it_competes_with(root, method, replayed):
    m, batch, _ = in_second_task(method, root)
    memory = m.recall(batch)
    (alone,) = torch.autograd.grad(m.loss(batch, None), m.net.head.weight)
    assert [c for c in range(CLASSES) if alone[c].any()] == list(range(OLD, SEEN))
    states = m.stream_rng.get_state(), m.memory_rng.get_state()
    (both,) = torch.autograd.grad(m.loss(batch, memory), m.net.head.weight)
    m.stream_rng.set_state(states[0])
    (alone,) = torch.autograd.grad(m.loss(batch, None), m.net.head.weight)
    assert [c for c in range(CLASSES) if (both - alone)[c].abs().max() > 1e-12] == list(replayed)


@HEADS
def test_ss_il_has_one_softmax_for_new_and_one_for_old_classes(root, head):
    m, batch, _ = in_second_task("ss_il", root, head=head)
    for _ in range(5):
        m.step(batch)  # the memory now holds images of the second task as well
    assert (m.memory.host_labels[: m.memory.filled] >= OLD).any()
    for _ in range(20):
        memory = m.recall(batch)
        assert len(memory) == 6 and memory.host_labels.max() < OLD
    stream, replay = same_views(m, batch, memory)
    expected = slow_ce(slow_logits(m, stream), stream.labels, range(OLD, SEEN))
    expected = expected + slow_ce(slow_logits(m, replay), replay.labels, range(OLD))
    assert_same(m, m.loss(batch, memory), expected)


@pytest.mark.parametrize("method", ["ss_il", "agem"])
def test_replay_begins_with_the_second_task(root, method):
    learner = small(method, root)
    m = learner.method
    m.begin_task(learner.stream.tasks[0])
    for batch, _ in zip(learner.stream.batches(0), range(3)):
        m.step(batch)
        assert m.recall(batch) is None
    m.begin_task(learner.stream.tasks[1])
    assert len(m.recall(batch)) == 6


@pytest.mark.parametrize(("factor", "clamp", "power"), [(3, True, 2), (3, True, 1), (0.3, True, 2), (0.3, False, 1)])
def test_er_wa_scales_new_weights_to_the_old_ones_length_at_inference_only(root, factor, clamp, power):
    m, batch, _ = in_second_task("er_wa", root, params={"clamp": clamp, "norm": f"l{power}"})
    z = m.net.backbone(same_views(m, batch)[0].images).detach()
    m.begin_task(Task(0, 0, OLD))
    m.end_task()
    torch.testing.assert_close(m.logits(z), m.net.head(z), rtol=0, atol=0)  # nothing to align after one task
    m.begin_task(Task(1, OLD, SEEN))
    m.net.head.weight.data[OLD:] *= factor
    before = copy.deepcopy(m.net.state_dict())
    m.end_task()
    assert all(torch.equal(before[k], v) for k, v in m.net.state_dict().items())

    weight, bias = before["head.weight"].numpy(), before["head.bias"].numpy()
    lengths = [sum(abs(x) ** power for x in row) ** (1 / power) for row in weight]
    ratio = (sum(lengths[:3]) / 3) / (sum(lengths[3:7]) / 4)
    assert (ratio > 1) == (factor < 1)
    ratio = min(ratio, 1) if clamp else ratio
    expected = [[(ratio if 3 <= c < 7 else 1) * sum(a * b for a, b in zip(row, weight[c])) + bias[c] for c in range(10)]
                for row in z.numpy()]  # fmt: skip
    torch.testing.assert_close(m.logits(z).detach(), torch.tensor(np.array(expected)), rtol=1e-12, atol=1e-12)
    assert m.predict(z, None).tolist() == np.array(expected)[:, :SEEN].argmax(1).tolist()

    m.begin_task(Task(2, SEEN, CLASSES))
    m.end_task()
    ratio = (sum(lengths[:7]) / 7) / (sum(lengths[7:]) / 3)
    ratio = min(ratio, 1) if clamp else ratio
    assert m.scale.tolist() == pytest.approx([1.0] * 7 + [ratio] * 3)  # the newest classes alone


def test_er_wa_sets_negative_weights_of_the_head_to_0_after_each_step_if_asked_to(root):
    m, batch, _ = in_second_task("er_wa", root, params={"clip": True})
    assert (m.net.head.weight >= 0).all() and (m.net.head.weight == 0).any()
    assert (m.net.head.bias < 0).any()  # a weight is what multiplies a feature
    before = m.net.head.weight.detach().clone()
    memory = m.recall(batch)
    stream, replay = same_views(m, batch, memory)
    loss = sum(slow_ce(slow_logits(m, v), v.labels, range(SEEN)) for v in (stream, replay))
    (gradient,) = torch.autograd.grad(loss, m.net.head.weight)
    m.learn(batch, memory)
    stepped = [[max(0.0, w - LR * g) for w, g in zip(*rows)] for rows in zip(before.tolist(), gradient.tolist())]
    torch.testing.assert_close(m.net.head.weight.detach(), torch.tensor(stepped, dtype=torch.float64))


# Without effect: sums over the classes of the batch, or of a task, or over all classes anyway, or no softmax at all.
FIXED = {"pcr", "pcr_c", "er_a", "hpcr", "ss_il", "iid", "scr"}


@pytest.mark.parametrize("method", METHODS.names())
def test_the_whole_head_competes_in_every_cross_entropy_of_training_if_asked_to(root, method):
    """Unseen classes get a gradient then, and only then."""
    assert (resolve({"method": method, "softmax": "all"}) == resolve({"method": method})) == (method in FIXED)
    settings = () if method in FIXED else ("all",) if method == "er_dvc" else ("seen", "all")
    for softmax in settings:  # ER-DVC's joint network sees all logits: theirs is never 0
        m, batch, _ = in_second_task(method, root, dim=130, softmax=softmax)
        memory = m.recall(batch)
        if method == "agem":
            terms = m.losses(batch, memory)
        elif method in ("er_ace", "ocm", "aser"):  # replay alone, or both in one mean
            terms = [m.loss(batch, memory)]
        else:
            terms = [m.loss(b, None) for b in (batch, memory) if b is not None]
        for term in terms:
            (g,) = torch.autograd.grad(term, m.net.head.weight, retain_graph=True)
            moved = [c for c in range(CLASSES) if g[c].any()]
            assert moved == list(range(CLASSES if softmax == "all" else SEEN))


@pytest.mark.parametrize("method", ["er", "agem", "derpp", "er_ace", "finetune"])
def test_losses_over_the_whole_head_are_the_formulas(root, method):
    m, batch, _ = in_second_task(method, root, softmax="all", params={"beta": 0.7} if method == "derpp" else {})
    memory = m.recall(batch)
    draws = [] if memory is None else m.halves(memory) if method == "derpp" else [memory]
    stream, *replays = same_views(m, batch, *draws)
    allowed = range(OLD, SEEN) if method == "er_ace" else range(CLASSES)
    expected = slow_ce(slow_logits(m, stream), stream.labels, allowed)
    if method == "derpp":
        rows, stored = slow_logits(m, replays[0]), draws[0].extras["logits"]
        squares = [(row[c] - stored[i % 6][c]) ** 2 for i, row in enumerate(rows) for c in range(CLASSES)]
        expected = expected + 0.1 * sum(squares) / len(squares)
    for view in replays[-1:] if method != "agem" else []:
        share = 0.7 if method == "derpp" else 1
        expected = expected + share * slow_ce(slow_logits(m, view), view.labels, range(CLASSES))
    got = m.losses(batch, None)[0] if method == "agem" else m.loss(batch, memory)
    assert_same(m, got, expected)


@pytest.mark.parametrize(("softmax", "classes"), [("seen", SEEN), ("all", CLASSES)])
def test_scores_and_edits_have_the_softmax_of_training(root, softmax, classes):
    m, _, _ = in_second_task("mir", root, softmax=softmax)
    drawn = m.memory.sample(6)
    rows = [[row] for row in m.net(m.pixels(drawn.images), logits=True)]
    losses = [slow_ce(row, y[None], range(classes)) for row, y in zip(rows, drawn.labels)]
    torch.testing.assert_close(m.rating(dict(m.net.named_parameters()), drawn), torch.stack(losses))

    m, batch, _ = in_second_task("gss", root, softmax=softmax)
    bias = m.net.head.bias
    for gradient in (m.gradient(batch.images, batch.labels), *m.each_gradient(batch)):
        assert gradient[-len(bias) :].ne(0).tolist() == [c < classes for c in range(CLASSES)]

    m, _, _ = in_second_task("gmed", root, softmax=softmax)
    drawn = m.memory.sample(6)
    images = m.originals(drawn).requires_grad_()
    expected = torch.autograd.grad(slow_ce(m.net(images, logits=True), drawn.labels, range(classes)), images)[0]
    got = m.input_gradient(images, drawn.labels, dict(m.net.named_parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("sign", [-1, 1])
def test_agem_projection_acts_on_the_flattened_vector_and_only_on_a_conflict(sign):
    rng = np.random.default_rng(0)
    shapes = [(3, 2, 2), (4,), (1,)]
    g, r = ([rng.normal(size=s) for s in shapes] for _ in range(2))
    flat_g, flat_r = (np.concatenate([a.ravel() for a in v]) for v in (g, r))
    if np.sign(flat_g @ flat_r) != sign:
        r, flat_r = [-a for a in r], -flat_r
    expected = flat_g if sign > 0 else flat_g - (flat_g @ flat_r) / (flat_r @ flat_r) * flat_r
    got = project([torch.tensor(a) for a in g], [torch.tensor(a) for a in r])
    assert [tuple(a.shape) for a in got] == shapes
    np.testing.assert_allclose(np.concatenate([a.numpy().ravel() for a in got]), expected, rtol=1e-12)
    assert sign > 0 or abs(expected @ flat_r) < 1e-12


def test_agem_keeps_the_gradient_when_the_reference_is_zero():
    (got,) = project([torch.tensor([1.0, -2.0])], [torch.zeros(2)])
    assert got.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("batchnorm", ["separate", "joint"])
def test_agem_update_is_an_sgd_step_along_the_projected_gradient(root, batchnorm):
    m, batch, _ = in_second_task("agem", root, batchnorm=batchnorm)
    conflicts = []
    for step in range(8):
        memory = m.recall(batch) if step else None  # the first one: a plain step
        parameters = nn.utils.parameters_to_vector(m.parameters()).detach().clone()
        views = same_views(m, *(b for b in (batch, memory) if b is not None))
        losses = [slow_ce(slow_logits(m, v), v.labels, range(SEEN)) for v in views]
        g, *reference = [gradients(m, loss) for loss in losses]
        for r in reference:
            conflicts.append(bool(g.dot(r) < 0))
            g = g - g.dot(r) / r.dot(r) * r if conflicts[-1] else g
        loss = m.learn(batch, memory)
        torch.testing.assert_close(loss, losses[0].detach(), rtol=1e-10, atol=1e-10)
        after = nn.utils.parameters_to_vector(m.parameters()).detach()
        torch.testing.assert_close(after, parameters - LR * g, rtol=1e-9, atol=1e-10)
        if memory is not None and step > 4:
            batch = memory  # learning from the memory itself: the two agree
    assert set(conflicts) == {True, False}


def test_derpp_replays_two_independent_draws(root):
    m, batch, _ = in_second_task("derpp", root)
    twin = copy.deepcopy(m.memory)
    twin.draw_rng = torch.Generator().set_state(m.memory.draw_rng.get_state())
    drawn = m.recall(batch)
    first, second = twin.sample(6), twin.sample(6)
    assert drawn.slots.tolist() == first.slots.tolist() + second.slots.tolist()
    assert drawn.labels.tolist() == drawn.host_labels.tolist() == first.labels.tolist() + second.labels.tolist()
    assert len(set(first.slots.tolist())) == len(set(second.slots.tolist())) == 6
    assert first.slots.tolist() != second.slots.tolist()


@pytest.mark.parametrize(("head", "views"), [("linear", "both"), ("cosine", "both"), ("linear", "original")])
def test_derpp_loss_draws_every_view_to_the_stored_logits_of_its_image(root, head, views):
    m, batch, _ = in_second_task("derpp", root, head=head, views=views, params={"alpha": 0.3, "beta": 0.7})
    memory = m.recall(batch)
    first, second = m.memory.at(memory.slots[:6].numpy()), m.memory.at(memory.slots[6:].numpy())
    stream, one, two = same_views(m, batch, first, second)
    rows, error = slow_logits(m, one), 0
    for i, row in enumerate(rows):
        stored = m.memory.extras["logits"][memory.slots[i % 6]]
        error = error + sum((row[c] - stored[c]) ** 2 for c in range(CLASSES))
    expected = slow_ce(slow_logits(m, stream), stream.labels, range(SEEN)) + 0.3 * error / (len(rows) * CLASSES)
    expected = expected + 0.7 * slow_ce(slow_logits(m, two), two.labels, range(SEEN))
    assert_same(m, m.loss(batch, memory), expected)


def test_derpp_stores_the_logits_of_the_original_from_before_the_update(root):
    learner = small("derpp", root, lr=0.5)
    m = learner.method
    m.begin_task(learner.stream.tasks[0])
    expected = {}
    for batch, _ in zip(learner.stream.batches(0), range(8)):  # 32 images for 24 slots
        logits = m.net(m.pixels(batch.images), logits=True).detach()
        expected |= {image.numpy().tobytes(): row for image, row in zip(batch.images, logits)}
        m.step(batch)
    for image, stored in zip(m.memory.images, m.memory.extras["logits"]):
        torch.testing.assert_close(stored, expected[image.numpy().tobytes()], rtol=1e-10, atol=1e-10)
    now = m.net(m.pixels(m.memory.images), logits=True)
    assert (now - m.memory.extras["logits"]).abs().max() > 0.1  # the updates do make a difference


def test_er_wa_trains_exactly_as_er_with_a_linear_head(root):
    small = {"dataset": "digits", "tasks": 2, "fraction": 0.05, "buffer": 100, "lr": 0.03}
    er, er_wa = (
        Learner(resolve(small | fields), root=root, device="cpu")
        for fields in ({"method": "er", "head": "linear"}, {"method": "er_wa"})
    )
    for learner in (er, er_wa):
        learner.run_task()
        learner.run_task()
    weights = er_wa.method.net.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in er.method.net.state_dict().items())
    assert er.training.losses == er_wa.training.losses


@pytest.mark.parametrize("method", [m.name for m in METHODS if m.loss is not Method.loss])
def test_every_term_of_a_loss_trains(method, root):
    """The gradient along a random direction is the loss's own slope there: no term is cut off from the parameters."""
    m, batch, _ = in_second_task(method, root, dim=130)  # OCM compares 128 of the features
    memory = m.recall(batch)
    assert memory is not None or not m.uses_memory
    generators = [g for holder in (m, m.memory) for g in vars(holder).values() if isinstance(g, torch.Generator)]
    states = [g.get_state() for g in generators]

    def loss():
        for generator, state in zip(generators, states):
            generator.set_state(state)
        return m.loss(batch, memory)

    parameters = [p for p in m.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(loss(), parameters, allow_unused=True)
    direction = [torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype) for p in parameters]
    along = sum((g * d).sum() for g, d in zip(gradient, direction) if g is not None)

    def moved(step):
        with torch.no_grad():
            for p, d in zip(parameters, direction):
                p += step * d
            value = loss()
            for p, d in zip(parameters, direction):
                p -= step * d
        return value

    slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
    assert abs(float(along)) > 1e-3
    torch.testing.assert_close(along, slope, rtol=1e-6, atol=1e-7)
