"""Where the VNodes of a network would go on given machines, what crosses between them, and how fast that would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computepool.core.errors import InvalidRequest
from computepool.core.networks.cost import estimate_edges
from computepool.core.networks.estimate import Estimate, Machine, estimate_speed
from computepool.core.networks.needs import list_links, list_needs
from computepool.core.networks.partition import Host, Load, arrange
from computepool.core.networks.run import Part
from computepool.core.networks.spec import NetworkSpec

MEMORY_BYTES_ANY = 1 << 62


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    source: str
    target: str
    bytes_per_step: int
    # Its ends are on two machines.
    cut: bool


@dataclass(frozen=True, slots=True)
class Plan:
    # By VNode and replica: the number of its machine.
    places: dict[Part, int]
    edges: tuple[PlannedEdge, ...]
    estimate: Estimate

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.estimate.warnings


def plan_network(
    spec: NetworkSpec, machines: Sequence[Machine], *, memory_bytes: Sequence[int] | None = None
) -> Plan:
    """For a spec without faults. Raises InvalidRequest if the memory of these machines does not do."""
    memory = memory_bytes or [MEMORY_BYTES_ANY] * len(machines)
    hosts = [
        Host(size, machine.flops_per_second, machine.bytes_per_second)
        for size, machine in zip(memory, machines, strict=True)
    ]
    places = place_parts(spec, hosts)
    edges = tuple(
        PlannedEdge(
            edge.source,
            edge.target,
            cost.size_bytes * spec.micro_batches,
            any(places[edge.source, each] != places[edge.target, each] for each in range(spec.replicas)),
        )
        for edge, cost in estimate_edges(spec).items()
    )
    return Plan(places, edges, estimate_speed(spec, machines, places))


def place_parts(spec: NetworkSpec, hosts: Sequence[Host]) -> dict[Part, int]:
    """The number of its host for every VNode and replica; every host gets something to do."""
    needs = list_needs(spec)
    loads = [Load(need.memory_bytes, need.flops) for need in needs]
    found = arrange(loads, list_links(spec), hosts)
    if found is None:
        raise InvalidRequest(
            f"Network {spec.name} has {len(needs)} VNodes, which cannot be cut over {len(hosts)} machines: there "
            "must be one for each machine, and each must fit one's memory. Use fewer machines, or smaller blocks."
        )
    return {need.part: found[1].hosts[index] for index, need in enumerate(needs)}
