"""`precision`: what torch is told, for one trial and no longer; where it cannot be had, and what it leaves in float32.

No GPU is needed: what stands for one is said in each test.
"""

import pytest
import torch

from pcr_ray import device as device_module
from pcr_ray.device import check_precision, rounding, send
from pcr_ray.errors import InputError
from pcr_ray.identity import identity
from pcr_ray.learner import Learner
from pcr_ray.methods import METHODS
from pcr_ray.models import build
from pcr_ray.study.resolve import resolve


def switches():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_cpu_refuses_lower_precisions_in_one_line(precision, root):
    with pytest.raises(InputError, match=f"^precision: '{precision}' needs a GPU, and this trial runs on the CPU; use"):
        Learner(resolve({"precision": precision}), root=root, device="cpu")


@pytest.mark.parametrize(("capability", "refused"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_a_gpu_before_ampere_refuses_them_too(capability, refused, monkeypatch):
    """A made-up GPU: Turing has neither TF32 nor bfloat16 in its tensor cores."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    gpu = torch.device("cuda", 0)
    check_precision(gpu, "float32")
    for precision in ("tf32", "bf16"):
        if refused:
            with pytest.raises(InputError, match=f"'{precision}' needs a GPU from Ampere on, and this is Old GPU"):
                check_precision(gpu, precision)
        else:
            check_precision(gpu, precision)


@pytest.mark.parametrize(("precision", "tf32"), [("float32", False), ("tf32", True), ("bf16", False)])
def test_both_switches_are_set_for_a_trial_and_put_back(precision, tf32):
    before = switches()
    with pytest.raises(KeyError), rounding(precision):
        assert switches() == (tf32, tf32)
        raise KeyError  # a trial that fails leaves nothing behind either
    assert switches() == before


def test_torch_itself_rounds_convolutions_to_tf32(root):
    """The reason why float32 has to be asked for; a worker's process starts like this."""
    code = "import torch; print(torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)"
    import subprocess
    import sys

    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "True"]


def test_the_switches_hold_for_steps_and_evaluation_and_no_longer(root, monkeypatch):
    """The CPU passes for a GPU: it ignores the switches."""
    monkeypatch.setattr("pcr_ray.learner.check_precision", lambda device, precision: None)
    found = []
    for method in ("embed", "step"):
        plain = getattr(METHODS.get("er"), method)
        monkeypatch.setattr(
            METHODS.get("er"), method, lambda *a, f=plain, m=method: (found.append((m, switches())), f(*a))[1]
        )
    before = switches()
    for precision, tf32 in (("tf32", True), ("float32", False)):
        found.clear()
        config = resolve({"method": "er", "fraction": 0.05, "buffer": 20, "precision": precision})
        Learner(config, root=root, device="cpu").run_task()
        assert {m for m, _ in found} == {"embed", "step"} and {s for _, s in found} == {(tf32, tf32)}
        assert switches() == before


def test_finished_trials_keep_their_identity_and_others_are_new():
    assert identity(resolve({"precision": "float32"})) == identity(resolve({})) == "b5ac9b0c30f50f29"  # pinned
    assert len({identity(resolve({"precision": p})) for p in ("float32", "tf32", "bf16")}) == 3


def test_a_checkpoint_of_before_belongs_to_float32(root, monkeypatch):
    learner = Learner(resolve({"fraction": 0.05}), root=root, device="cpu")
    state = learner.state_dict()
    del state["config"]["precision"]
    learner.load_state_dict(state)
    monkeypatch.setattr("pcr_ray.learner.check_precision", lambda device, precision: None)
    other = Learner(resolve({"fraction": 0.05, "precision": "tf32"}), root=root, device="cpu")
    with pytest.raises(InputError, match="precision='float32' there, 'tf32' here"):
        other.load_state_dict(state)


def test_bf16_is_an_autocast_around_the_backbone_alone(monkeypatch):
    """The backbone is replaced: convolutions in bfloat16 end the process on some CPUs."""
    net = build("reduced_resnet18", "cosine", 10, 10.0, 0, image_size=8)
    seen = []

    def backbone(x, parts):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return x.flatten(1)[:, :160].to(torch.bfloat16 if net.bf16 else x.dtype)

    def head(z):
        seen.append((torch.is_autocast_enabled("cpu"), z.dtype))
        return z

    monkeypatch.setattr(net.backbone, "forward", backbone)
    monkeypatch.setattr(net.head, "forward", head)
    images = torch.rand(2, 3, 8, 8)
    for bf16 in (True, False):
        net.bf16 = bf16
        assert net(images).dtype == net(images, logits=True).dtype == torch.float32
    assert seen[0] == seen[1] == (True, torch.bfloat16) and seen[2] == (False, torch.float32)
    assert [on for on, _ in seen[3:]] == [False] * 3
    assert all(p.dtype == torch.float32 for p in net.parameters())


def test_the_learner_tells_the_network(root, monkeypatch):
    monkeypatch.setattr("pcr_ray.learner.check_precision", lambda device, precision: None)
    for precision in ("bf16", "tf32", "float32"):
        learner = Learner(resolve({"method": "ocm", "fraction": 0.05, "precision": precision}), root=root, device="cpu")
        assert learner.method.net.bf16 == learner.method.teacher[0].bf16 == (precision == "bf16")


def test_batchnorm_of_bfloat16_parts_keeps_statistics_in_float32():
    norm = build("reduced_resnet18", "cosine", 10, 10.0, 0, image_size=8).backbone.stem[1].train()
    x = (3 + torch.randn(9, norm.num_features, 4, 4, generator=torch.Generator().manual_seed(0))).bfloat16()
    x.requires_grad_()
    out = norm(x, [5, 4])
    out.float().square().sum().backward()
    exact = x.detach().double()
    parts = [(p - p.mean((0, 2, 3), keepdim=True)) / (p.var((0, 2, 3), keepdim=True, correction=0) + norm.eps).sqrt()
             for p in exact.split([5, 4])]  # fmt: skip
    assert out.dtype == x.grad.dtype == torch.bfloat16 and norm.weight.grad.dtype == torch.float32
    torch.testing.assert_close(out.double(), torch.cat(parts), rtol=2**-8, atol=2**-8)
    # 0 moved by a tenth towards each part's mean: in float32, as 1e-5 of 3 would be lost in bfloat16.
    means = [p.mean((0, 2, 3)) for p in exact.split([5, 4])]
    torch.testing.assert_close(norm.running_mean.double(), 0.9 * 0.1 * means[0] + 0.1 * means[1], rtol=1e-5, atol=0)


def test_only_a_gpu_gets_pinned_copies(monkeypatch):
    """A tensor that notes what is done with it stands for the copy to a GPU."""
    done = []

    class Noted:
        def pin_memory(self):
            done.append("pinned")
            return self

        def to(self, device, non_blocking):
            done.append((device.type, non_blocking))

    send(Noted(), torch.device("cpu"))
    send(Noted(), torch.device("cuda", 0))
    assert done == [("cpu", True), "pinned", ("cuda", True)]
    assert device_module.send(torch.arange(3), torch.device("cpu")).tolist() == [0, 1, 2]
