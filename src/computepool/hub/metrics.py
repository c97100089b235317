"""What the hub counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class HubMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._call_counters: dict[tuple[str, int], Counter] = {}
        self._call_timers: dict[str, Histogram] = {}
        self.calls = Counter("computepool_calls", "Calls answered.", ["route", "status"], registry=self.registry)
        self.call_seconds = Histogram(
            "computepool_call_seconds", "Time to answer, parked calls excluded.", ["route"], registry=self.registry
        )
        self.parked_calls = Gauge("computepool_parked_calls", "Nodes waiting at this hub.", registry=self.registry)
        self.nodes_online = Gauge("computepool_nodes_online", "Nodes heard lately.", registry=self.registry)
        self.leases_reaped = Counter("computepool_leases_reaped", "Attempts lost to silence.", registry=self.registry)
        self.sweeps_failed = Counter(
            "computepool_sweeps_failed", "Sweeper runs that failed.", ["sweeper"], registry=self.registry
        )

    def count_call(self, route: str, status: int, seconds: float | None) -> None:
        """`seconds` is None for calls that are held open on purpose."""
        counter = self._call_counters.get((route, status))
        if counter is None:
            # Looking a label up costs more than counting, and there are few of them.
            counter = self._call_counters[(route, status)] = self.calls.labels(route, str(status))
        counter.inc()
        if seconds is not None:
            timer = self._call_timers.get(route)
            if timer is None:
                timer = self._call_timers[route] = self.call_seconds.labels(route)
            timer.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)
