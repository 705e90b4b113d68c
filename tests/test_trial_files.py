"""The picture of an accuracy matrix, against Matplotlib's colours and the numbers themselves."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from matplotlib import colormaps

from pcr_ray.tracking.trial_files import READABLE, colour, matrix_svg

SVG = "{http://www.w3.org/2000/svg}"
MATRIX = [[91.4], [40.2, 88.0], [12.6, 59.4, 100.0]]


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> list[tuple[float, float, str]]:
    """Of the cells, by place: those of Matplotlib's colours that are no part of the frame, ground or scale."""
    found = [e.attrib for e in ElementTree.fromstring(svg).iter(f"{SVG}rect") if e.get("fill", "")[1:].isalnum()]
    return [(float(e["y"]), float(e["x"]), e["fill"]) for e in found if len(e["fill"]) == 7]


def test_a_picture_has_a_cell_and_a_number_for_each_accuracy_row_by_row() -> None:
    svg = matrix_svg(MATRIX, "title")
    drawn = boxes(svg)
    assert drawn == sorted(drawn) and [c for _, _, c in drawn] == [colour(a) for row in MATRIX for a in row]
    assert [len({y for y, _, _ in drawn}), len({x for _, x, _ in drawn})] == [3, 3]
    assert texts(svg)[:7] == ["title", "91", "40", "88", "13", "59", "100"]
    assert texts(svg)[7:13] == ["1", "1", "2", "2", "3", "3"]


def test_many_tasks_are_colours_alone() -> None:
    matrix = [[50.0] * (i + 1) for i in range(READABLE + 1)]
    svg = matrix_svg(matrix, "title")
    assert len(boxes(svg)) == sum(map(len, matrix)) and "50" not in texts(svg)


def test_a_title_is_text_whatever_is_in_it() -> None:
    odd = '<script>alert("1")</script> & more'
    assert texts(matrix_svg(MATRIX, odd))[0] == odd


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 7.0, 33.3, 50.0, 74.9, 99.9, 100.0])
def test_colours_are_viridis(accuracy: float) -> None:
    wanted = colormaps["viridis"](accuracy / 100)
    found = bytes.fromhex(colour(accuracy)[1:])
    assert max(abs(a - 255 * b) for a, b in zip(found, wanted)) < 6


def test_what_is_no_accuracy_has_a_colour_too() -> None:
    assert colour(float("nan")) == "#ddd"
    assert (colour(-5.0), colour(250.0)) == (colour(0.0), colour(100.0))
