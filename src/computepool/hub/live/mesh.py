"""The grid as strangers see it, in memory: nodes, what runs on them, networks that train. Says what has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.live.pseudonyms import to_point, to_pseudonym
from computepool.core.nodes.state import NodeState
from computepool.core.placement.scorers import believe_tflops
from computepool.hub.store.live import LiveAttempt, OpenCounts, SeenEdge, SeenNode
from computepool.wire import live as wire

# More than these are not shown: a page could not draw them either.
NODES_MAX = 20_000
ARCS_MAX = 20_000
EDGES_MAX = 5_000
# How long a silent node is shown, dimmed.
SHOWN_SECONDS = 86_400.0


@dataclass(slots=True)
class _Pending:
    """What viewers have not been told yet."""

    nodes: set[NodeId] = field(default_factory=set)
    gone: set[NodeId] = field(default_factory=set)
    arcs: dict[AttemptId, LiveAttempt] = field(default_factory=dict)
    ended: set[AttemptId] = field(default_factory=set)
    edges: bool = False


class MeshState:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self.nodes: dict[NodeId, SeenNode] = {}
        self._live: dict[JobId, dict[AttemptId, LiveAttempt]] = {}
        self._busy: Counter[NodeId] = Counter()
        self._edges: list[SeenEdge] = []
        self._open = OpenCounts(0, 0, 0, 0)
        self._pending = _Pending()
        # Nodes as they are shown, until they change: making ten thousand anew would hold up calls.
        self._shown: dict[NodeId, wire.MeshNode] = {}

    def put_nodes(self, nodes: Iterable[SeenNode], *, asked: Collection[NodeId] | None) -> None:
        """Of those that were asked for (None: of all), those that there are."""
        found = {node.id: node for node in nodes}
        for id, node in found.items():
            if self.nodes.get(id) != node:
                self.nodes[id] = node
                self._change_node(id)
                self._pending.gone.discard(id)
        for id in [id for id in (self.nodes if asked is None else asked) if id not in found]:
            if self.nodes.pop(id, None) is not None:
                self._shown.pop(id, None)
                self._pending.gone.add(id)
                self._pending.nodes.discard(id)

    def put_live(self, attempts: Iterable[LiveAttempt], *, asked: Collection[JobId] | None) -> None:
        """What runs of the jobs that were asked for; None: of all jobs."""
        found: dict[JobId, dict[AttemptId, LiveAttempt]] = {}
        for attempt in attempts:
            found.setdefault(attempt.job_id, {})[attempt.id] = attempt
        for job_id in set(found).union(list(self._live) if asked is None else asked):
            self._replace_live(job_id, found.get(job_id, {}))

    def put_edges(self, edges: list[SeenEdge]) -> None:
        if edges != self._edges:
            self._edges = edges
            self._pending.edges = True

    def put_open(self, counts: OpenCounts) -> None:
        self._open = counts

    def _replace_live(self, job_id: JobId, now: dict[AttemptId, LiveAttempt]) -> None:
        before = self._live.get(job_id, {})
        for id in before.keys() - now.keys():
            self._count(before[id].node_id, -1)
            if self._pending.arcs.pop(id, None) is None:
                self._pending.ended.add(id)
        for id in now.keys() - before.keys():
            self._count(now[id].node_id, 1)
            self._pending.arcs[id] = now[id]
        if now:
            self._live[job_id] = now
        else:
            self._live.pop(job_id, None)

    def _count(self, node_id: NodeId, step: int) -> None:
        self._busy[node_id] += step
        if self._busy[node_id] <= 0:
            del self._busy[node_id]
        if node_id in self.nodes:
            self._change_node(node_id)

    def _change_node(self, id: NodeId) -> None:
        self._pending.nodes.add(id)
        self._shown.pop(id, None)

    def take_changes(self) -> tuple[wire.MeshDelta | None, dict[AccountId, list[NodeId]]]:
        """What is new since the last call; and whose nodes have changed, by owner."""
        pending, self._pending = self._pending, _Pending()
        owners: dict[AccountId, list[NodeId]] = {}
        for id in pending.nodes:
            owners.setdefault(self.nodes[id].account_id, []).append(id)
        delta = wire.MeshDelta(
            nodes=[self._show(id) for id in sorted(pending.nodes)],
            gone=[self._name("node", id) for id in sorted(pending.gone)],
            arcs=[self._to_arc(arc) for arc in pending.arcs.values()],
            ended=[self._name("attempt", id) for id in pending.ended],
            edges=self.list_edges() if pending.edges else None,
        )
        return (delta if delta != wire.MeshDelta() else None), owners

    def to_counts(self) -> wire.Counts:
        online = [node for node in self.nodes.values() if node.online]
        tiers: dict[str, list[int]] = {}
        for node in online:
            sums = tiers.setdefault(node.tier, [0, 0])
            sums[0] += node.slot_count
            sums[1] += min(node.slot_count, self._busy[node.id])
        return wire.Counts(
            nodes=len(self.nodes),
            nodes_online=len(online),
            slots=sum(each[0] for each in tiers.values()),
            busy_slots=sum(each[1] for each in tiers.values()),
            jobs_queued=self._open.jobs_queued,
            jobs_running=self._open.jobs_running,
            slices_queued=self._open.slices_queued,
            attempts_live=sum(len(attempts) for attempts in self._live.values()),
            networks_training=self._open.networks_training,
            tiers={tier: wire.TierCounts(slots=each[0], busy=each[1]) for tier, each in sorted(tiers.items())},
        )

    def list_nodes(self) -> list[wire.MeshNode]:
        return [self._show(id) for id in self.nodes]

    def list_arcs(self) -> list[wire.MeshArc]:
        return [self._to_arc(arc) for attempts in self._live.values() for arc in attempts.values()]

    @property
    def is_truncated(self) -> bool:
        return len(self.nodes) >= NODES_MAX or sum(map(len, self._live.values())) >= ARCS_MAX

    def find_node(self, pseudonym: str) -> SeenNode | None:
        return next((node for id, node in self.nodes.items() if self._name("node", id) == pseudonym), None)

    def _show(self, id: NodeId) -> wire.MeshNode:
        shown = self._shown.get(id)
        if shown is None:
            shown = self._shown[id] = self._to_node(self.nodes[id])
        return shown

    def _to_node(self, node: SeenNode) -> wire.MeshNode:
        busy = min(node.slot_count, self._busy[node.id])
        return wire.MeshNode(
            id=self._name("node", node.id),
            tier=node.tier,
            kind=node.kind,
            speed_tflops=round(believe_tflops(node.tier, node.cores, node.speed_tflops), 2),
            country=node.region,
            point=to_point(self._key, node.id, node.region),
            online=node.online and node.state is not NodeState.REMOVED,
            busy=busy > 0,
            slots=node.slot_count,
            busy_slots=busy,
            synthetic=node.synthetic,
            joined_at=node.created_at,
        )

    def _to_arc(self, arc: LiveAttempt) -> wire.MeshArc:
        return wire.MeshArc(
            id=self._name("attempt", arc.id),
            node=self._name("node", arc.node_id),
            job=self._name("job", arc.job_id),
            since=arc.leased_at,
        )

    def list_edges(self) -> list[wire.MeshEdge]:
        return [
            wire.MeshEdge(
                run=self._name("run", edge.run_id),
                source=self._name("node", edge.before_id),
                target=self._name("node", edge.node_id),
                vnodes=edge.pair_count,
            )
            for edge in self._edges
        ]

    def _name(self, kind: str, id: UUID) -> str:
        return to_pseudonym(self._key, kind, id)
