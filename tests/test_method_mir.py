"""MIR against taking the step for real and measuring every loss; and the look ahead that it shares with others."""

from __future__ import annotations

import pytest
import torch

from pcr_ray.methods._virtual import outputs_with
from tests.methods_support import cross_entropies, exact, fresh, scaled, twin, warmed


def unmoved(method):
    """Scoring that leaves the running statistics alone."""
    return {} if method == "gmed" else {"params": {"move_statistics": False}}


def buffers(method):
    """Running statistics; the count of batches is not used by any of them."""
    return {n: b.clone() for n, b in method.named_buffers() if "num_batches" not in n}


@pytest.mark.parametrize("method", ["mir", "er_dvc", "gmed"])
def test_look_ahead_gives_the_parameters_that_a_real_step_on_the_stream_gives(root, method):
    learner, batch = warmed(root, method)
    other = twin(learner, root)
    ahead = learner.method.look_ahead(batch)
    other.learn(batch, None)  # plain SGD, the same augmented views
    for name, parameter in other.net.named_parameters():
        torch.testing.assert_close(ahead[name], parameter.detach(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("batchnorm", ["separate", "joint", "views"])
@pytest.mark.parametrize("method", ["mir", "er_dvc", "gmed"])
def test_a_step_is_one_on_the_stream_and_the_chosen_replay_together(root, method, batchnorm):
    """However the look ahead and the step share their work: against one loss and one backward pass over both."""
    learner, batch = warmed(root, method, batchnorm=batchnorm, **unmoved(method))
    m, plain = learner.method, twin(learner, root)
    chosen = twin(learner, root).recall(batch)
    loss, expected = m.step(batch), plain.learn(batch, chosen)
    torch.testing.assert_close(loss, expected)
    parameters = dict(plain.named_parameters())
    for name, parameter in m.named_parameters():
        torch.testing.assert_close(parameter, parameters[name], rtol=0, atol=1e-6)
    statistics = buffers(plain)
    for name, values in buffers(m).items():
        if "running" in name:
            torch.testing.assert_close(values, statistics[name])
    for rng in ("stream_rng", "memory_rng"):
        assert torch.equal(getattr(m, rng).get_state(), getattr(plain, rng).get_state())


@pytest.mark.parametrize("method", ["mir", "er_dvc", "gmed"])
def test_choosing_replay_leaves_network_statistics_and_stream_views_alone_where_the_step_starts_afresh(root, method):
    learner, batch = warmed(root, method, batchnorm="joint", **unmoved(method))
    m = learner.method
    parameters, before = [p.detach().clone() for p in m.parameters()], buffers(m)
    views = m.stream_rng.get_state()
    m.recall(batch)
    assert all(torch.equal(a, b) for a, b in zip(parameters, m.parameters()))
    assert all(torch.equal(b, before[n]) for n, b in buffers(m).items())
    assert torch.equal(views, m.stream_rng.get_state())


@pytest.mark.parametrize("method", ["mir", "er_dvc", "gmed"])
def test_what_was_found_for_one_batch_is_not_used_for_another(root, method):
    learner, batch = warmed(root, method)
    other = twin(learner, root)
    following = list(learner.stream.batches(1))[-1]
    assert not torch.equal(following.images, batch.images)
    chosen = learner.method.recall(batch)
    learner.method.stream_rng.set_state(other.stream_rng.get_state())
    torch.testing.assert_close(learner.method.learn(following, chosen), other.learn(following, chosen))


def test_mir_replays_the_candidates_whose_loss_the_step_raises_most(root):
    learner, batch = warmed(root, "mir", params={"candidates": 20}, replay_batch_size=6)
    other = twin(learner, root)
    candidates = other.memory.sample(20)  # the same generator: the same candidates
    images, seen = scaled(candidates.images), other.task.seen
    before = cross_entropies(exact(other.net)(images, logits=True), candidates.labels, seen)
    other.learn(batch, None)
    after = cross_entropies(exact(other.net)(images, logits=True), candidates.labels, seen)
    rise = torch.stack(after) - torch.stack(before)
    ranked = sorted(range(20), key=lambda i: -rise[i])
    assert rise[ranked[5]] - rise[ranked[6]] > 1e-4  # the cut is clear of rounding
    chosen = learner.method.recall(batch)
    assert sorted(chosen.slots.tolist()) == sorted(candidates.slots[ranked[:6]].tolist())
    assert torch.equal(chosen.images, learner.method.memory.images[chosen.slots])
    assert torch.equal(chosen.labels, learner.method.memory.labels[chosen.slots])


def test_outputs_with_other_parameters_are_those_of_a_network_that_has_them(root):
    learner, batch = warmed(root, "mir")
    net, images = learner.method.net, learner.method.pixels(batch.images)
    shifted = {n: p.detach() + 0.01 for n, p in net.named_parameters()}
    features, logits = outputs_with(net, shifted, images)
    net.load_state_dict(shifted, strict=False)
    torch.testing.assert_close(features, net(images))
    torch.testing.assert_close(logits, net(images, logits=True))


@pytest.mark.parametrize("method", ["mir", "er_dvc"])
def test_scoring_moves_the_running_statistics_unless_told_not_to(root, method):
    """Then they are those of a network that sees the stream, the candidates and the replay, in this order."""
    learner, batch = warmed(root, method)
    m, still, seeing = learner.method, twin(learner, root), twin(learner, root)
    still.params = still.params.model_copy(update={"move_statistics": False})
    candidates = twin(learner, root).memory.sample(50)  # the same generator: the same candidates
    chosen = twin(learner, root).recall(batch)
    with torch.no_grad():
        for images in (seeing.views(batch)[0].images, seeing.pixels(candidates.images), seeing.views(chosen)[0].images):
            seeing.net(images)
    torch.testing.assert_close(m.step(batch), still.step(batch))
    expected, without = buffers(seeing.net), buffers(still.net)
    for name, values in buffers(m.net).items():
        torch.testing.assert_close(values, expected[name], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(values, without[name], rtol=1e-4, atol=1e-5)
    for a, b in zip(m.parameters(), still.parameters(), strict=True):
        assert torch.equal(a, b)


def test_mir_replays_nothing_from_an_empty_memory_and_all_of_a_small_one(root):
    learner = fresh(root, "mir", replay_batch_size=15)
    method = learner.method
    method.begin_task(learner.stream.tasks[0])
    batch, following = list(learner.stream.batches(0))[:2]
    assert method.recall(batch) is None
    method.remember(batch)
    assert sorted(method.recall(following).slots.tolist()) == list(range(10))


def test_mir_replays_as_many_as_asked_when_that_is_more_than_the_candidates(root):
    learner, batch = warmed(root, "mir", params={"candidates": 3}, replay_batch_size=12)
    assert len(learner.method.recall(batch)) == 12


def test_mir_leaves_out_the_current_task_when_told_to(root):
    learner, batch = warmed(root, "mir", (4, 3), replay_current=False, replay_batch_size=5)
    method = learner.method
    assert (method.memory.labels >= method.task.old).any()
    assert (method.recall(batch).labels < method.task.old).all()
