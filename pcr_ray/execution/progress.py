"""What a person sees while a sweep runs: one live view on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pcr_ray.execution import forecast
from pcr_ray.execution.board import LEGEND, Board, bar_of
from pcr_ray.execution.plan import Plan
from pcr_ray.text import count, duration
from pcr_ray.tracking.courier import Courier
from pcr_ray.tracking.runs import Status

LINE_EVERY = 15.0  # seconds between lines where there is no terminal
RETRY = "run the same command with --rerun failed to try failed trials again"


class Progress:
    """Counts trials and tasks; told of every event by the callback."""

    def __init__(self, console: Console, plan: Plan, courier: Courier) -> None:
        self.console, self.courier, self.study = console, courier, plan.study
        self.trials = plan.todo
        self.done, self.failed, self.total = len(plan.done), len(plan.failed), len(plan.study.trials)
        self.running: dict[str, float | None] = {}  # identity -> accuracy so far
        self.board = Board(plan.study)
        for identity in plan.done & plan.runs.keys():
            self.board.add(identity, plan.runs[identity].metrics)
        for identity in plan.failed:
            self.board.fail(identity)
        self.last = "the workers are being started"  # event, in words
        self.last_at = self.started_at = self._pace_from = time.monotonic()
        self.is_stopping = False
        self._work = {identity: forecast.work(trial) for identity, trial in plan.todo.items()}
        self._left = dict(self._work)
        self._worked = 0.0
        self._begun = False
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
        if identity not in self.running:
            self._note(f"{self.study.describe(identity)} started")
        if not self._begun:  # until then the workers' own start, which comes once, took the time
            self._begun, self._pace_from = True, time.monotonic()
        self.running.setdefault(identity, None)
        self._line()

    def task_done(self, identity: str, metrics: dict[str, Any]) -> None:
        accuracy = metrics["average_accuracy"]
        self.running[identity] = accuracy
        tasks = self.trials[identity].stop_after or self.trials[identity].tasks or 1
        if identity in self._left:  # else it had ended, and Tune started it again
            self._worked += self._work[identity] / tasks
            self._left[identity] = self._work[identity] * max(0.0, 1 - metrics["task"] / tasks)
        if "final_accuracy" in metrics:
            self.board.add(identity, metrics)
        self._note(f"{self.study.describe(identity)}: task {metrics['task']} of {tasks}, accuracy {accuracy:.1f}")
        self._line()

    def ended(self, identity: str, status: Status, reason: str | None) -> None:
        self.running.pop(identity, None)
        self._left.pop(identity, None)
        self.done += status is Status.FINISHED
        self.failed += status is Status.FAILED
        word = "stopped" if status is Status.KILLED else status.value.lower()
        self._note(f"{self.study.describe(identity)} {word}")
        if status is Status.FAILED:
            self.board.fail(identity)
            once = "" if self._live or self.failed > 1 else f"\n  {RETRY}"  # the live view has it all the time
            text = f"failed: {self.study.describe(identity)}: {reason}{once}"
            self.console.print(text, markup=False, soft_wrap=True)
        self._line()

    def finished_elsewhere(self, identity: str, metrics: Mapping[str, float]) -> None:
        """By another sweep of the same store."""
        self.board.add(identity, metrics)
        self.ended(identity, Status.FINISHED, None)

    def stopping(self) -> None:
        """At Ctrl-C or another stop signal."""
        if self.is_stopping:
            return
        self.is_stopping = True
        text = "stopping, saving … (each trial will continue from its last finished task; Ctrl-C again quits at once)"
        self.console.print(text, soft_wrap=True)

    def _note(self, text: str) -> None:
        self.last, self.last_at = text, time.monotonic()

    def eta(self) -> float | None:
        """Seconds, by the pace since the first trial started; a task counts by its method's cost and its images."""
        if not self._worked:
            return None
        return (time.monotonic() - self._pace_from) / self._worked * sum(self._left.values())

    def headline(self) -> str:
        return f"{self.done}/{self.total} trials done, {len(self.running)} running, {self.failed} failed; {self.pace()}"

    def pace(self) -> str:
        """`2 min so far, about 3 min left`."""
        eta = self.eta()
        text = f"{duration(time.monotonic() - self.started_at)} so far"
        text += f", about {duration(eta)} left" if eta is not None and self.done < self.total else ""
        return text + (
            f"; MLflow is away, numbers wait on disk ({self.courier.trouble})" if self.courier.trouble else ""
        )

    def news(self) -> dict[str, Any]:
        """For `pcr-ray status`, from any machine that reaches the store, and counts what is done there itself."""
        return {
            "host": socket.gethostname(),
            "headline": f"{count(len(self.running), 'trial')} at once, {self.pace()}",
            "trials": self.total,
            "trials_done": self.done,
            "trials_failed": self.failed,
            "last": self.last,
            "running": list(self.running),
        }

    def _line(self) -> None:
        now = time.monotonic()
        if not self._live and now - self._last_line >= LINE_EVERY:
            self._last_line = now
            self.console.print(f"{self.headline()}; last: {self.last}", markup=False, soft_wrap=True)

    def __rich__(self) -> Group:
        """This runs in the view's own thread."""
        self.board.run(list(self.running))
        parts = sum(1 - self._left.get(i, 0) / self._work[i] for i in list(self.running) if i in self._work)
        bar = bar_of(self.done + parts, self.total, self.console.width)
        lines = [Text(self.headline()), Text(f"last: {self.last} ({duration(time.monotonic() - self.last_at)} ago)")]
        if self.failed:
            lines.append(Text(f"{self.failed} failed: {RETRY}"))
        # What is longer than the terminal is cut off below: the table, never what happens.
        room = self.console.height - len(lines) - 6
        # The last line is empty: the `^C` that a terminal writes there must not wrap, or the view leaves a line behind.
        return Group(bar, *lines, *self.board.tables(self.console.width, room), Text(LEGEND, style="dim"), Text())
