"""What there is to do: done is done, whichever sweep finished a trial; what changed since is told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from pcr_ray.config import TrialConfig
from pcr_ray.datasets import known_fingerprint
from pcr_ray.provenance import UNKNOWN, differences, look_again
from pcr_ray.study.load import Study
from pcr_ray.text import count
from pcr_ray.tracking.runs import Status, TrialRun
from pcr_ray.tracking.store import Store

DATA = "the data of "


@dataclass(frozen=True)
class Plan:
    """The trials of a study by what is known of them."""

    study: Study
    runs: dict[str, TrialRun]  # what stands for each trial in the record
    done: set[str]
    failed: dict[str, str]  # failed before, and not to be tried again: identity -> reason
    outdated: dict[str, list[str]]  # done, with other code: identity -> what differs
    todo: dict[str, TrialConfig]
    again: set[str]  # of `todo`: those that are done and run again on request

    def describe(self) -> str:
        """`27 trials over method, seed: 12 done (3 of them with other code: pcr_ray/methods/pcr.py), 15 to run`."""
        study = self.study
        over = f" over {', '.join(study.varying)}" if study.varying else ""
        parts = [f"{len(self.done)} done"]
        if self.outdated:
            sources = Counter(source for sources in self.outdated.values() for source in sources)
            names = [name for name, _ in sources.most_common(3)] + ["…"] * (len(sources) > 3)
            kinds = sorted({"data" if source.startswith(DATA) else "code" for source in sources})
            parts[0] += f" ({len(self.outdated)} of them with other {' or '.join(kinds)}: {', '.join(names)})"
        if self.failed:
            parts.append(f"{len(self.failed)} failed before")
        again = f", {len(self.again)} of them again" if self.again else ""
        return f"{count(len(study.trials), 'trial')}{over}: {', '.join(parts)}, {len(self.todo)} to run{again}"


def make_plan(
    study: Study, store: Store | None, root: Path, *, spooled: Set[str] = frozenset(), rerun: str | None = None,
    since: float = math.inf,
) -> Plan:  # fmt: skip
    """`spooled` trials are finished and wait for their delivery. Without a store nothing is done yet.

    `rerun: all` leaves alone what was begun after `since` (ms since 1970), when the rerun itself began.
    """
    look_again()
    runs = store.trials(study.trials.keys()) if store else {}
    done, again = set(), set()
    failed: dict[str, str] = {}
    outdated: dict[str, list[str]] = {}
    todo: dict[str, TrialConfig] = {}
    for identity, trial in study.trials.items():
        run = runs.get(identity)
        if run and run.finished and (differences := _differences(study, trial, run, root)):
            outdated[identity] = differences
        if identity in spooled or (run and run.finished):
            done.add(identity)
            wanted = (rerun == "all" and run and run.started < since) or (rerun == "changed" and identity in outdated)
            if wanted and identity not in spooled:
                again.add(identity)
                todo[identity] = trial
        elif run and run.status is Status.FAILED and rerun is None:
            failed[identity] = run.reason or "unknown"
        else:
            todo[identity] = trial
    return Plan(study, runs, done - again, failed, {i: d for i, d in outdated.items() if i not in again}, todo, again)


def _differences(study: Study, trial: TrialConfig, run: TrialRun, root: Path) -> list[str]:
    names = differences(run.sources, trial, study.spec.trainable)
    data = known_fingerprint(trial, root, study.place)
    other = names != [UNKNOWN] and data and run.data and data != run.data
    return names + ([f"{DATA}{trial.dataset}"] if other else [])
