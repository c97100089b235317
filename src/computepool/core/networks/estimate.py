"""How fast a partition trains, before anything runs, against one machine that holds all of it.

A step fills the pipeline, goes at the pace of whatever is slowest (a machine, a link, or the way there and back over
the few micro-batches that may be under way), drains it, and updates. Only figures of `cost.py` and of the machines
come in. Lines are taken as their owners tell them and processors as they are when nothing else runs; what silences of
lines and others on the same machine make of that is the machines' pace, as runs have shown it (`pace.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from computepool.core.networks.cost import (
    IN_FLIGHT_PER_CROSSING,
    EdgeCost,
    VNodeCost,
    estimate_edges,
    estimate_vnodes,
)
from computepool.core.networks.graph import Graph, draw_graph
from computepool.core.networks.spec import Edge, NetworkSpec

_FLOAT_BYTES = 4
# A run that is slower than its figures promise by less is not worth a word.
_PACE_TOLD_BELOW = 0.9
# What one tensor on its way takes of each end, with the credit that comes back for it: processor time of hosts that
# train a network of almost no work, over the tensors that they send and get. By relay, half of the hub's time for it
# is added to either end.
FRAME_SECONDS = 0.0010
RELAYED_FRAME_SECONDS = 0.0013
# Small blocks do not run at the speed of large matrices: every call of the array library takes a while whatever its
# size, and what is kept for the way back is written and read besides. Both were fitted to steps of one process, less
# their flops at the measured speed, from a perceptron up to a transformer of 256 features.
CALL_SECONDS = 6e-6
KEPT_BYTE_SECONDS = 0.8e-9


def find_frame_seconds(*, reachable: bool) -> float:
    return FRAME_SECONDS if reachable else RELAYED_FRAME_SECONDS


@dataclass(frozen=True, slots=True)
class Machine:
    flops_per_second: float
    # What it sends to others, and how long the first byte of it takes.
    bytes_per_second: float = inf
    latency_seconds: float = 0.0
    # Of its processor, per tensor that it sends or gets.
    frame_seconds: float = FRAME_SECONDS
    # Beside flops: per call of the array library, and per byte that is kept from forward to backward.
    call_seconds: float = CALL_SECONDS
    kept_byte_seconds: float = KEPT_BYTE_SECONDS
    # How fast runs over several machines lately went with it, against what these figures promise.
    pace_ratio: float = 1.0

    def work_seconds(self, cost: VNodeCost) -> float:
        """Forward and backward of one micro-batch."""
        flops_seconds = cost.flops / self.flops_per_second
        return flops_seconds + cost.calls * self.call_seconds + cost.kept_bytes * self.kept_byte_seconds

    def update_seconds(self, cost: VNodeCost) -> float:
        return cost.update_calls * self.call_seconds


@dataclass(frozen=True, slots=True)
class Estimate:
    samples_per_second: float
    # On the fastest of these machines, if it could hold all of it.
    samples_per_second_one_machine: float
    seconds_per_step: float
    # By machine: how much of a step it computes.
    busy_share: tuple[float, ...]
    # Between machines, per step.
    cut_bytes: int
    warnings: tuple[str, ...]

    @property
    def against_one_machine(self) -> float:
        return self.samples_per_second / self.samples_per_second_one_machine


def estimate_speed(spec: NetworkSpec, machines: Sequence[Machine], places: Mapping[tuple[str, int], int]) -> Estimate:
    """`places`: the number of its machine, for every VNode and replica. For a spec without faults."""
    graph, vnodes, edges = draw_graph(spec), estimate_vnodes(spec), estimate_edges(spec)
    per_replica = -(-spec.micro_batches // spec.replicas)
    work = _total_work(spec, machines, vnodes, edges, places)
    seconds, cut_bytes = 0.0, 0
    for replica in range(spec.replicas):
        way = _find_way(graph, machines, vnodes, edges, places, replica)
        slowest = max(*work, *way.link_seconds, way.round_trip_seconds / way.window)
        seconds = max(seconds, way.round_trip_seconds + (per_replica - 1) * slowest)
        cut_bytes += per_replica * way.cut_bytes
    summing, summed_bytes = _sum_replicas(spec, machines, vnodes, places)
    clipping = _wait_for_norm(spec, machines, places)
    seconds += summing + clipping + _update(machines, vnodes, places)
    pace = _find_pace(machines, places)
    seconds /= pace
    alone = min(_train_alone(spec, machine, vnodes.values()) for machine in machines)
    busy = tuple(min(1.0, each * per_replica / seconds) if seconds else 0.0 for each in work)
    samples, samples_alone = _rate(spec.batch_size, seconds), _rate(spec.batch_size, alone)
    used = len(set(places.values()))
    warnings = _list_warnings(spec, samples, samples_alone, used=used, clipping=clipping, pace=pace)
    return Estimate(samples, samples_alone, seconds, busy, cut_bytes + summed_bytes, warnings)


@dataclass(frozen=True, slots=True)
class _Way:
    """One micro-batch from the front to the loss and back."""

    round_trip_seconds: float
    # Of every direction of every pair of machines.
    link_seconds: tuple[float, ...]
    # Micro-batches that may be under way at once.
    window: int
    cut_bytes: int


def _total_work(
    spec: NetworkSpec,
    machines: Sequence[Machine],
    vnodes: Mapping[str, VNodeCost],
    edges: Mapping[Edge, EdgeCost],
    places: Mapping[tuple[str, int], int],
) -> list[float]:
    """Seconds that each machine works while every replica does one micro-batch."""
    work = [0.0 for _ in machines]
    for (vnode_id, _), machine in places.items():
        work[machine] += machines[machine].work_seconds(vnodes[vnode_id])
    for replica in range(spec.replicas):
        for cost in edges.values():
            ends = (places[cost.edge.source, replica], places[cost.edge.target, replica])
            frames = 2 if cost.backward_bytes else 1
            for machine in ends if ends[0] != ends[1] else ():
                work[machine] += frames * machines[machine].frame_seconds
    return work


def _find_way(
    graph: Graph,
    machines: Sequence[Machine],
    vnodes: Mapping[str, VNodeCost],
    edges: Mapping[Edge, EdgeCost],
    places: Mapping[tuple[str, int], int],
    replica: int,
) -> _Way:
    arrived = dict.fromkeys(graph.order, 0.0)
    depth = dict.fromkeys(graph.order, 1)
    busy_until = [0.0 for _ in machines]
    links: dict[tuple[int, int], float] = {}
    cut_bytes = 0
    for vnode_id in graph.order:
        here = places[vnode_id, replica]
        machine = machines[here]
        # There and back in one: what comes back does so along the same way.
        ended = max(arrived[vnode_id], busy_until[here]) + machine.work_seconds(vnodes[vnode_id])
        busy_until[here] = ended
        for edge in graph.outputs[vnode_id]:
            there = places[edge.target, replica]
            cost, seconds = edges[edge], 0.0
            if there != here:
                seconds = _cross(machine, machines[there], cost)
                cut_bytes += cost.size_bytes
                for pair, size in (((here, there), cost.forward_bytes), ((there, here), cost.backward_bytes)):
                    links[pair] = links.get(pair, 0.0) + size / machines[pair[0]].bytes_per_second
            arrived[edge.target] = max(arrived[edge.target], ended + seconds)
            depth[edge.target] = max(depth[edge.target], depth[vnode_id] + (there != here))
    window = 1 + (max(depth.values()) - 1) * IN_FLIGHT_PER_CROSSING
    return _Way(max(busy_until), tuple(links.values()), window, cut_bytes)


def _cross(sender: Machine, receiver: Machine, cost: EdgeCost) -> float:
    """Forward, and back if a gradient comes back."""
    seconds = cost.forward_bytes / sender.bytes_per_second + sender.latency_seconds
    frames = 1
    if cost.backward_bytes:
        seconds += cost.backward_bytes / receiver.bytes_per_second + receiver.latency_seconds
        frames = 2
    return seconds + frames * (sender.frame_seconds + receiver.frame_seconds)


def _sum_replicas(
    spec: NetworkSpec,
    machines: Sequence[Machine],
    vnodes: Mapping[str, VNodeCost],
    places: Mapping[tuple[str, int], int],
) -> tuple[float, int]:
    """Gradients go to replica 0 and their sum comes back, once per step, with all weights at one time."""
    sending: dict[int, float] = {}
    size_bytes = 0
    for vnode_id, cost in vnodes.items():
        root = places[vnode_id, 0]
        for replica in range(1, spec.replicas):
            there = places[vnode_id, replica]
            if there != root:
                for machine in (root, there):
                    size = cost.parameter_count * _FLOAT_BYTES
                    sending[machine] = sending.get(machine, 0.0) + size / machines[machine].bytes_per_second
                    size_bytes += size
    latency = max((machines[machine].latency_seconds for machine in sending), default=0.0)
    return sum(sorted(sending.values())[-2:]) + 2 * latency, size_bytes


def _wait_for_norm(spec: NetworkSpec, machines: Sequence[Machine], places: Mapping[tuple[str, int], int]) -> float:
    """With a bound on the norm of all gradients nobody updates before all have told theirs to the loss's machine."""
    if spec.optimizer.clip_norm is None:
        return 0.0
    root = places[spec.loss, 0]
    others = set(places.values()) - {root}
    # There and back to the farthest; the root has to do with all of them.
    both = (
        machines[root].latency_seconds + machines[each].latency_seconds + 2 * machines[each].frame_seconds
        for each in others
    )
    return max(both, default=0.0) + 2 * len(others) * machines[root].frame_seconds


def _update(
    machines: Sequence[Machine], vnodes: Mapping[str, VNodeCost], places: Mapping[tuple[str, int], int]
) -> float:
    """Nobody begins a step before its own update of the one before; all update at about the same time."""
    updating = [0.0 for _ in machines]
    for (vnode_id, _), machine in places.items():
        updating[machine] += machines[machine].update_seconds(vnodes[vnode_id])
    return max(updating)


def _find_pace(machines: Sequence[Machine], places: Mapping[tuple[str, int], int]) -> float:
    """All wait for the slowest. On one machine no line counts, and what is known is of runs with lines."""
    used = set(places.values())
    return min(machines[each].pace_ratio for each in used) if len(used) > 1 else 1.0


def _train_alone(spec: NetworkSpec, machine: Machine, vnodes: Collection[VNodeCost]) -> float:
    work = sum(machine.work_seconds(cost) for cost in vnodes)
    return spec.micro_batches * work + sum(machine.update_seconds(cost) for cost in vnodes)


def _rate(samples: int, seconds: float) -> float:
    return samples / seconds if seconds else inf


def _list_warnings(
    spec: NetworkSpec, samples: float, alone: float, *, used: int, clipping: float, pace: float
) -> tuple[str, ...]:
    warnings = []
    if used > 1 and samples < alone:
        warnings.append(
            f"one machine that holds all of it would be faster ({alone:,.1f} samples/s against {samples:,.1f}): "
            "split only what does not fit"
        )
    if used > 1 and spec.micro_batches // spec.replicas < used:
        warnings.append(
            f"{spec.micro_batches} micro-batches do not keep {used} machines busy: give at least "
            f"{used * spec.replicas}"
        )
    if clipping:
        warnings.append(f"clip_norm makes everybody wait for each other once per step: {1_000 * clipping:,.1f} ms")
    if pace < _PACE_TOLD_BELOW:
        warnings.append(
            f"runs with these machines lately came to {pace:.0%} of what their lines and processors promise: that "
            "is reckoned with"
        )
    return tuple(warnings)
