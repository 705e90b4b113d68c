"""The cells of a study's answer as they fill up. Only numbers of the same seeds are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pcr_ray.methods import METHODS
from pcr_ray.metrics import CLASSIFIERS, METRICS
from pcr_ray.study.cells import ANY, Key, Panel, cell_key, expected_classifiers, x_field
from pcr_ray.study.load import Study

LEGEND = "2/3: seeds done, ▸ running; means over the seeds that the whole column has, (in brackets) where there is none"
NUMBER = 14  # characters of a column: `▸(100.0) 10/10` and the space before it


def bar_of(done: float, total: int, width: int) -> Table:
    line = Table.grid()  # a bar alone does not end its line
    line.add_row(
        ProgressBar(
            total=max(1, total), completed=done, width=min(60, width), complete_style="cyan", finished_style="cyan"
        )
    )
    return line


@dataclass
class Cell:
    """The trials behind one number of the answer."""

    trials: set[str] = field(default_factory=set)
    values: dict[int, float] = field(default_factory=dict)  # by seed
    running: int = 0
    failed: set[str] = field(default_factory=set)


class Board:
    """Told the numbers of finished trials; knows which of them can be compared."""

    def __init__(self, study: Study) -> None:
        self.study, self.metric = study, METRICS[study.spec.report.metrics[0]]
        self.cells: dict[Key, Cell] = {}
        self._of: dict[str, list[tuple[Key, str]]] = {}  # trial -> its cells, and its metric in each
        for identity, trial in [*study.trials.items(), *study.others]:
            for name in expected_classifiers(study.spec.report, trial, self.metric.name):
                key = cell_key(study, trial, name)
                metric = CLASSIFIERS[name].metric(self.metric.name) if self.metric.per_classifier else self.metric.name
                self.cells.setdefault(key, Cell()).trials.add(identity)
                self._of.setdefault(identity, []).append((key, metric))

    def add(self, identity: str, metrics: Mapping[str, Any]) -> None:
        """The last metrics of a trial; what is no final number yet is left out."""
        for key, metric in self._of.get(identity, []):
            if metric in metrics:
                self.cells[key].values[self.study.trials[identity].seed] = metrics[metric]

    def fail(self, identity: str) -> None:
        for key, _ in self._of.get(identity, []):
            self.cells[key].failed.add(identity)

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

    def tables(self, width: int, height: int | None = None) -> list[Text | Table]:
        """One row per series and classifier of each panel, one column per x; several tables where one is too wide.

        Where they are higher than `height`, only the panels of which something is running.
        """
        every = list(dict.fromkeys(key[3] for key in self.cells))
        xs = [x for x in every if x != ANY] or every
        heads = [*(name for name, _ in next(iter(self.cells))[0]), self.study.spec.report.series]
        rows = list(dict.fromkeys((key[0], (key[1], key[2])) for key in self.cells))
        live = {key[0] for key, cell in self.cells.items() if cell.running}
        if height is not None and len(rows) > height and live:
            rows = [row for row in rows if row[0] in live]
        labels = [[*(str(value) for _, value in panel), self._label(*row)] for panel, row in rows]
        left = sum(max(len(text) for text in column) + 2 for column in zip(heads, *labels))
        fit = max(1, (width - left) // NUMBER)
        title = Text(self.metric.label + (f" by {x_field(self.study)}" if x_field(self.study) else ""))
        return [title, *(self._table(heads, rows, labels, xs[i : i + fit]) for i in range(0, len(xs), fit))]

    def _table(
        self, heads: list[str], rows: list[tuple[Panel, tuple[Any, str]]], labels: list[list[str]], xs: list[Any]
    ) -> Table:  # fmt: skip
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for head in heads:
            table.add_column(head, no_wrap=True)
        for x in xs:
            table.add_column(str(x) if x_field(self.study) else "", justify="right", no_wrap=True)
        texts = {(panel, x): self.texts(panel, x) for panel in dict.fromkeys(panel for panel, _ in rows) for x in xs}
        for (panel, row), label in zip(rows, labels):
            cells = [texts[panel, x].get(row, "") for x in xs]
            if any(cells):
                table.add_row(*label, *cells)
        return table

    def _label(self, series: Any, classifier: str) -> str:
        titled = self.study.spec.report.series == "method" and series in METHODS
        return (METHODS.get(series).title if titled else str(series)) + CLASSIFIERS[classifier].suffix


def _text(cell: Cell, values: Mapping[int, float], mean: float | None, best: bool) -> str:
    """`50.6 2/3`, with a mark before it while one of them runs: columns are flush right, and numbers stay in place."""
    if not values:
        number = "failed" if cell.failed >= cell.trials else "-"
    elif mean is None:
        number = f"({fmean(values.values()):.1f})"
    else:
        number = f"[bold]{mean:.1f}[/]" if best else f"{mean:.1f}"
    return f"[dim]{'▸' if cell.running else ' '}[/]{number} [dim]{len(values)}/{len(cell.trials)}[/]"
