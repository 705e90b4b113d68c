"""Finds the settings that a sweep file searches for, with Ray Tune's searchers, in rounds of ordinary trials.

A searcher with the same seed that is told the same scores suggests the same settings. So nothing of a search is kept
but its trials: after an interruption the rounds are gone through again, and what the record has is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.errors import InputError
from pcr_ray.metrics import METRICS
from pcr_ray.study.load import Study
from pcr_ray.study.resolve import ConfigProblems
from pcr_ray.study.schema import Chosen, Search, Space, Tried
from pcr_ray.study.search import Setting, combinations, decided, tuning_study, tuning_trials
from pcr_ray.tracking.runs import Status, TrialRun
from pcr_ray.tracking.store import Store

ROUND = 5  # settings that Optuna suggests before it is told how the last ones did
DIGITS = 4  # of a number: a setting that can be written down


class Unfinished(Exception):
    """The record does not have all scores yet; `round` has the trials that come next."""

    def __init__(self, round: Study) -> None:
        super().__init__(round.name)
        self.round = round


@dataclass
class Case:
    """The search of one combination."""

    when: Setting
    raw: dict[str, Any]
    suggest: Callable[[int], dict[str, Any]]
    tell: Callable[[int, float | None], None]
    tried: list[Tried] = field(default_factory=list)


def settle(
    study: Study, store: Store, run: Callable[[Study], bool] | None = None, rerun: str | None = None
) -> Study:  # fmt: skip
    """The study with its settings chosen. `run` runs trials and tells whether all of them have ended.

    With `rerun` (as of `RunOptions`) it is given rounds that have ended too, each once, and knows what to do again.
    Without `run`, or where it was stopped, raises `Unfinished` with the first round that lacks a score.
    """
    search = study.spec.search
    assert search is not None
    cases = [_case(search, number, *pair) for number, pair in enumerate(combinations(study.spec))]
    step = search.samples if search.algorithm == "random" else ROUND
    for first in range(0, search.samples, step):
        numbers = range(first, min(first + step, search.samples))
        asked = [(case, n, case.suggest(n)) for case in cases for n in numbers]
        trials = {(id(case), n): _trials(study, case, setting) for case, n, setting in asked}
        wanted = tuning_study(study, {i: t for group in trials.values() for i, t in group.items()})
        found = {} if store.missing_file else store.trials(wanted.trials.keys())
        if rerun in ("changed", "all") or any(not _ended(found.get(i), rerun) for i in wanted.trials):
            if run is None or not run(wanted):
                raise Unfinished(wanted)
            found = store.trials(wanted.trials.keys())
        for case, n, setting in asked:
            score = _score(search, [found.get(i) for i in trials[id(case), n]])
            case.tell(n, score)
            case.tried.append(Tried(set=setting, value=score))
    return decided(study, [_choose(study, case) for case in cases])


def _trials(study: Study, case: Case, setting: Setting) -> dict[str, TrialConfig]:
    try:
        return tuning_trials(study, case.raw, setting)
    except ConfigProblems as error:
        raise InputError(f"search: {dict(setting)} does not fit {dict(case.when)}: {error}") from None


def _ended(run: TrialRun | None, rerun: str | None) -> bool:
    return run is not None and (run.finished or (run.status is Status.FAILED and rerun is None))


def _score(search: Search, runs: list[TrialRun | None]) -> float | None:
    """The mean over the seeds; None where one of them failed: such a setting is not to be chosen."""
    values = [run.metrics.get(search.metric) if run and run.finished else None for run in runs]
    known = [v for v in values if v is not None]
    return fmean(known) if len(known) == len(values) else None


def _choose(study: Study, case: Case) -> Chosen:
    search = study.spec.search
    assert search is not None
    scored = [(t.value, t) for t in case.tried if t.value is not None]
    if not scored:
        where = ", ".join(f"{k} {v}" for k, v in case.when.items()) or "this study"
        raise InputError(
            f"search: no setting tried for {where} has a score: its trials failed; --rerun failed tries them again"
        )
    best = min if METRICS[search.metric].lower_is_better else max
    value, chosen = best(scored, key=lambda pair: pair[0])
    return Chosen(when=dict(case.when) or {"seed": _all_seeds(study)}, set=chosen.set, value=value, tried=case.tried)


def _all_seeds(study: Study) -> list[int]:
    """A rule that means every trial, where the grid has nothing but seeds."""
    return sorted({trial.seed for trial in study.trials.values()})


def _case(search: Search, number: int, when: Setting, raw: dict[str, Any]) -> Case:
    seed = search.seed + 1000 * number
    make = _optuna if search.algorithm == "optuna" else _random
    suggest, tell = make(search, seed)
    return Case(when, raw, suggest, tell)


def _domains(space: Mapping[str, Space]) -> dict[str, Any]:
    from ray import tune

    found = {}
    for name, one in space.items():
        if one.choice is not None:
            found[name] = tune.choice(one.choice)
        elif one.integer:
            found[name] = tune.randint(one.integer[0], one.integer[1] + 1)
        else:
            found[name] = tune.loguniform(*one.log) if one.log else tune.uniform(*(one.uniform or ()))
    return found


def _plain(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that can be written down and read again."""
    return {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else _item(v) for k, v in setting.items()}


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _random(search: Search, seed: int) -> tuple[Callable[[int], dict[str, Any]], Callable[[int, float | None], None]]:
    import numpy as np

    domains = _domains(search.space)

    def suggest(number: int) -> dict[str, Any]:
        state = np.random.RandomState([seed, number])
        return _plain({name: domain.sample(random_state=state) for name, domain in domains.items()})

    return suggest, lambda number, score: None


def _optuna(search: Search, seed: int) -> tuple[Callable[[int], dict[str, Any]], Callable[[int, float | None], None]]:
    try:
        import optuna
        from ray.tune.search.optuna import OptunaSearch
    except ImportError:
        raise InputError("search.algorithm: optuna is not installed; pip install 'pcr_ray[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    mode = "min" if METRICS[search.metric].lower_is_better else "max"
    searcher = OptunaSearch(_domains(search.space), metric=search.metric, mode=mode, seed=seed)

    def suggest(number: int) -> dict[str, Any]:
        return _plain(searcher.suggest(str(number)) or {})

    def tell(number: int, score: float | None) -> None:
        result = None if score is None else {search.metric: score, "training_iteration": 1}
        searcher.on_trial_complete(str(number), result=result, error=score is None)

    return suggest, tell
