"""The benchmark: what it compares does the same, and what it counts is right. No time is held to anything."""

import argparse

import pytest
import torch

from benchmarks.plain import PlainPCR
from pcr_ray.bench import Bench, drawn
from pcr_ray.cli import main
from pcr_ray.console import console, run
from pcr_ray.methods.pcr import pcr_loss


def test_the_plain_script_has_the_same_loss():
    torch.manual_seed(0)
    plain, features, labels = PlainPCR(8, 6, 10), torch.randn(12, 160), torch.randint(0, 5, (12,))
    logits = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(plain.proxies).T / 0.09
    torch.testing.assert_close(plain.loss(features, labels), pcr_loss(logits, labels))


def test_steps_are_compared_with_the_plain_one(tmp_path, capsys):
    options = argparse.Namespace(device="cpu", threads=1, steps=1, short=True, model="reduced_resnet18")
    bench = Bench(options, tmp_path)
    slow, fast = bench.steps(["scr", "finetune"])  # 40 images per step and 20
    assert slow.ratio < fast.ratio
    assert all(0 < row.peak < 1 for row in (slow, fast))
    assert 0 < fast.operations < slow.operations
    assert slow.milliseconds * slow.ratio == pytest.approx(slow.their_milliseconds)
    console.print(drawn([slow, fast]))
    assert "step finetune" in capsys.readouterr().out


def test_a_name_that_is_none_is_refused(capsys):
    assert run(main, ["bench", "fintune"]) == 2
    assert "did you mean 'finetune'" in capsys.readouterr().err
