"""What the hub counts, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class HubMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = _Calls()
        self.registry.register(self._calls)
        self.count_call = self._calls.count
        self.parked_calls = Gauge("computepool_parked_calls", "Nodes waiting at this hub.", registry=self.registry)
        self.nodes_online = Gauge("computepool_nodes_online", "Nodes heard lately.", registry=self.registry)
        self.viewers = Gauge("computepool_viewers", "Live streams open at this hub.", registry=self.registry)
        self.viewers_cut = Counter(
            "computepool_viewers_cut", "Live streams ended because they did not keep up.", registry=self.registry
        )
        self.leases_reaped = Counter("computepool_leases_reaped", "Attempts lost to silence.", registry=self.registry)
        self.sweeps_failed = Counter(
            "computepool_sweeps_failed", "Sweeper runs that failed.", ["sweeper"], registry=self.registry
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _Calls:
    """Counts calls with plain numbers and words them when asked: the library's own counters lock at every call."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], int] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def count(self, route: str, status: int, seconds: float | None) -> None:
        """`seconds` is None for calls that are held open on purpose."""
        self._counts[route, status] = self._counts.get((route, status), 0) + 1
        if seconds is None:
            return
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(SECONDS_BOUNDS) + 1)
        buckets[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self._sums[route] = self._sums.get(route, 0.0) + seconds

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("computepool_calls", "Calls answered.", labels=["route", "status"])
        for (route, status), count in self._counts.items():
            calls.add_metric([route, str(status)], count)
        yield calls
        seconds = HistogramMetricFamily(
            "computepool_call_seconds", "Time to answer, parked calls excluded.", labels=["route"]
        )
        for route, buckets in self._buckets.items():
            total, rising = 0, []
            for bound, count in zip((*map(str, SECONDS_BOUNDS), "+Inf"), buckets, strict=True):
                total += count
                rising.append((bound, total))
            seconds.add_metric([route], rising, self._sums[route])
        yield seconds
