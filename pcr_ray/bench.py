"""What a step, its parts and a whole trial cost, against a plain script (benchmarks/plain.py) and the machine's peak.

Times vary from run to run; ratios are measured side by side, in turns, in one process.
python -m pcr_ray.bench [--short] [--json FILE] [METHOD ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pcr_ray import plugins
from pcr_ray.console import Parser, console, run
from pcr_ray.errors import InputError
from pcr_ray.study.resolve import resolve_or_exit

if TYPE_CHECKING:
    from pcr_ray.learner import Learner

Work = Callable[[], object]
CLASSES, SIZE = 10, 32  # random images of CIFAR10's size: nothing to download


def main(argv: Sequence[str]) -> int:
    p = Parser(prog="pcr-ray bench", description="Time steps, their parts and a trial, side by side.")
    p.add_argument("methods", nargs="*", metavar="METHOD", help="whose steps are timed (default: all)")
    p.add_argument("--model", default="reduced_resnet18")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="timed rounds of each (default: 10)")
    p.add_argument("--short", action="store_true", help="two rounds, and PCR alone: does it run, roughly how fast")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    p.add_argument("--device", default="auto")
    p.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (default: 1)")
    plugins.add_argument(p)
    options = p.parse_args(argv)
    plugins.load(options.plugins)
    if not 1 <= options.steps <= 1_000_000 or not 1 <= options.threads <= 1024:
        raise InputError("--steps needs a number from 1 to 1,000,000, --threads one from 1 to 1024")
    import torch

    from pcr_ray.methods import METHODS

    names = options.methods or (["pcr"] if options.short else METHODS.names())
    for name in names:
        METHODS.get(name)
    if options.short:
        options.steps = 2
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="pcr_ray-bench-") as folder:
        bench = Bench(options, Path(folder))
        rows = []
        for row in itertools.chain(*bench.parts(names)):
            rows.append(row)
            console.print(f"{row.part}: {row.case}, {row.ratio:.2f} x", highlight=False)
    console.print(drawn(rows), bench.title)
    if options.json:
        text = json.dumps({"machine": bench.machine, "rows": [asdict(r) for r in rows]}, indent=1)
        options.json.write_text(text + "\n")
    return 0


@dataclass
class Row:
    """One comparison: `ratio` is how often the first fits into the second."""

    part: str
    case: str
    milliseconds: float
    against: str
    their_milliseconds: float
    ratio: float  # median over the rounds of theirs / ours
    low: float  # the middle half of the rounds
    high: float
    peak: float | None = None  # share of the matmul peak
    operations: int | None = None  # on the device, per step


def drawn(rows: list[Row]) -> Table:
    """A ratio is theirs over ours: the median, and the middle half of the rounds."""
    table = Table(box=None)
    for name in ("what", "ms", "theirs", "ratio", "middle half", "peak", "operations"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    for r in rows:
        peak, operations = f"{r.peak:.0%}" if r.peak else "", str(r.operations or "")
        what = f"{r.part} {r.case}" + (f" ({r.against})" if r.against != "plain" else "")
        times = (f"{t:.0f}" if t >= 100 else f"{t:.2f}" for t in (r.milliseconds, r.their_milliseconds))
        table.add_row(what, *times, f"{r.ratio:.2f}", f"{r.low:.2f}-{r.high:.2f}", peak, operations)
    return table


class Bench:
    """Everything that is measured, one part after the other."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        import torch

        from pcr_ray.contract.datasets import random_splits, write_folder
        from pcr_ray.learner import pick_device

        self.options, self.folder, self.device = options, folder, pick_device(options.device)
        self.rounds = options.steps
        for classes in (CLASSES, 10 * CLASSES):
            names = [f"{c:03d}" for c in range(classes)]
            write_folder(
                folder / str(classes), random_splits(names, SIZE, train=400 // classes, test=max(1, 80 // classes))
            )
        on = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.processor() or "CPU"
        self.machine = {"torch": torch.__version__, "device": on, "threads": options.threads, "rounds": self.rounds}
        self.title = (
            f"torch {torch.__version__}, {on}, {options.threads} CPU thread, {options.model}, random images of "
            f"{SIZE} x {SIZE}, batch 10 + 10; {self.rounds} rounds"
        )

    def parts(self, methods: list[str]) -> Iterator[Iterator[Row]]:
        yield self.steps(methods)
        yield self.pieces()
        yield self.trial()
        if not self.options.short:
            yield self.growth()

    def steps(self, methods: list[str]) -> Iterator[Row]:
        """A step of each method beside the plain step of PCR and a product of matrices."""
        from pcr_ray.contract.operations import Operations, of_a_step

        plain = self.plain_step()
        for name in methods:
            step = self.step(name)
            with Operations() as seen:
                step()
            row = self.compare("step", name, step, "plain", plain)
            row.peak = seen.flops / (row.milliseconds / 1e3) / self.peak
            row.operations = of_a_step(self.folder, **self.fields(method=name)).total()
            yield row

    def pieces(self) -> Iterator[Row]:
        """Views of 20 images, 10 offered to the memory, 256 test images."""
        import numpy as np
        import torch

        from pcr_ray.augment import PIPELINES

        pipeline = PIPELINES["paper"]
        assert pipeline is not None
        images, rng = torch.rand(20, 3, SIZE, SIZE, device=self.device), torch.Generator()
        plain, arrays = self.plain(), np.random.default_rng(0).integers(0, 256, (256, SIZE, SIZE, 3), np.uint8)
        one_by_one = lambda: [plain.augment(x) for x in arrays[:20]]  # noqa: E731
        yield self.compare("augmentation", "batched", lambda: pipeline(images, rng), "PIL", one_by_one)
        learner = self.begun("pcr", buffer=1000)
        batch = next(learner.stream.batches(0))
        offer = lambda: [plain.remember(x, 0) for x in arrays[:10]]  # noqa: E731
        yield self.compare("memory", "10 offered", lambda: learner.method.remember(batch), "plain", offer)
        tests = torch.from_numpy(arrays).to(self.device)
        guess = lambda: learner.method.predict(learner.method.embed(tests), None)  # noqa: E731
        others = lambda: plain.accuracy(arrays, [0] * len(arrays), CLASSES)  # noqa: E731
        yield self.compare("evaluation", "256 images", guess, "plain", others)

    def trial(self) -> Iterator[Row]:
        """400 images in five tasks, evaluated after each: ours with both classifiers, the plain one with one."""
        rounds = 1 if self.options.short else 3
        yield self.compare("trial", "both heads", self.our_trial, "one head", self.plain_trial, rounds)

    def growth(self) -> Iterator[Row]:
        """A step of PCR in a larger setting beside one in the smallest; a ratio below 1 is what growth costs."""
        cases: dict[str, dict[str, Any]] = {
            "batch 20 + 20": {"batch_size": 20, "replay_batch_size": 20},
            "batch 40 + 40": {"batch_size": 40, "replay_batch_size": 40},
            "buffer 5,000": {"buffer": 5000},
            "100 classes": {"folder": str(self.folder / str(10 * CLASSES))},
            "10 tasks": {"tasks": 10},
        }
        for name, larger in cases.items():
            yield self.compare("growth", name, self.step("pcr", **larger), "base", self.step("pcr"))

    # How it is measured.

    def compare(self, part: str, case: str, ours: Work, against: str, theirs: Work, rounds: int | None = None) -> Row:
        if rounds is None:
            ours(), theirs()  # warm up
        pairs = [[self.seconds(work) for work in (ours, theirs)] for _ in range(rounds or self.rounds)]
        mine, other = (median(times) for times in zip(*pairs))
        ratios = sorted(b / a for a, b in pairs)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        return Row(part, case, 1e3 * mine, against, 1e3 * other, median(ratios), low, high)

    def seconds(self, work: Work) -> float:
        """By the device's own clock: one CPU thread's stands still while others have the core."""
        import torch

        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3
        clock = time.process_time if self.options.threads == 1 else time.perf_counter
        started = clock()
        work()
        return clock() - started

    @property
    def peak(self) -> float:
        """FLOP per second of a product of matrices, measured now."""
        import torch

        a = torch.rand(1024, 1024, device=self.device)
        return 2 * 1024**3 / min(self.seconds(lambda: a @ a) for _ in range(5))

    # What is measured.

    def fields(self, **more: Any) -> dict[str, Any]:
        common = {"dataset": "folder", "folder": str(self.folder / str(CLASSES)), "image_size": SIZE, "tasks": 5}
        return {**common, "model": self.options.model, "buffer": 100, "fraction": 1.0, **more}

    def learner(self, method: str, **more: Any) -> Learner:
        from pcr_ray.learner import Learner

        config = resolve_or_exit(self.fields(method=method, **more), "this cannot be timed")
        return Learner(config, root=self.folder, device=self.options.device)

    def begun(self, method: str, **more: Any) -> Learner:
        """In the middle task, with a memory of all classes so far: the work of some methods grows with them."""
        learner = self.learner(method, **more)
        learner.method.train()
        for task in learner.stream.tasks[: len(learner.stream.tasks) // 2 + 1]:
            if task.index:
                learner.method.end_task()
            learner.method.begin_task(task)
            for batch in itertools.islice(learner.stream.batches(task.index), 3):
                learner.method.step(batch)
        return learner

    def step(self, method: str, **more: Any) -> Work:
        learner = self.begun(method, **more)
        middle = learner.method.task.index
        full = [b for b in learner.stream.batches(middle) if len(b) == learner.config.batch_size]
        batches = itertools.cycle(full)
        return lambda: learner.method.step(next(batches))

    def plain(self) -> Any:
        try:
            from benchmarks.plain import PlainPCR
        except ModuleNotFoundError:
            raise InputError("the plain script is not installed: run `make bench` in a checkout") from None
        return PlainPCR(SIZE, CLASSES, 100)

    def plain_step(self) -> Work:
        plain, learner = self.plain(), self.learner("pcr")
        batches = [(b.images.cpu().numpy(), b.labels.tolist()) for b in learner.stream.batches(0)]
        for images, labels in batches:
            plain.step(images, labels)
        again = itertools.cycle(batches)
        return lambda: plain.step(*next(again))

    def our_trial(self) -> None:
        learner = self.learner("pcr")
        while not learner.done:
            learner.run_task()

    def plain_trial(self) -> None:
        """Reads what ours prepared, so that both start from arrays."""
        plain, stream = self.plain(), self.learner("pcr").stream
        for task in stream.tasks:
            for batch in stream.batches(task.index):
                plain.step(batch.images.cpu().numpy(), batch.labels.tolist())
            for earlier in range(task.index + 1):
                rows, labels = stream.test(earlier)
                plain.accuracy(stream.images[rows].cpu().numpy(), labels.tolist(), task.seen)


if __name__ == "__main__":
    sys.exit(run(main))
