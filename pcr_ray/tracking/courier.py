"""Delivers a spool to MLflow, once each, whenever the store can be reached.

Delivery is repeatable: a run is adopted before one is made, steps that a run already has are not sent again, and
metrics carry the time of their event. So a crash or a server that is away at any point loses nothing and doubles
nothing.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from pcr_ray.text import first_line, redact
from pcr_ray.tracking import trial_files
from pcr_ray.tracking.runs import TAG_LIMIT, TRIAL_INPUT, Status, Tag, TrialRun, code_tags, param_text, trial_tags
from pcr_ray.tracking.spool import END, START, TASK, Spool
from pcr_ray.tracking.store import Store

PATIENCE = (1.0, 30.0)  # seconds between attempts while the store is away: first, longest
NOTHING_YET: dict[str, Any] = {"delivered": 0, "run": None, "steps": []}


class Courier:
    """Works in a thread of its own. `parent` gives the id of the sweep's run, and is asked only when it is needed."""

    def __init__(self, spool: Spool, store: Store, sweep: str, parent: Callable[[], str]) -> None:
        self.spool, self.store, self.sweep, self.parent = spool, store, sweep, parent
        self.place = hashlib.sha256(store.uri.encode()).hexdigest()[:16]  # not the URI: it may hold a password
        self.trouble: str | None = None  # why the store cannot be reached at the moment
        self._wake, self._stop = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mlflow-courier", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, timeout: float) -> bool:
        """Stop the thread and deliver what is left; False if that took longer than `timeout`."""
        self._stop.set()
        self._wake.set()
        if self._thread:
            self._thread.join(timeout)
        deadline = time.monotonic() + timeout
        wait = PATIENCE[0]
        while not self.deliver_all():
            if time.monotonic() + wait > deadline:
                return False
            time.sleep(wait)
            wait = min(2 * wait, PATIENCE[1])
        return True

    def _work(self) -> None:
        wait = PATIENCE[0]
        while not self._stop.is_set():
            self._wake.wait(timeout=wait)
            self._wake.clear()
            if self.deliver_all():
                wait = PATIENCE[0]
            else:
                self._stop.wait(wait)
                wait = min(2 * wait, PATIENCE[1])

    def deliver_all(self) -> bool:
        """One round over all trials; False if something could not be delivered yet."""
        trouble = None
        self.spool.flush()
        with self._lock:
            for identity in self.spool.pending():
                try:
                    self._deliver(identity)
                except Exception as error:  # whatever the store says: try again later
                    trouble = first_line(error, 200)
                    if not self.store.reachable():
                        break
                    # This trial alone: its run may be gone or belong to another store. Begin anew with it next time.
                    self.spool.save_state(identity, dict(NOTHING_YET))
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
        if state["run"] is None:
            known = self.store.attempts(identity)
            chosen = self._choose(known, begun, events[-1])
            if chosen and chosen.finished and chosen.ended != events[-1]["time"]:
                self.spool.forget(identity)  # somebody else finished it meanwhile
                return
            state |= self._adopt(chosen) if chosen else self._create(identity, begun)
            replaces = [r.run_id for r in known if r.run_id != state["run"]]
            state |= {"store": self.place, "code": _code(begun), "replaces": replaces}
            self.spool.save_state(identity, state)
        run = state["run"]
        for start in [e for e in fresh if e["event"] == START][-1:]:
            self._begin(run, identity, start)
        self._send_metrics(run, [e for e in fresh if e["event"] == TASK], state)
        if fresh[-1]["event"] == END:
            self._finish(run, fresh[-1], events, state)
            self.spool.forget(identity)
            return
        state["delivered"] = first + len(events)
        self.spool.save_state(identity, state)

    def _choose(self, known: list[TrialRun], start: dict[str, Any], last: dict[str, Any]) -> TrialRun | None:
        """The run that `last` ended, if it was delivered before; a finished one; one of the same code to go on with."""
        own = [run for run in known if run.finished and run.ended == last["time"]]
        finished = [run for run in known if run.finished and not start.get("rerun")]
        begun = [run for run in known if not run.finished and run.code == _code(start)]
        return next(iter([*own, *finished, *begun]), None)

    def _adopt(self, run: TrialRun) -> dict[str, Any]:
        if run.reason:  # it goes on
            self.store.client.delete_tag(run.run_id, Tag.REASON)
        steps = self.store.client.get_metric_history(run.run_id, "average_accuracy")
        return {"run": run.run_id, "steps": sorted({m.step for m in steps})}

    def _create(self, identity: str, start: dict[str, Any]) -> dict[str, Any]:
        tags = trial_tags(identity, self.sweep, self.parent(), start.get("code"))
        created = self.store.client.create_run(
            self.store.experiment, start_time=start["time"], tags=tags, run_name=start.get("name", identity)
        )
        return {"run": created.info.run_id, "steps": []}

    def _begin(self, run: str, identity: str, start: dict[str, Any]) -> None:
        """Logging the same again is allowed, so a crash in between leaves nothing out."""
        from mlflow.entities import Param, RunTag

        self._input(run, TRIAL_INPUT, identity)

        # MLflow refuses other values, and the same trial may be labelled otherwise in another sweep: the first stays.
        known = self.store.client.get_run(run).data.params
        params = [Param(k, param_text(v)) for k, v in start["params"].items() if k not in known]
        tags = [RunTag(k, v) for k, v in code_tags(start.get("code")).items()]
        self.store.client.log_batch(run, tags=tags)
        for i in range(0, len(params), 100):
            self.store.client.log_batch(run, params=params[i : i + 100])
        self.store.client.update_run(run, status=Status.RUNNING)

    def _input(self, run: str, name: str, digest: str) -> None:
        from mlflow.entities import Dataset, DatasetInput

        self.store.client.log_inputs(run, [DatasetInput(Dataset(name, digest, "pcr_ray", name), [])])

    def _send_metrics(self, run: str, tasks: list[dict[str, Any]], state: dict[str, Any]) -> None:
        """All new steps in as few requests as MLflow allows."""
        from mlflow.entities import Metric

        metrics = []
        for event in tasks:
            if event["task"] not in state["steps"]:
                state["steps"].append(event["task"])
                metrics += [Metric(key, value, event["time"], event["task"]) for key, value in event["metrics"].items()]
        for i in range(0, len(metrics), 1000):
            self.store.client.log_batch(run, metrics=metrics[i : i + 1000])

    def _finish(self, run: str, end: dict[str, Any], events: list[dict[str, Any]], state: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        client = self.store.client
        tags = {Tag.REASON: redact(end["reason"])[:4000]} if end.get("reason") else {}
        if end.get("node"):
            tags[Tag.NODE] = end["node"]
        if end["status"] == Status.FINISHED:
            results = end.get("results") or {}
            if results:
                trial_files.log(client, run, results)
                tags[Tag.DATA] = results["data_fingerprint"]
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
