"""The command that runs one trial: what it writes, how it continues after a kill, and how it refuses."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from PIL import Image

import pcr_ray
from pcr_ray.console import run
from pcr_ray.identity import identity
from pcr_ray.learner import CHECKPOINT
from pcr_ray.study.resolve import resolve
from pcr_ray.train import main

REPOSITORY = Path(pcr_ray.__file__).parent.parent
TRIAL = ["--dataset", "digits", "--method", "pcr", "--buffer", "100", "--fraction", "0.15", "--seed", "1"]
QUICK = ["--method", "er", "--fraction", "0.02", "--tasks", "2"]


def command(root, *options):
    return [sys.executable, "-m", "pcr_ray.train", "--data-root", str(root), *map(str, options)]


def train(root, *options):
    """A process of its own, as a person starts it."""
    return subprocess.run(command(root, *options), cwd=REPOSITORY, capture_output=True, text=True, timeout=600)


@pytest.fixture
def here(root, capsys):
    """The same command in this process: exit code and what it said."""

    def call(*options):
        code = run(main, ["--data-root", str(root), *map(str, options)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture(scope="module")
def results(root, tmp_path_factory):
    """One undisturbed run each."""
    found = {}
    for method in ("pcr", "finetune"):
        file = tmp_path_factory.mktemp("json") / "out.json"
        finished = train(root, *TRIAL, "--method", method, "--json", file)
        assert finished.returncode == 0, finished.stderr
        found[method] = json.loads(file.read_text())
    return found


# What it measures


@pytest.mark.parametrize("prefix", ["", "ncm_"])
def test_the_json_holds_the_papers_metrics_in_percent(prefix, results):
    result = results["pcr"]
    matrix = result[prefix + "accuracy_matrix"]
    assert [len(row) for row in matrix] == [1, 2, 3, 4, 5]
    assert all(0 <= a <= 100 for row in matrix for a in row)
    assert result[prefix + "average_accuracy"] == pytest.approx([sum(row) / len(row) for row in matrix])
    assert result[prefix + "new_accuracy"] == [matrix[i][i] for i in range(5)]
    old = result[prefix + "old_accuracy"]
    assert old[0] is None
    assert old[1:] == pytest.approx([fmean(matrix[i][j] for j in range(i)) for i in range(1, 5)])
    lost = [max(matrix[i][j] for i in range(j, 5)) - matrix[4][j] for j in range(5)]
    assert result[prefix + "forgetting"][4] == pytest.approx(sum(lost) / 5)
    assert result[prefix + "final_accuracy"] == result[prefix + "average_accuracy"][4] > 30


def test_the_json_says_which_trial_it_was_and_how_fast(results):
    options = dict(zip((o.removeprefix("--") for o in TRIAL[::2]), TRIAL[1::2]))
    config = resolve(options, strict=False)
    assert results["pcr"]["config"] == config.model_dump()
    assert results["pcr"]["identity"] == identity(config)
    assert results["pcr"]["samples_per_second"] > 0
    assert len(results["pcr"]["loss"]) == 5
    assert results["pcr"]["threads"] == 1 and results["pcr"]["device"]


def test_one_thread_is_the_default_and_is_said(here):
    assert "1 thread" in here(*QUICK)[1] and "2 threads" in here(*QUICK, "--threads", "2")[1]
    torch.set_num_threads(1)


def test_a_method_without_memory_has_no_class_means(results):
    assert results["finetune"]["ncm_accuracy_matrix"] == []
    assert results["finetune"]["ncm_final_accuracy"] is None


def test_pcr_clearly_beats_fine_tuning(results):
    assert results["pcr"]["final_accuracy"] > results["finetune"]["final_accuracy"] + 25


def test_the_same_command_twice_gives_the_same_numbers(here, tmp_path):
    for name in ("a", "b"):
        assert here(*QUICK, "--json", tmp_path / name)[0] == 0
    a, b = (json.loads((tmp_path / name).read_text()) for name in "ab")
    clock = {"seconds", "samples_per_second", "peak_memory_bytes"}
    assert {k: v for k, v in a.items() if k not in clock} == {k: v for k, v in b.items() if k not in clock}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


# Checkpoints


def test_a_killed_run_continues_to_the_same_accuracies_bit_for_bit(root, results, tmp_path):
    folder, file = tmp_path / "deep" / "checkpoint", tmp_path / "out.json"
    process = subprocess.Popen(command(root, *TRIAL, "--checkpoint", folder), cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    while not (folder / CHECKPOINT).exists():
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    state = torch.load(folder / CHECKPOINT, weights_only=True)
    assert 1 <= len(state["training"]["losses"]) < 5

    continued = train(root, *TRIAL, "--checkpoint", folder, "--json", file)
    assert continued.returncode == 0, continued.stderr
    assert f"continuing after task {len(state['training']['losses'])}" in continued.stdout
    result = json.loads(file.read_text())
    for key in ("accuracy_matrix", "ncm_accuracy_matrix", "loss", "class_order"):
        assert result[key] == results["pcr"][key]


@pytest.fixture(scope="module")
def finished(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert run(main, ["--data-root", str(root), *QUICK, "--checkpoint", str(folder)]) == 0
    return folder


def test_a_finished_run_is_not_run_again(here, finished, tmp_path):
    before = (finished / CHECKPOINT).stat().st_mtime_ns
    code, out, _ = here(*QUICK, "--checkpoint", finished, "--json", tmp_path / "out.json")
    assert code == 0
    assert "continuing after task 2" in out
    assert (finished / CHECKPOINT).stat().st_mtime_ns == before
    assert len(json.loads((tmp_path / "out.json").read_text())["accuracy_matrix"]) == 2


def test_the_checkpoint_of_another_trial_is_refused_with_the_fields_that_differ(here, finished):
    code, _, err = here(*QUICK, "--lr", "0.2", "--seed", "4", "--checkpoint", finished)
    assert code == 2
    assert "lr=0.1 there, 0.2 here; seed=0 there, 4 here" in err
    assert "buffer" not in err


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "another file", "a part is missing", "folder"])
def test_a_damaged_checkpoint_is_refused(damage, here, finished, tmp_path):
    file = tmp_path / CHECKPOINT
    content = (finished / CHECKPOINT).read_bytes()
    if damage == "folder":
        file.mkdir()
    elif damage in ("another file", "a part is missing"):
        state = torch.load(finished / CHECKPOINT, weights_only=True)
        del state["optimiser"]
        torch.save([1, 2] if damage == "another file" else state, file)
    else:
        file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"not a checkpoint\n"}[damage])
    code, _, err = here(*QUICK, "--checkpoint", tmp_path)
    assert code == 2
    assert str(file) in err
    assert "delete it to start over" in err


def test_a_checkpoint_of_other_images_is_refused(here, tmp_path):
    rng = np.random.default_rng(0)
    files = [tmp_path / "images" / s / c / f"{i}.png" for s in ("train", "test") for c in "ab" for i in range(2)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
    trial = ["--dataset", "folder", "--folder", tmp_path / "images", "--image-size", "16", "--tasks", "2"]
    assert here(*trial, "--checkpoint", tmp_path / "checkpoint")[0] == 0
    shutil.copy(files[1], files[0].with_name("more.png"))
    code, _, err = here(*trial, "--checkpoint", tmp_path / "checkpoint")
    assert code == 2
    assert "another trial: data=" in err


# What it refuses


def test_all_bad_values_are_named_in_one_message_without_a_traceback(root):
    refused = train(root, "--method", "pcrr", "--lr", "fast", "--buffer", "-5", "--batch-size", "1.5", "--betas", "1,2",
                    "--dataset", "digit", "--normalise", "--optimiser", "sgdd")  # fmt: skip
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
    lines = refused.stderr.splitlines()
    assert lines[0] == "error: this trial cannot be run: 8 problems"
    fields = ["buffer", "batch_size", "optimiser", "lr", "betas.0", "betas.1", "dataset", "method"]
    assert [line.split(":")[0] for line in lines[1:]] == [f"  - {field}" for field in fields]
    assert "did you mean 'pcr'" in lines[-1]


def test_a_loss_that_diverges_ends_in_one_message_with_the_step_and_the_cause(root):
    diverged = train(root, "--method", "er", "--fraction", "0.1", "--lr", "1e30")
    assert diverged.returncode == 1
    assert "Traceback" not in diverged.stderr
    assert "the loss became NaN or infinite at step 2 of task 1" in diverged.stderr
    assert "learning rate" in diverged.stderr
    assert "lr 1e+30" in diverged.stderr


def test_a_network_that_diverges_in_a_tasks_last_step_is_seen_too(here):
    code, _, err = here("--method", "er", "--fraction", "0.02", "--lr", "1e30", "--batch-size", "100")
    assert code == 1
    assert "the network's output became NaN or infinite at step 1 of task 1" in err


def test_parameters_are_read_as_typed_also_where_yaml_sees_text(here, tmp_path):
    file = tmp_path / "out.json"
    typed = ["--params", "alpha=1e-1", "beta=1"]
    code, _, err = here("--method", "derpp", "--fraction", "0.02", "--tasks", "1", *typed, "--json", file)
    assert (code, err) == (0, "")
    assert json.loads(file.read_text())["config"]["params"] == {"alpha": 0.1, "beta": 1.0}


REFUSED = {
    "absent dataset": (["--dataset", "mini_imagenet"], "looked for"),
    "absent folder": (["--dataset", "folder", "--folder", "x", "--image-size", "16", "--tasks", "1"], "does not exist"),
    "unknown device": (["--device", "nonsense"], "'nonsense' is not one of auto, cpu, cuda, cuda:N"),
    "device nobody has": (["--device", "mps"], "'mps' is not one of"),
    "GPU beyond the last": (["--device", "cuda:999"], "use --device auto or cpu"),
    "json in a missing folder": (["--json", "no/such/folder/out.json"], "not a file in an existing folder"),
    "json is a folder": (["--json", "."], "not a file in an existing folder"),
    "json where nothing can be written": (["--json", "/proc/out.json"], "--json: nothing can be written into /proc"),
    "checkpoint where nothing can be written": (["--checkpoint", "/proc/self"], "--checkpoint: nothing can be written"),
    "checkpoint below a file": (["--checkpoint", f"{__file__}/x"], "cannot be a folder"),
    "checkpoint is a file": (["--checkpoint", __file__], "cannot be a folder"),
    "no threads": (["--threads", "0"], "needs a number from 1 to 1024"),
    "parameter without a value": (["--params", "alpha"], "write NAME=VALUE"),
    "parameter that is no YAML": (["--params", "alpha=["], "alpha"),
    "parameter of another type": (["--method", "mir", "--params", "candidates=true"], "params.candidates"),
    "parameter of another method": (["--params", "alpha=1", "beta=2"], "params.beta"),
    "memory beyond all bounds": (["--buffer", "1000000000000"], "buffer"),
    "more tasks than classes": (["--tasks", "11"], "10 classes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_command_that_cannot_work_is_refused_before_it_starts(what, here):
    options, message = REFUSED[what]
    code, out, err = here(*options)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert "task 1" not in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(here):
    code, _, err = here("--device", "cuda")
    assert code == 2
    assert "torch sees no GPU; use --device auto or cpu" in err


def test_paths_with_brackets_are_written_as_they_are(here, tmp_path):
    file = tmp_path / "[" / "bold] [red]" / "out.json"
    file.parent.mkdir(parents=True)
    code, out, _ = here(*QUICK, "--json", file)
    assert code == 0
    assert f"written to {file}" in out
