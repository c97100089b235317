"""Three ways to count the same failures: a moving average, a plain Beta and the discounted Beta that is used."""

from __future__ import annotations

import random
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

from computepool.core.trust.reputation import (
    QUANTILE,
    Reliability,
    beta_quantile,
    record_fault,
    record_finished,
    reliability_bound,
)

WINDOW = 50
START = datetime(2030, 1, 1, tzinfo=UTC)
# Attempts of a busy node: idle decay plays no part.
EVERY = timedelta(minutes=20)


def make_traces() -> dict[str, list[bool]]:
    """Each event: whether an attempt ended well."""
    rng = random.Random("traces")
    return {
        "a veteran fails three times in a row": [True] * 200 + [False] * 3 + [True] * 117,
        "one failure in twenty, by chance": [rng.random() >= 0.05 for _ in range(320)],
        "a veteran's card goes bad": [True] * 200 + [rng.random() >= 0.4 for _ in range(120)],
        "a newcomer": [True] * 60,
    }


def list_traces() -> list[dict[str, Any]]:
    return [{"title": title, "lines": follow(events)} for title, events in make_traces().items()]


def follow(events: list[bool]) -> dict[str, list[float]]:
    recent: deque[bool] = deque(maxlen=WINDOW)
    good = bad = 0
    known = Reliability()
    lines: dict[str, list[float]] = {"moving average": [], "Beta": [], "discounted Beta": []}
    for number, well in enumerate(events):
        now = START + number * EVERY
        recent.append(well)
        good, bad = good + well, bad + (not well)
        known = (record_finished if well else record_fault)(known, now=now)
        lines["moving average"].append(sum(recent) / len(recent))
        lines["Beta"].append(beta_quantile(QUANTILE, good + 1.0, bad + 1.0))
        lines["discounted Beta"].append(reliability_bound(known, now=now))
    return lines
