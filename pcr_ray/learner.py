"""The one training loop: stream -> recall -> loss -> step -> remember -> evaluate. No ray, no MLflow."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
import resource
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pcr_ray import metrics, models, seeds
from pcr_ray.checkpoints import NAME as CHECKPOINT
from pcr_ray.config import TrialConfig
from pcr_ray.datasets import data_root, prepare
from pcr_ray.device import check_precision, pick_device, rounding
from pcr_ray.errors import DivergedError, InputError
from pcr_ray.identity import identity
from pcr_ray.memory import Memory
from pcr_ray.methods import METHODS, Method
from pcr_ray.methods._base import nearest_mean
from pcr_ray.metrics import CLASSIFIERS, NCM, SOFTMAX, Training
from pcr_ray.stream import Stream


class Learner:
    """One trial. `run_task` until `done`; `state_dict` between tasks holds all that a continuation needs."""

    def __init__(
        self,
        config: TrialConfig,
        *,
        root: str | os.PathLike[str] | None = None,
        beside: str | os.PathLike[str] | None = None,
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        self.config = config
        self.device = pick_device(device)
        check_precision(self.device, config.precision)
        self._forget_peak_memory()
        data = prepare(config, data_root(root), Path(beside) if beside else None)
        method = METHODS.get(config.method)
        self.stream = Stream(config, data, self.device, iid=method.iid)
        self.fingerprint, self.class_names = data.fingerprint, data.class_names
        self.method = self._build(method, data.classes, data.mean, data.std)
        self.method.optimiser = self._optimiser()
        if compile:
            self.method.compile_loss()
        self.matrices: dict[str, metrics.Matrix] = {name: [] for name in CLASSIFIERS}
        self.training = Training([], [], [])
        self.proxy_gradients: list[list[float]] = []

    def _build(self, cls: type[Method], classes: int, mean: list[float], std: list[float]) -> Method:
        config = self.config
        init = seeds.derive(config.seed, "init")
        size = self.stream.image_shape[0]
        net = models.build(config.model, config.head, classes, config.gamma, init, pool=config.pool, image_size=size)
        net.bf16 = config.precision == "bf16"
        try:
            memory = Memory(config.buffer, self.stream.image_shape, config.seed, self.device)
        except RuntimeError as error:  # what torch raises where there is no room, on a CPU and on a GPU
            line = str(error).splitlines()[0]
            raise InputError(f"buffer: {config.buffer} images do not fit into memory ({line})") from None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds.derive(config.seed, "init/method"))
            return cls.create(config, net, memory, mean, std).to(self.device)

    def _optimiser(self) -> torch.optim.Optimizer:
        config = self.config
        parameters = [p for p in self.method.parameters() if p.requires_grad]
        common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "foreach": True}
        if config.optimiser == "sgd":
            return torch.optim.SGD(parameters, momentum=config.momentum, **common)
        beta1, beta2 = config.betas
        return torch.optim.Adam(parameters, betas=(beta1, beta2), **common)

    @property
    def tasks_done(self) -> int:
        return len(self.training.losses)

    @property
    def done(self) -> bool:
        return self.tasks_done == self.last_task

    @property
    def last_task(self) -> int:
        """Its number, from 1."""
        return self.config.stop_after or len(self.stream.tasks)

    def run_task(self, on_step: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Learn the next task, evaluate on all seen so far, and return this task's metrics."""
        with rounding(self.config.precision):
            self._learn_task(on_step)
            self._evaluate()
        self.training.memory.append(self._peak_memory() / 2**20)
        return self.task_metrics(self.tasks_done)

    def _learn_task(self, on_step: Callable[[], None]) -> None:
        task = self.stream.tasks[self.tasks_done]
        self.method.begin_task(task)
        self.method.train()
        self.method.proxy_gradients.zero_()
        started = time.perf_counter()
        # Everything about the loss stays on the device until the task is over.
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        first_bad = torch.full((), -1, device=self.device)
        steps = 0
        for batch in self.stream.batches(task.index):
            loss = self.method.step(batch)
            total += loss
            first_bad = torch.where((first_bad < 0) & ~loss.isfinite(), steps, first_bad)
            steps += 1
            on_step()
        if int(first_bad) >= 0:
            raise self._diverged("loss", int(first_bad) + 1)
        self.training.losses.append(float(total) / steps)
        self.training.seconds.append(time.perf_counter() - started)
        self.training.images.append(self.stream.samples(task.index))
        if self.config.proxy_gradients:
            self.proxy_gradients.append(self.method.proxy_gradients.tolist())
        self.method.end_task()

    def _diverged(self, what: str, step: int) -> DivergedError:
        c = self.config
        return DivergedError(
            f"the {what} became NaN or infinite at step {step} of task {self.method.task.index + 1}. "
            f"The likely cause is a learning rate that is too high for this setting "
            f"(optimiser {c.optimiser}, lr {c.lr:g}, gamma {c.gamma if c.gamma is None else round(c.gamma, 2)}, "
            f"batch size {c.batch_size}): try lr {c.lr / 10:g}"
        )

    @torch.no_grad()
    def _evaluate(self) -> None:
        """One pass of features over the seen tasks' test images serves both classifiers."""
        means = self.method.class_means()
        correct: dict[str, list[Tensor]] = {name: [] for name in CLASSIFIERS}
        finite, sizes = [], []
        for task in range(self.tasks_done):
            test_rows, labels = self.stream.test(task)
            features = self.method.embed(self.stream.images[test_rows])
            finite.append(features.isfinite().all())
            sizes.append(len(labels))
            correct[SOFTMAX.name].append((self.method.predict(features, means) == labels).sum())
            if means is not None:
                correct[NCM.name].append((nearest_mean(features, means) == labels).sum())
        if not torch.stack(finite).all():  # after a last step whose own loss was still finite
            raise self._diverged("network's output", self.stream.steps(self.method.task.index))
        for name, counts in correct.items():
            if counts:
                self.matrices[name].append([100 * c / n for c, n in zip(torch.stack(counts).tolist(), sizes)])

    def task_metrics(self, task: int) -> dict[str, Any]:
        """The numbers after task number `task` (from 1), as a tracker wants them."""
        last = task == self.last_task
        return {"task": task, **metrics.after_task(task, self.matrices, self.training, last=last)}

    def results(self) -> dict[str, Any]:
        """Everything known about the trial so far, in plain types. Accuracies are in percent."""
        seconds = sum(self.training.seconds)
        out: dict[str, Any] = {
            "config": self.config.model_dump(),
            "identity": identity(self.config),
            "data_fingerprint": self.fingerprint,
            "class_order": [self.class_names[c] for c in self.stream.class_order],
            "tasks_done": self.tasks_done,
        }
        for name, matrix in self.matrices.items():
            out |= metrics.of_classifier(matrix, CLASSIFIERS[name])
        out |= {
            "loss": self.training.losses,
            "seconds": self.training.seconds,
            "samples_per_second": sum(self.training.images) / seconds if seconds else None,
            "peak_memory_bytes": round(max(self.training.memory, default=0.0) * 2**20),
        }
        if self.config.proxy_gradients:
            out["proxy_gradients"] = self.proxy_gradients
        return out

    def _forget_peak_memory(self) -> None:
        """Workers run one trial after another: each counts its own."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def _peak_memory(self) -> int:
        """In bytes: of the GPU, else of the process. Where Linux does not tell, since the process began."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with contextlib.suppress(OSError):
            if found := re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()):
                return int(found[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def state_dict(self) -> dict[str, Any]:
        method = self.method
        return {
            "config": self.config.model_dump(),
            "data": self.fingerprint,
            "method": method.state_dict(),
            "extra": method.extra_state(),
            "optimiser": method.optimiser.state_dict(),
            "memory": method.memory.state_dict(),
            "stream_rng": method.stream_rng.get_state(),
            "memory_rng": method.memory_rng.get_state(),
            "matrices": self.matrices,
            "training": asdict(self.training),
            "proxy_gradients": self.proxy_gradients,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # What was added since the checkpoint was written has there the value that means "as before".
        params = {**self.method.Params.added, **state["config"]["params"]}
        theirs = {**TrialConfig.added, **state["config"], "params": params, "data": state["data"]}
        mine = {**self.config.model_dump(), "data": self.fingerprint}
        odd = [k for k in {**mine, **theirs} if k not in TrialConfig.labels and theirs.get(k) != mine.get(k)]
        if odd:
            differences = "; ".join(f"{k}={theirs.get(k)!r} there, {mine.get(k)!r} here" for k in odd)
            raise InputError(f"the checkpoint belongs to another trial: {differences}")
        # Copied: otherwise a state that never went through a file would go on changing with this learner.
        own = copy.deepcopy({k: v for k, v in state.items() if k not in ("method", "memory")})
        method = self.method
        method.load_state_dict(state["method"])
        method.load_extra_state(own["extra"])
        method.optimiser.load_state_dict(own["optimiser"])
        method.memory.load_state_dict(state["memory"])
        method.stream_rng.set_state(own["stream_rng"].cpu())
        method.memory_rng.set_state(own["memory_rng"].cpu())
        self.matrices, self.training = own["matrices"], Training(**own["training"])
        self.proxy_gradients = own["proxy_gradients"]

    def save(self, directory: Path) -> None:
        """Atomic: a crash leaves the previous checkpoint or the new one."""
        directory.mkdir(parents=True, exist_ok=True)
        scratch = directory / f".writing-{os.getpid()}"
        with scratch.open("wb") as file:
            torch.save(self.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(directory / CHECKPOINT)

    def load(self, directory: Path) -> bool:
        """Continue from a checkpoint if there is one. A disk or memory in trouble is no damage, and raised as it is."""
        file = directory / CHECKPOINT
        try:
            # Read apart from being understood: torch raises OSError for some files that were cut short, too.
            content = io.BytesIO(file.read_bytes())
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            raise InputError(f"checkpoint {file} is a folder: delete it to start over") from None
        try:
            self.load_state_dict(torch.load(content, map_location=self.device, weights_only=True))
        except InputError as error:
            raise InputError(f"{error}\n  It is {file}: name another folder, or delete it to start over") from None
        except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except Exception as error:  # torch raises many kinds for a damaged file
            if "can't allocate memory" in str(error):  # as torch says it on a CPU
                raise
            raise InputError(
                f"checkpoint {file} is damaged ({type(error).__name__}): delete it to start over"
            ) from None
        return True
