"""What a step costs: every method against ER, and batched augmentation against torchvision image by image.

Times vary from run to run; ratios are measured side by side, in turns, in one process.
python -m pcr_ray.bench [--dataset cifar10] [METHOD ...]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

from rich.table import Table

from pcr_ray import plugins
from pcr_ray.console import Parser, console, run
from pcr_ray.errors import InputError
from pcr_ray.study.resolve import resolve_or_exit


def main(argv: Sequence[str]) -> int:
    p = Parser(prog="pcr-ray bench", description="Time a step of each method against one of ER.")
    p.add_argument("methods", nargs="*", metavar="METHOD", help="default: all")
    p.add_argument("--dataset", default="digits", help="decides the image size and number of classes")
    p.add_argument("--model", default="reduced_resnet18")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="timed steps of each (default: 10)")
    p.add_argument("--data-root", metavar="DIR")
    p.add_argument("--device", default="auto")
    p.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (default: 1)")
    plugins.add_argument(p)
    options = p.parse_args(argv)
    plugins.load(options.plugins)
    if not 1 <= options.steps <= 1_000_000 or not 1 <= options.threads <= 1024:
        raise InputError("--steps needs a number from 1 to 1,000,000, --threads one from 1 to 1024")
    import torch

    from pcr_ray.learner import pick_device
    from pcr_ray.methods import METHODS

    torch.set_num_threads(options.threads)
    # One CPU thread is timed by its own clock, which stands still while others have the core.
    alone = options.threads == 1 and pick_device(options.device).type == "cpu"
    clock = time.process_time if alone else time.perf_counter
    names = options.methods or [n for n in METHODS.names() if n != "er"]
    for name in names:
        METHODS.get(name)
    console.print(
        f"torch {torch.__version__}, {options.dataset}, {options.model}, batch 10 + 10, {options.threads} thread, "
        f"median of {options.steps} steps in the middle task"
    )
    table = Table()
    for column in ("method", "ms per step", "ms per step of ER beside it", "ratio"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in names:
        mine, base = in_turns([stepper(n, options) for n in (name, "er")], options.steps, clock)
        table.add_row(name, f"{1e3 * mine:.1f}", f"{1e3 * base:.1f}", f"{mine / base:.2f}")
    console.print(table)
    batched, single = in_turns(augmenters(options.dataset), options.steps, clock)
    console.print(
        f"augmenting 20 images: batched {1e3 * batched:.2f} ms, torchvision one by one {1e3 * single:.2f} ms, "
        f"ratio {single / batched:.1f}"
    )
    return 0


def in_turns(functions: list[Callable[[], object]], count: int, clock: Callable[[], float]) -> list[float]:
    """Median seconds of each, called alternately, so that a busy machine disturbs all alike."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(count):
        for function, record in zip(functions, times):
            started = clock()
            function()
            record.append(clock() - started)
    return [median(t) for t in times]


def stepper(method: str, options: argparse.Namespace) -> Callable[[], object]:
    """A training step in the middle task, with a full batch and a memory of all classes so far to draw from.

    In the middle, because the work of some methods grows with the classes seen.
    """
    import torch

    from pcr_ray.learner import Learner

    raw = {"dataset": options.dataset, "model": options.model, "method": method, "buffer": 100}
    learner = Learner(resolve_or_exit(raw, "this cannot be timed"), root=options.data_root, device=options.device)
    method_ = learner.method
    method_.train()
    middle = len(learner.stream.tasks) // 2
    for task in learner.stream.tasks[: middle + 1]:
        if task.index:
            method_.end_task()
        method_.begin_task(task)
        for batch in itertools.islice(learner.stream.batches(task.index), 3 if task.index else 12):
            method_.step(batch)
    batches = itertools.cycle(b for b in learner.stream.batches(middle) if len(b) == 10)

    def step() -> None:
        method_.step(next(batches))
        if learner.device.type == "cuda":
            torch.cuda.synchronize()

    return step


def augmenters(dataset: str) -> list[Callable[[], object]]:
    """Ours on a batch of 20, and torchvision's transforms of the same pipeline on each of them."""
    import torch
    from torchvision.transforms import v2

    from pcr_ray.augment import Augmentation
    from pcr_ray.datasets import DATASETS

    size = DATASETS.get(dataset).image_size or 32
    images, rng, ours = torch.rand(20, 3, size, size), torch.Generator(), Augmentation()
    theirs = v2.Compose(
        [
            v2.RandomResizedCrop(size, ours.scale, ours.ratio),
            v2.RandomHorizontalFlip(ours.flip),
            v2.RandomApply([v2.ColorJitter(ours.brightness, ours.contrast, ours.saturation, ours.hue)], ours.jitter),
            v2.RandomGrayscale(ours.grey),
        ]
    )
    return [lambda: ours(images, rng), lambda: torch.stack([theirs(image) for image in images])]


if __name__ == "__main__":
    sys.exit(run(main))
