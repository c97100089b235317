"""The performance page says of every target whether it was met, and never more than was measured."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import lifecycle, meters, page, tables

TARGETS = tomllib.loads(page.TARGETS.read_text())


def make_result(name: str, **figures: float | None) -> dict[str, Any]:
    return {
        "benchmark": name,
        "at": "2026-01-01T12:00+00:00",
        "complete": True,
        "machine": {
            "processor": "some CPU",
            "cores": 2,
            "memory_gb": 8,
            "system": "Linux",
            "python": "3.11",
            "load_average_at_start": 0.1,
        },
        "tables": [{"title": "a | title", "columns": ["a", "b"], "rows": [["x", "1"]]}],
        "lines": ["\n  a line"],
        "curves": [],
        "figures": figures,
    }


@pytest.mark.parametrize(
    ("figure", "target", "met"),
    [
        (2.0, ">= 2", True),
        (1.99, ">= 2", False),
        (1.05, "<= 1.05", True),
        (1.06, "<= 1.05", False),
        (None, "<= 1", None),
    ],
)
def test_a_target_is_met_missed_or_not_measured(figure: float | None, target: str, met: bool | None) -> None:
    assert page.is_met(figure, target) is met


def test_every_benchmark_has_targets_and_a_place_on_the_page() -> None:
    assert set(TARGETS) == set(page.ABOUT)


def test_lifecycle_prints_exactly_the_figures_that_have_targets() -> None:
    assert set(lifecycle.to_result({})) == set(TARGETS["lifecycle"])
    assert set(lifecycle.to_result({}).values()) == {None}


def test_the_page_shows_a_missed_target_as_missed() -> None:
    results = {"match": make_result("match", growth_500_to_100k=1.2, ms_500_nodes=9.0, equal_best_score_share=None)}
    text = page.write_page(results, TARGETS, {"match": ["performance-match.png"]})
    assert "| match | `growth_500_to_100k` | 1.2 | at most 1.5 | met |" in text
    assert "| match | `ms_500_nodes` | 9 | at most 5 | **missed** |" in text
    assert "| match | `equal_best_score_share` | - | at least 1 | not measured |" in text
    assert "| hubs | `two_vs_one` | - | at least 1.6 | not measured |" in text
    assert "![match](../images/performance-match.png)" in text
    assert "shortened" not in text


def test_the_page_says_when_a_run_was_shortened() -> None:
    result = {**make_result("match", ms_500_nodes=1.0), "complete": False}
    text = page.write_page({"match": result}, TARGETS, {})
    assert "shortened form" in text
    assert "| 1 | at most 5 | met, in a shortened run |" in text


def test_a_report_is_stored_as_it_was_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "match.json"
    report = tables.Report("match", out=out)
    report.table("t", ["name", "value"], [["a", 1234.5], ["b", None]])
    report.curve("c", x="x", y="y", series={"one": [(1, 2.0)], "none": []})
    report.finish({"growth": 1.23456, "other": None})
    stored = page.read_results(tmp_path)["match"]
    assert stored["tables"] == [{"title": "t", "columns": ["name", "value"], "rows": [["a", "1,234"], ["b", "-"]]}]
    assert stored["curves"][0]["series"] == {"one": [[1, 2.0]]}
    assert (
        json.loads(capsys.readouterr().out.splitlines()[-1]) == stored["figures"] == {"growth": 1.2346, "other": None}
    )


def test_a_quantile_and_a_ratio_of_nothing_are_nothing() -> None:
    assert tables.quantile([], 0.5) is None
    assert tables.ratio(None, 1.0) is None
    assert tables.ratio(1.0, 0.0) is None
    assert tables.quantile([3.0, 1.0, 2.0], 0.99) == 3.0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_meter_sees_the_time_that_we_spend() -> None:
    import os

    meter = meters.Meter([os.getpid()])
    ends_at = time.process_time() + 0.1
    while time.process_time() < ends_at:
        pass
    spent = meter.read()
    assert spent.client == pytest.approx(0.1, abs=0.05)
    # The kernel counts in ticks of up to 10 ms.
    assert spent.server == pytest.approx(spent.client, abs=0.05)
    figures = spent.to_figures(10)
    assert figures["per_second"] == pytest.approx(10 / spent.wall)
    assert figures["client_us"] == pytest.approx(spent.client * 1e5)
