"""What a person sees while a sweep runs: one live view on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pcr_ray.execution import forecast
from pcr_ray.execution.plan import Plan
from pcr_ray.text import duration
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status

LINE_EVERY = 15.0  # seconds between lines where there is no terminal


class Progress:
    """Counts trials and tasks; told of every event by the callback."""

    def __init__(self, console: Console, plan: Plan, courier: Courier) -> None:
        self.console, self.courier = console, courier
        self.trials, self.series = plan.todo, plan.study.spec.report.series
        self.done, self.failed, self.total = len(plan.done), len(plan.failed), len(plan.study.trials)
        self.running: dict[str, float | None] = {}  # identity -> accuracy so far
        self.finals: dict[str, list[float]] = defaultdict(list)
        self.started_at = time.monotonic()
        self._work = {identity: forecast.work(trial) for identity, trial in plan.todo.items()}
        self._left = dict(self._work)
        self._worked = 0.0
        self._last_line = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def started(self, identity: str) -> None:
        self.running.setdefault(identity, None)
        self._line()

    def task_done(self, identity: str, metrics: dict[str, Any]) -> None:
        self.running[identity] = metrics["average_accuracy"]
        if identity in self._left:  # else it had ended, and Tune started it again
            tasks = self.trials[identity].stop_after or self.trials[identity].tasks or 1
            self._worked += self._work[identity] / tasks
            self._left[identity] = self._work[identity] * max(0.0, 1 - metrics["task"] / tasks)
        if "final_accuracy" in metrics:
            self.finals[self._label(identity)].append(metrics["final_accuracy"])
        self._line()

    def ended(self, identity: str, status: Status, reason: str | None) -> None:
        self.running.pop(identity, None)
        self._left.pop(identity, None)
        self.done += status is Status.FINISHED
        self.failed += status is Status.FAILED
        if status is Status.FAILED:
            self.console.print(f"failed: {self._label(identity)} ({identity}): {reason}", markup=False, soft_wrap=True)
        self._line()

    def _label(self, identity: str) -> str:
        return str(self.trials[identity].flat().get(self.series, ""))

    def eta(self) -> float | None:
        """Seconds, from the pace of finished tasks since the start; a task counts by its method's cost and images."""
        if not self._worked:
            return None
        return (time.monotonic() - self.started_at) / self._worked * sum(self._left.values())

    def headline(self) -> str:
        eta = self.eta()
        text = (
            f"{self.done}/{self.total} trials done, {len(self.running)} running, {self.failed} failed; "
            f"{duration(time.monotonic() - self.started_at)} so far"
        )
        text += f", about {duration(eta)} left" if eta is not None and self.done < self.total else ""
        return text + (
            f"; MLflow is away, numbers wait on disk ({self.courier.trouble})" if self.courier.trouble else ""
        )

    def _line(self) -> None:
        now = time.monotonic()
        if not self._live and now - self._last_line >= LINE_EVERY:
            self._last_line = now
            best = max(self.finals, key=lambda s: fmean(self.finals[s]), default=None)
            note = f"; best so far: {best} {fmean(self.finals[best]):.1f}" if best else ""
            self.console.print(self.headline() + note, markup=False, soft_wrap=True)

    def __rich__(self) -> Group:
        table = Table(box=None, padding=(0, 2))
        for name in (self.series, "finished", "mean final accuracy", "running now", "mean accuracy so far"):
            table.add_column(name, justify="left" if name == self.series else "right")
        running: dict[str, list[float | None]] = defaultdict(list)
        for identity, accuracy in list(self.running.items()):
            running[self._label(identity)].append(accuracy)
        means = {s: fmean(v) for s, v in list(self.finals.items())}  # a copy: this runs in the view's own thread
        best = max(means, key=means.__getitem__, default=None)
        for label in sorted({*means, *running}, key=lambda s: -means.get(s, 0)):
            so_far = [a for a in running[label] if a is not None]
            mean = f"{means[label]:.1f}" if label in means else ""
            cells = (label, str(len(self.finals.get(label, []))), mean, str(len(running[label])))
            table.add_row(*cells, f"{fmean(so_far):.1f}" if so_far else "", style="bold" if label == best else "")
        return Group(Text(self.headline()), table)
