"""The cells of a study's answer as they fill up. Only numbers of the same seeds are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.table import Table

from pcr_ray.methods import METHODS
from pcr_ray.metrics import CLASSIFIERS, METRICS
from pcr_ray.study.cells import ANY, Key, Panel, cell_key, shown_classifiers, x_field
from pcr_ray.study.load import Study

LEGEND = "n/N: seeds done; means over the seeds that a column shares, the best bold; (in brackets): no seed is shared"


@dataclass
class Cell:
    """The trials behind one number of the answer."""

    trials: set[str] = field(default_factory=set)
    values: dict[int, float] = field(default_factory=dict)  # by seed
    running: int = 0


class Board:
    """Told the numbers of finished trials; knows which of them can be compared."""

    def __init__(self, study: Study) -> None:
        self.study, self.metric = study, METRICS[study.spec.report.metrics[0]]
        self.cells: dict[Key, Cell] = {}
        self._of: dict[str, list[tuple[Key, str]]] = {}  # trial -> its cells, and its metric in each
        for identity, trial in [*study.trials.items(), *study.others]:
            for name in shown_classifiers(study.spec.report, trial, self.metric.name):
                key = cell_key(study, trial, name)
                metric = CLASSIFIERS[name].metric(self.metric.name) if self.metric.per_classifier else self.metric.name
                self.cells.setdefault(key, Cell()).trials.add(identity)
                self._of.setdefault(identity, []).append((key, metric))

    def add(self, identity: str, metrics: Mapping[str, Any]) -> None:
        """The last metrics of a trial; what is no final number yet is left out."""
        for key, metric in self._of.get(identity, []):
            if metric in metrics:
                self.cells[key].values[self.study.trials[identity].seed] = metrics[metric]

    def run(self, identities: Iterable[str]) -> None:
        """These are running now."""
        now = set(identities)
        for cell in self.cells.values():
            cell.running = len(cell.trials & now)

    def column(self, panel: Panel, x: Any) -> dict[tuple[Any, str], Cell]:
        """What is compared with each other: (series, classifier) -> cell; one that ignores x is in every column."""
        return {(k[1], k[2]): cell for k, cell in self.cells.items() if k[0] == panel and k[3] in (x, ANY)}

    def texts(self, panel: Panel, x: Any) -> dict[tuple[Any, str], str]:
        """Of one column: means over the seeds that all who have numbers share, the best one bold, and seeds done."""
        column = self.column(panel, x)
        values = {row: dict(cell.values) for row, cell in column.items()}  # a copy: they may change meanwhile
        filled = {row: numbers for row, numbers in values.items() if numbers}
        common = set.intersection(*map(set, filled.values())) if filled else set()
        means = {row: fmean(numbers[s] for s in common) for row, numbers in filled.items()} if common else {}
        choose = min if self.metric.lower_is_better else max
        best = choose(means, key=means.__getitem__) if len(means) > 1 else None
        return {row: _text(cell, values[row], means.get(row), best == row) for row, cell in column.items()}

    def table(self) -> Table:
        """One row per series and classifier of each panel, one column per x."""
        every = list(dict.fromkeys(key[3] for key in self.cells))
        xs = [x for x in every if x != ANY] or every
        x_name, fields = x_field(self.study), [name for name, _ in next(iter(self.cells))[0]]
        table = Table(box=None, padding=(0, 2), pad_edge=False)
        for name in (*fields, self.study.spec.report.series):
            table.add_column(name)
        for x in xs:
            table.add_column(f"{x_name} {x}" if x_name else self.metric.label, justify="right")
        for panel in dict.fromkeys(key[0] for key in self.cells):
            columns = {x: self.texts(panel, x) for x in xs if self.column(panel, x)}
            for row in dict.fromkeys(row for column in columns.values() for row in column):
                cells = [columns.get(x, {}).get(row, "") for x in xs]
                table.add_row(*(str(value) for _, value in panel), self._label(*row), *cells)
        return table

    def _label(self, series: Any, classifier: str) -> str:
        titled = self.study.spec.report.series == "method" and series in METHODS
        return (METHODS.get(series).title if titled else str(series)) + CLASSIFIERS[classifier].suffix


def _text(cell: Cell, values: Mapping[int, float], mean: float | None, best: bool) -> str:
    """`50.6 2/3`, with a mark while one of them runs."""
    if not values:
        number = "-"
    elif mean is None:
        number = f"({fmean(values.values()):.1f})"
    else:
        number = f"[bold]{mean:.1f}[/]" if best else f"{mean:.1f}"
    return f"{number} [dim]{len(values)}/{len(cell.trials)}{'▸' if cell.running else ' '}[/]"
