"""Searches of a sweep file: which trials judge a setting, and what the file is once the settings are chosen.

Tuning trials are ordinary trials: the first tasks of the stream, with seeds that no final trial has. So a search
continues like any sweep, and what it tried is in the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pcr_ray.config import TrialConfig
from pcr_ray.identity import identity
from pcr_ray.study.grid import adjusted, excluded, expand, with_presets
from pcr_ray.study.load import Study, parse
from pcr_ray.study.resolve import resolve
from pcr_ray.study.schema import Chosen, Search, SweepFile
from pcr_ray.text import count

Setting = Mapping[str, Any]


def combinations(spec: SweepFile) -> list[tuple[Setting, dict[str, Any]]]:
    """Each combination that is searched on its own: the fields that tell it, and all given to its first trial."""
    assert spec.search is not None
    grids = dict.fromkeys(key for grid in (spec.grid, *spec.grids) for key in grid if key != "seed")
    per = spec.search.per if spec.search.per is not None else list(grids)
    found: dict[str, tuple[Setting, dict[str, Any]]] = {}
    for _, given in expand(spec, []):
        if not excluded(spec, given):
            when = {key: given[key] for key in per if key in given}
            found.setdefault(repr(when), (when, adjusted(spec, given)[0]))
    return list(found.values())


def seeds(study: Study) -> list[int]:
    """Of tuning: the first ones after those of the final trials."""
    assert study.spec.search is not None
    first = max(trial.seed for trial in study.trials.values()) + 1
    return list(range(first, first + study.spec.search.tune_on.seeds))


def tuning_trials(study: Study, given: Setting, setting: Setting) -> dict[str, TrialConfig]:
    """The trials that judge a setting of one combination, by identity."""
    search = study.spec.search
    assert search is not None
    found = {}
    for seed in seeds(study):
        fields = {**given, **setting, "seed": seed, "stop_after": search.tune_on.tasks}
        trial = resolve(with_presets(study.spec, fields))
        found[identity(trial, study.spec.trainable)] = trial
    return found


def tuning_name(name: str) -> str:
    """Of the sweep that judges settings for the one of this name."""
    return f"{name[:90]}.search"


def tuning_study(study: Study, trials: Mapping[str, TrialConfig]) -> Study:
    """What is run to judge settings: a sweep of its own in the record."""
    search = study.spec.search
    assert search is not None
    flats = [trial.flat() for trial in trials.values()]
    shared = {key: value for key, value in flats[0].items() if all(key in f and f[key] == value for f in flats)}
    spec = SweepFile(
        name=tuning_name(study.name), description=f"Settings tried for sweep {study.name}.",
        trainable=study.spec.trainable, plugins=study.spec.plugins, resources=study.spec.resources,
        retries=study.spec.retries, fixed=shared,
        grids=[{key: [value] for key, value in flat.items() if key not in shared} for flat in flats],
    )  # fmt: skip
    varying = [key for key in study.varying if key != "seed"] + [*search.space, "seed"]
    return Study(spec, dict(trials), varying=varying, plugins=study.plugins, place=study.place)


def decided(study: Study, chosen: Iterable[Chosen]) -> Study:
    """The study with the chosen settings: an ordinary one from here on."""
    content = study.spec.model_dump(exclude_defaults=True)
    content["search"] = content["search"] | {"chosen": [c.model_dump() for c in chosen]}
    content["search"]["space"] = {k: _lists(v) for k, v in content["search"]["space"].items()}
    return replace(parse(content, f"sweep {study.name}", stored=True), plugins=study.plugins, place=study.place)


def _lists(space: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) for k, v in space.items() if v is not None}


def describe(study: Study) -> str:
    """The protocol, and the outcome where it is known."""
    search = study.spec.search
    if search is None:
        return ""
    over, n = ", ".join(search.space), len(combinations(study.spec))
    text = (
        f"{over} chosen by {search.metric} from {count(search.samples, 'setting')} ({search.algorithm} search) for "
        f"each of {count(n, 'combination')}, on the first {count(search.tune_on.tasks, 'task')} with "
        f"seed{'s' * (search.tune_on.seeds > 1)} {', '.join(map(str, seeds(study)))}, which no final trial has."
    )
    return text[0].upper() + text[1:]


def searched(search: Search | None) -> bool:
    """Whether settings are still to be found."""
    return search is not None and not search.chosen
