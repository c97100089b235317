"""Curves that are drawn: both on top of each other, the kill where it was, and where they differ it shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from computepool.networks.pictures import Mark, draw_curves, to_bars, to_svg

FALLING = [4.0, 3.0, 2.0, 1.5, 1.0]


def list_lines(svg: str) -> list[str]:
    return re.findall(r'<polyline points="([^"]*)"', svg)


def test_equal_curves_are_drawn_at_the_same_points():
    reference, run = list_lines(to_svg(title="t", reference=FALLING, run=FALLING))
    assert reference == run
    assert len(run.split()) == 5


def test_a_curve_that_differs_is_drawn_elsewhere_and_counted():
    svg = to_svg(title="t", reference=FALLING, run=[*FALLING[:-1], 1.2])
    reference, run = list_lines(svg)
    assert reference != run
    assert "4 of 5 losses equal" in svg


def test_the_picture_is_whole_xml_and_escapes_what_it_is_told(tmp_path):
    path = tmp_path / "curve.svg"
    draw_curves(path, title="<a & b>", reference=FALLING, run=FALLING, marks=[Mark(3, "kill", ("one", "two"))])
    texts = [node.text for node in ElementTree.parse(path).iter() if node.text and node.text.strip()]
    assert {"<a & b>", "kill", "one", "two"} <= set(texts)


def test_losses_that_are_no_numbers_leave_a_gap():
    [_, run] = list_lines(to_svg(title="t", reference=FALLING, run=[4.0, float("nan"), 2.0]))
    assert len(run.split()) == 2


def test_bars_fall_with_the_loss_and_fit_the_width():
    assert to_bars([3.0, 2.0, 1.0]) == "█▅▁"
    assert len(to_bars([float(number) for number in range(1_000)], 40)) == 40
    assert to_bars([]) == to_bars([float("nan")]) == ""
    assert to_bars([1.0, 1.0]) == "▁▁"
