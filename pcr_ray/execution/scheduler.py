"""Tune's order of trials, without the idle workers that it has with short ones."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler


class InOrder(FIFOScheduler):
    """The first trial that waits, but not one whose own worker is just starting.

    To that one Tune's scheduler gives each worker that becomes free, and Tune then ends the worker that was about to
    be ready. With trials shorter than a worker's start (seconds, with torch), a machine never gets beyond one worker.
    """

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        controller = getattr(tune_controller, "_tune_controller", tune_controller)
        first = None
        for trial in controller.get_trials():
            if trial.status == Trial.PAUSED:
                first = first or trial
            elif trial.status == Trial.PENDING and not _starting(controller, trial):
                return trial
        return first


def _starting(controller: Any, trial: Trial) -> bool:
    """Tune has no public word for it. Where its names change, its own order remains."""
    try:
        actor = controller._trial_to_actor.get(trial)
        return actor is not None and controller._actor_manager.is_actor_started(actor)
    except AttributeError:
        return False
