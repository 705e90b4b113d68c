"""From the accuracy matrix to the paper's numbers. a[i][j] is the accuracy on task j after task i, in percent.

A_i = mean_{j<=i} a_ij, new A^n_i = a_ii, old A^o_i = mean_{j<i} a_ij, final = A_T,
forgetting after task i = mean_{j<=i} (max_{k<=i} a_kj - a_ij).
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

Row = list[float]


def average_accuracy(matrix: list[Row]) -> list[float]:
    return [fmean(row) for row in matrix]


def new_accuracy(matrix: list[Row]) -> list[float]:
    return [row[-1] for row in matrix]


def old_accuracy(matrix: list[Row]) -> list[float | None]:
    """None for the first task: there is nothing old yet."""
    return [fmean(row[:-1]) if len(row) > 1 else None for row in matrix]


def forgetting(matrix: list[Row]) -> list[float]:
    return [
        fmean(max(matrix[k][j] for k in range(j, i + 1)) - matrix[i][j] for j in range(i + 1))
        for i in range(len(matrix))
    ]


def summary(matrix: list[Row], prefix: str = "") -> dict[str, Any]:
    """All metrics of one head, as lists with one entry a task; `final_accuracy` is a number."""
    average = average_accuracy(matrix)
    return {
        f"{prefix}accuracy_matrix": matrix,
        f"{prefix}average_accuracy": average,
        f"{prefix}new_accuracy": new_accuracy(matrix),
        f"{prefix}old_accuracy": old_accuracy(matrix),
        f"{prefix}forgetting": forgetting(matrix),
        f"{prefix}final_accuracy": average[-1] if average else None,
    }
