"""Delivers a spool to MLflow, once each, whenever the store can be reached.

Delivery is repeatable: a run is adopted before one is made, steps that a run already has are not sent again, and
metrics carry the time of their event. So a crash or a server that is away at any point loses nothing and doubles
nothing. A run is written by the sweep that made it alone: what another living sweep runs is left to it, what a dead one
left half done is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from pcr_ray.text import first_line, redact
from pcr_ray.tracking import trial_files
from pcr_ray.tracking.names import shown
from pcr_ray.tracking.runs import TAG_LIMIT, TRIAL_INPUT, Status, Tag, TrialRun, code_tags, param_text, trial_tags
from pcr_ray.tracking.spool import END, START, TASK, Spool
from pcr_ray.tracking.store import Store

PATIENCE = (1.0, 30.0)  # seconds between attempts while the store is away: first, longest
NEWS_EVERY = 15.0  # seconds between signs of life of a running sweep
# Tune's loop and this thread share Python's lock. While events come closer to each other than this, delivery takes a
# tenth of the time: it would catch up only after the last trial anyway.
BUSY = 0.1  # seconds
GOODBYE = 5.0  # seconds for the delivery at hand where an error ends a sweep
REST = (9.0, 0.5)  # times the CPU time of a delivery, at most seconds
LOOK_AGAIN = (1.0, 4.0)  # seconds until a trial of another sweep is looked at again; random: two may give way at once
NOTHING_YET: dict[str, Any] = {"delivered": 0, "run": None, "steps": []}


class Courier:
    """Works in a thread of its own. `parent` gives the id of the sweep's run, and is asked only when it is needed."""

    def __init__(self, spool: Spool, store: Store, sweep: str, parent: Callable[[], str]) -> None:
        self.spool, self.store, self.sweep, self.parent = spool, store, sweep, parent
        self.place = hashlib.sha256(store.uri.encode()).hexdigest()[:16]  # not the URI: it may hold a password
        self.trouble: str | None = None  # why the store cannot be reached at the moment
        self.news: Callable[[], dict[str, Any]] | None = None  # how the sweep fares, for whoever looks from outside
        self.elsewhere: dict[str, float] = {}  # trials that others run or have finished -> when to look again
        self._told = -NEWS_EVERY
        self._event = -BUSY  # when the last one came (monotonic)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow-courier", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is an event."""
        self._event = time.monotonic()
        self._wake.set()

    def __enter__(self) -> Courier:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(GOODBYE)

    def _end(self, timeout: float) -> None:
        """Of the thread."""
        self._stop.set()
        self._wake.set()
        if self._thread:
            self._thread.join(timeout)

    def close(self, timeout: float) -> bool:
        """Deliver what is left, without the thread; False if that took longer than `timeout`."""
        self._end(timeout)
        deadline = time.monotonic() + timeout
        wait = PATIENCE[0]
        while not self.deliver_all():
            if time.monotonic() + wait > deadline:
                return False
            time.sleep(wait)
            wait = min(2 * wait, PATIENCE[1])
        if left := self.elsewhere.keys() & set(self.spool.pending()):
            self.trouble = f"another sweep runs {len(left)} of the trials"
        return not left

    def _work(self) -> None:
        wait = PATIENCE[0]
        while not self._stop.is_set():
            self._wake.wait(timeout=wait)
            self._wake.clear()
            if self.deliver_all():
                wait = PATIENCE[0]
                self._tell()
            else:
                self._stop.wait(wait)
                wait = min(2 * wait, PATIENCE[1])

    def _give_way(self, worked: float) -> None:
        """After so many seconds of CPU, while Tune's loop is busy."""
        until = time.monotonic() + min(REST[0] * worked, REST[1])
        while (now := time.monotonic()) < until and now - self._event < BUSY and not self._stop.is_set():
            self._stop.wait(min(until - now, BUSY))

    def _tell(self) -> None:
        if self.news is None or time.monotonic() - self._told < NEWS_EVERY:
            return
        self._told = time.monotonic()
        with contextlib.suppress(Exception):  # the next one will do
            sign = {"time": time.time(), **self.news()}
            text = json.dumps(sign)
            if len(text) > TAG_LIMIT:  # hundreds of trials at once: which ones matters less than that they run
                text = json.dumps(sign | {"running": []})
            self.store.client.set_tag(self.parent(), Tag.PROGRESS, text)

    def deliver_all(self) -> bool:
        """One round over all trials; False if something could not be delivered yet."""
        trouble = None
        self.spool.flush()
        with self._lock:
            for identity in self.spool.pending():
                began = time.thread_time()
                try:
                    self._deliver(identity)
                except Exception as error:  # whatever the store says: try again later
                    trouble = first_line(error, 200)
                    if not self.store.reachable():
                        break
                    # This trial alone: its run may be gone or belong to another store. Begin anew with it next time.
                    self.spool.save_state(identity, dict(NOTHING_YET))
                self._tell()  # also in the middle of a long round
                self._give_way(time.thread_time() - began)
            self.trouble = trouble
        return trouble is None

    def _deliver(self, identity: str) -> None:
        state, events = self.spool.state(identity) or dict(NOTHING_YET), self.spool.events(identity)
        first, begun = _attempt(events)
        if state.get("store", self.place) != self.place or state.get("code", "") != _code(begun):
            state = dict(NOTHING_YET)
        fresh, events = events[max(first, state["delivered"]) :], events[first:]
        if not fresh:
            return
        new = False
        if state["run"] is None:
            if time.monotonic() < self.elsewhere.get(identity, 0.0):
                return
            claimed = self._claim(identity, begun, events[-1])
            if claimed is None:
                self.elsewhere[identity] = time.monotonic() + random.uniform(*LOOK_AGAIN)  # nosec B311
                return
            self.elsewhere.pop(identity, None)
            new = claimed.pop("new", False)
            state |= {"store": self.place, "code": _code(begun)} | claimed
            self.spool.save_state(identity, state)
        run = state["run"]
        for start in [e for e in fresh if e["event"] == START][-1:]:
            self._begin(run, identity, start, new)
        self._send_metrics(run, [e for e in fresh if e["event"] == TASK], state)
        if fresh[-1]["event"] == END:
            self._finish(run, fresh[-1], events, state)
            self.spool.forget(identity)
            return
        state["delivered"] = first + len(events)
        self.spool.save_state(identity, state)

    def _claim(self, identity: str, begun: dict[str, Any], last: dict[str, Any]) -> dict[str, Any] | None:
        """The run to write to; None where another sweep has finished the trial or runs it at this moment."""
        known = self.store.attempts(identity)
        chosen = self._choose(known, begun, last)
        if chosen and chosen.finished and not _ended_by(last, chosen):
            self.spool.forget(identity)
            return None
        claimed = self._adopt(chosen) if chosen else None
        if claimed is None:
            rivals, again = self._rivals(known, begun), begun.get("rerun")  # what is run again on request, each runs
            others = [r for r in known if not r.finished and r.sweep != self.sweep and r.code == _code(begun)]
            others = [r for r in others if r not in rivals]
            if again or not rivals:
                claimed = self._create(identity, begun, others)
                # Two that look, find nobody and create meet here, where each sees the other: both give way for now.
                if not again and self._rivals(self.store.attempts(identity), begun):
                    self.store.client.delete_run(claimed["run"])
                    claimed = None
            if claimed is None:
                if last["event"] == END and last["status"] != Status.FINISHED:
                    self.spool.forget(identity)  # nothing that anybody needs
                return None
            for dead in others:
                self.store.client.delete_run(dead.run_id)
                known.remove(dead)
        return claimed | {"replaces": [r.run_id for r in known if r.run_id != claimed["run"]]}

    def _rivals(self, known: list[TrialRun], begun: dict[str, Any]) -> list[TrialRun]:
        """Runs of other sweeps that live and run the trial with the same code."""
        running = [r for r in known if r.status is Status.RUNNING and r.code == _code(begun) and r.sweep != self.sweep]
        return [run for run in running if self.store.alive(run.sweep)]

    def _choose(self, known: list[TrialRun], start: dict[str, Any], last: dict[str, Any]) -> TrialRun | None:
        """The run that `last` ended, if it was delivered before; a finished one; our own of this code to go on with."""
        own = [r for r in known if r.finished and _ended_by(last, r)]
        finished = [run for run in known if run.finished and not start.get("rerun")]
        begun = [r for r in known if not r.finished and r.code == _code(start) and r.sweep == self.sweep]
        return next(iter([*own, *finished, *begun]), None)

    def _adopt(self, run: TrialRun) -> dict[str, Any]:
        if run.reason:  # it goes on
            self.store.client.delete_tag(run.run_id, Tag.REASON)
        steps = self.store.client.get_metric_history(run.run_id, "average_accuracy")
        return {"run": run.run_id, "steps": sorted({m.step for m in steps})}

    def _create(self, identity: str, start: dict[str, Any], instead_of: list[TrialRun]) -> dict[str, Any]:
        tags = trial_tags(identity, self.sweep, self.parent(), start.get("code"))
        tags |= {f"{Tag.IN_SWEEP}{name}": "yes" for run in instead_of for name in run.sweeps}
        created = self.store.client.create_run(
            self.store.experiment, start_time=start["time"], tags=tags, run_name=start.get("name", identity)
        )
        return {"run": created.info.run_id, "steps": [], "new": True}

    def _begin(self, run: str, identity: str, start: dict[str, Any], new: bool) -> None:
        """Logging the same again is allowed, so a crash in between leaves nothing out. New runs have their tags."""
        from mlflow.entities import Param, RunTag

        if start.get("data"):  # before the other: the UI shows the first
            self._input(run, start["params"]["dataset"], start["data"])
        self._input(run, TRIAL_INPUT, identity)

        # MLflow refuses other values, and the same trial may be labelled otherwise in another sweep: the first stays.
        known = {} if new else self.store.client.get_run(run).data.params
        params = [Param(k, param_text(v)) for k, v in start["params"].items() if k not in known]
        for i in range(0, len(params), 100):
            self.store.client.log_batch(run, params=params[i : i + 100])
        if not new:
            tags = code_tags(start.get("code")) | {f"{Tag.IN_SWEEP}{self.sweep}": "yes"}
            self.store.client.log_batch(run, tags=[RunTag(k, v) for k, v in tags.items()])
            self.store.client.update_run(run, status=Status.RUNNING)

    def _input(self, run: str, name: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput

        self.store.client.log_inputs(run, [DatasetInput(Dataset(name, digest, "pcr_ray", name), [])])

    def _send_metrics(self, run: str, tasks: list[dict[str, Any]], state: dict[str, Any]) -> None:
        """All new steps in as few requests as MLflow allows."""
        from mlflow.entities import Metric

        batches: list[list[Any]] = [[]]
        for event in tasks:
            if event["task"] not in state["steps"]:
                state["steps"].append(event["task"])
                when = event["time"], event["task"]
                if len(batches[-1]) + len(event["metrics"]) > 1000:  # whole tasks: a task is there or it is not
                    batches.append([])
                batches[-1] += [Metric(shown(key), value, *when) for key, value in event["metrics"].items()]
        for batch in filter(None, batches):
            batch.sort(key=lambda metric: "/" in metric.key)  # the UI's list has them as they came: the main ones first
            self.store.client.log_batch(run, metrics=batch)

    def _finish(self, run: str, end: dict[str, Any], events: list[dict[str, Any]], state: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        client = self.store.client
        tags = {Tag.REASON: redact(end["reason"])[:4000]} if end.get("reason") else {}
        tags |= {tag: end[key] for tag, key in ((Tag.NODE, "node"), (Tag.DEVICE, "device")) if end.get(key)}
        if end["status"] == Status.FINISHED:
            results = end.get("results") or {}
            if results:
                trial_files.log(client, run, results)
                tags[Tag.DATA] = results["data_fingerprint"]
                if _attempt(events)[1].get("data") != results["data_fingerprint"]:  # else it was said at the start
                    self._input(run, results["config"]["dataset"], results["data_fingerprint"])
                if gradients := results.get("proxy_gradients"):
                    tags[Tag.PROXIES] = json.dumps({"last_task": [round(g, 6) for g in gradients[-1]]})
            tags[Tag.CURVES] = _curves(events)
        client.log_batch(run, tags=[RunTag(k, v) for k, v in tags.items() if v and len(v) <= TAG_LIMIT])
        client.set_terminated(run, status=end["status"], end_time=end["time"])
        if end["status"] == Status.FINISHED:
            for other in state.get("replaces", []):
                client.set_tag(other, Tag.SUPERSEDED, run)


def _attempt(events: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Where the newest code began the trial, and that event: checkpoints of other code are not continued."""
    starts = [(n, e) for n, e in enumerate(events) if e["event"] == START]
    if not starts:
        return 0, events[0] if events else {}
    first, begun = starts[-1]
    for n, event in reversed(starts):
        if _code(event) != _code(begun):
            break
        first = n
    return first, begun


def _ended_by(event: dict[str, Any], run: TrialRun) -> bool:
    return event.get("status") == Status.FINISHED and event["time"] == run.ended


def _code(start: dict[str, Any]) -> str:
    """The fingerprint of the code that began a trial; empty in events of the first version."""
    return (start.get("code") or {}).get("fingerprint", "")


def _curves(events: list[dict[str, Any]]) -> str:
    """Metric -> its values after each task that has one: reports need no request per curve."""
    tasks = {e["task"]: e["metrics"] for e in events if e["event"] == TASK}
    if sorted(tasks) != list(range(1, len(tasks) + 1)):  # the spool does not know the first ones
        return ""
    names = sorted({name for metrics in tasks.values() for name in metrics})
    curves = {n: [round(tasks[t][n], 6) for t in sorted(tasks) if n in tasks[t]] for n in names}
    text = json.dumps(curves, separators=(",", ":"))
    return text if len(text) <= TAG_LIMIT else ""
