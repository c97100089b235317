"""Viewers get their own and nothing else, in bounded queues; strangers see pseudonyms and points of countries."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from computepool.core.errors import LimitExceeded
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.live.countries import BOXES
from computepool.core.live.pseudonyms import PSEUDONYM, to_name, to_point, to_pseudonym
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import SlotKind
from computepool.hub.live import viewers as viewers_module
from computepool.hub.live.feed import Live, Shapes, _Change
from computepool.hub.live.mesh import MeshState
from computepool.hub.live.viewers import QUEUE_FRAMES_MAX, Topic, Viewer, Viewers, say_bye, to_message
from computepool.hub.store.live import FeedEvent, LiveAttempt, SeenEdge, SeenNode
from computepool.wire import live as wire
from computepool.wire.live import ByeCode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALICE, MALLORY = AccountId(UUID(int=1)), AccountId(UUID(int=2))
JOB, OTHER_JOB = JobId(UUID(int=3)), JobId(UUID(int=4))
NODE, OTHER_NODE = NodeId(UUID(int=5)), NodeId(UUID(int=6))
KEY = bytes(range(32))


def make_event(id: int, account_id: AccountId, job_id: JobId) -> FeedEvent:
    return FeedEvent(id, NOW, "job_submitted", account_id, job_id, None, {"who": str(account_id)})


def make_live(kind: type[Live] = Live) -> Live:
    shapes = Shapes(job=lambda job: job, node=lambda node: node, line=lambda line: line, spots=None)  # type: ignore
    return kind(None, None, shapes, pseudonym_key=KEY, silence_seconds=60)  # type: ignore[arg-type]


def make_change() -> _Change:
    """Something of Alice's and something of Mallory's at once."""
    return _Change(
        events=[make_event(1, ALICE, JOB), make_event(2, MALLORY, OTHER_JOB)],
        jobs={
            JOB: SimpleNamespace(id=JOB, account_id=ALICE),  # type: ignore[dict-item]
            OTHER_JOB: SimpleNamespace(id=OTHER_JOB, account_id=MALLORY),  # type: ignore[dict-item]
        },
        nodes={
            NODE: SimpleNamespace(node=SimpleNamespace(id=NODE, account_id=ALICE)),  # type: ignore[dict-item]
            OTHER_NODE: SimpleNamespace(node=SimpleNamespace(id=OTHER_NODE, account_id=MALLORY)),  # type: ignore[dict-item]
        },
        mesh=wire.MeshDelta(gone=["x"]),
    )


def list_strange(live: Live, topic: Topic) -> list[str]:
    """What of Mallory's is in a frame."""
    frame = live._to_frame(topic, make_change())
    if frame is None:
        return []
    found = [f"event {event.id}" for event in frame.events if event.account_id == MALLORY]
    found += [f"job {row.job.id}" for row in frame.jobs if row.job.account_id == MALLORY]  # type: ignore[attr-defined]
    found += [f"node {row.node.node.id}" for row in frame.nodes if row.node.node.account_id == MALLORY]  # type: ignore
    return found


def test_a_frame_holds_what_is_ones_own_and_nothing_of_others():
    live = make_live()
    own = live._to_frame(Topic(account_id=ALICE), make_change())
    assert own is not None
    assert [event.id for event in own.events] == [1]
    assert [row.job.id for row in own.jobs] == [JOB]
    assert own.mesh is None
    assert list_strange(live, Topic(account_id=ALICE, mesh=True)) == []
    assert list_strange(live, Topic(everyone=True)) != []


def test_strangers_get_the_mesh_and_no_event_or_row():
    frame = make_live()._to_frame(Topic(mesh=True), make_change())
    assert frame is not None
    assert frame.mesh is not None
    assert (frame.events, frame.jobs, frame.nodes, frame.credits) == ([], [], [], False)


class Forgetful(Live):
    """Forgets to ask whose an event is."""

    def _list_own(self, topic: Topic, change: _Change) -> list[FeedEvent]:
        return change.events


class Careless(Forgetful):
    """And whose a row is."""

    def _list_own_rows(self, topic: Topic, change: _Change, own: Any) -> Any:
        return list(change.jobs.values()), list(change.nodes.values())


def test_control_frames_of_a_feed_that_forgets_tenants_are_caught_and_rows_have_a_guard_of_their_own():
    topic = Topic(account_id=ALICE)
    assert list_strange(make_live(Forgetful), topic) == ["event 2"]
    assert list_strange(make_live(Careless), topic) == ["event 2", f"job {OTHER_JOB}", f"node {OTHER_NODE}"]


def test_nothing_is_sent_where_nothing_has_changed():
    assert make_live()._to_frame(Topic(account_id=ALICE), _Change()) is None
    only_mallory = _Change(events=[make_event(1, MALLORY, OTHER_JOB)])
    assert make_live()._to_frame(Topic(account_id=ALICE), only_mallory) is None


# Queues


async def test_a_viewer_that_does_not_keep_up_loses_what_waits_and_gets_a_last_word():
    viewer = Viewer(Topic(), origin="1.2.3.4")
    for _ in range(QUEUE_FRAMES_MAX):
        viewer.put(b"frame")
    assert viewer.bye is None
    viewer.put(b"one too many")
    assert viewer.bye is ByeCode.SLOW
    assert await viewer.take() == b""
    viewer.put(b"late")
    assert await viewer.take() == b""


async def test_a_viewer_waits_for_frames_and_gets_all_that_wait_at_once():
    viewer = Viewer(Topic(), origin="1.2.3.4")
    waiting = asyncio.ensure_future(viewer.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    viewer.put(b"a")
    viewer.put(b"b")
    assert await waiting == b"ab"


async def test_frames_reach_the_viewers_of_their_topic_alone():
    found, topic = Viewers(), Topic(account_id=ALICE)
    mine = [Viewer(topic, origin=ALICE) for _ in range(60)]
    other = Viewer(Topic(account_id=MALLORY), origin=MALLORY)
    for viewer in (*mine, other):
        found.add(viewer)
    await found.publish(topic, b"x")
    assert all(list(viewer.waiting) == [b"x"] for viewer in mine)
    assert not other.waiting
    for viewer in (*mine, other):
        found.remove(viewer)
        found.remove(viewer)
    assert (len(found), found.topics) == (0, [])


def test_streams_of_one_origin_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(viewers_module, "VIEWERS_PER_ADDRESS_MAX", 2)
    found = Viewers()
    for _ in range(2):
        found.add(Viewer(Topic(), origin="1.2.3.4"))
    with pytest.raises(LimitExceeded):
        found.add(Viewer(Topic(), origin="1.2.3.4"))
    found.add(Viewer(Topic(), origin="5.6.7.8"))


def test_a_message_is_one_event_whatever_is_in_it():
    text = to_message("reset", wire.LiveReset(message="a\nb\r\ndata: c\n\nevent: d"), cursor="1:2").decode()
    assert text.splitlines()[:2] == ["id: 1:2", "event: reset"]
    assert text.count("\n\n") == 1
    assert json.loads(text.split("data: ", 1)[1])["message"] == "a\nb\r\ndata: c\n\nevent: d"
    assert all(b"retry: " in say_bye(code) for code in ByeCode)


# The mesh


def make_node(id: NodeId = NODE, **changes: Any) -> SeenNode:
    values: dict[str, Any] = {
        "id": id,
        "account_id": ALICE,
        "state": NodeState.ACTIVE,
        "region": "IN",
        "synthetic": False,
        "created_at": NOW,
        "online": True,
        "tier": "rtx-4090",
        "kind": SlotKind.GPU,
        "speed_tflops": 80.0,
        "cores": 8,
        "slot_count": 2,
        **changes,
    }
    return SeenNode(**values)


def make_attempt(number: int, job_id: JobId = JOB, node_id: NodeId = NODE) -> LiveAttempt:
    return LiveAttempt(AttemptId(UUID(int=100 + number)), job_id, node_id, NOW)


def take(mesh: MeshState) -> wire.MeshDelta:
    return mesh.take_changes()[0] or wire.MeshDelta()


def test_the_mesh_tells_what_has_changed_once():
    mesh = MeshState(KEY)
    mesh.put_nodes([make_node(), make_node(OTHER_NODE)], asked=None)
    assert len(take(mesh).nodes) == 2
    mesh.put_nodes([make_node(), make_node(OTHER_NODE)], asked=None)
    assert mesh.take_changes() == (None, {})
    mesh.put_live([make_attempt(1)], asked=[JOB])
    delta, owners = mesh.take_changes()
    assert delta is not None
    assert [(node.busy, node.busy_slots) for node in delta.nodes] == [(True, 1)]
    assert owners == {ALICE: [NODE]}
    mesh.put_live([], asked=[JOB])
    delta = take(mesh)
    assert len(delta.ended) == 1
    assert [node.busy for node in delta.nodes] == [False]
    mesh.put_nodes([], asked=[OTHER_NODE])
    assert len(take(mesh).gone) == 1
    assert [node.id for node in mesh.list_nodes()] == [to_pseudonym(KEY, "node", NODE)]


def test_work_that_came_and_went_between_two_frames_is_not_told():
    mesh = MeshState(KEY)
    mesh.put_live([make_attempt(1)], asked=[JOB])
    mesh.put_live([], asked=[JOB])
    assert mesh.take_changes() == (None, {})


def test_jobs_that_were_not_asked_for_stay_as_they_are():
    mesh = MeshState(KEY)
    mesh.put_live([make_attempt(1), make_attempt(2, OTHER_JOB)], asked=None)
    mesh.put_live([], asked=[JOB])
    assert [arc.job for arc in mesh.list_arcs()] == [to_pseudonym(KEY, "job", OTHER_JOB)]
    mesh.put_live([], asked=None)
    assert mesh.list_arcs() == []


def test_counts_are_of_what_is_online():
    mesh = MeshState(KEY)
    mesh.put_nodes([make_node(), make_node(OTHER_NODE, online=False)], asked=None)
    mesh.put_live([make_attempt(1)], asked=None)
    counts = mesh.to_counts()
    assert (counts.nodes, counts.nodes_online, counts.slots, counts.busy_slots) == (2, 1, 2, 1)
    assert counts.tiers == {"rtx-4090": wire.TierCounts(slots=2, busy=1)}


def test_edges_are_told_whole_when_one_has_changed():
    mesh = MeshState(KEY)
    edge = SeenEdge(UUID(int=9), NODE, OTHER_NODE, 3)  # type: ignore[arg-type]
    mesh.put_edges([edge])
    assert [each.vnodes for each in take(mesh).edges or ()] == [3]
    mesh.put_edges([edge])
    assert take(mesh).edges is None


# Names and places


def test_a_point_is_inside_its_country_and_always_the_same():
    for country, (west, south, east, north) in BOXES.items():
        points = {to_point(KEY, UUID(int=number), country) for number in range(20)}
        assert all(point and west <= point[0] <= east and south <= point[1] <= north for point in points), country
        assert to_point(KEY, NODE, country) == to_point(KEY, NODE, country)
    assert len({to_point(KEY, UUID(int=number), "IN") for number in range(20)}) == 20
    assert to_point(KEY, NODE, None) is None
    assert to_point(KEY, NODE, "ZZ") is None


def test_pseudonyms_say_nothing_without_the_key_and_differ_by_kind():
    assert to_pseudonym(KEY, "node", NODE) != to_pseudonym(bytes(32), "node", NODE)
    assert to_pseudonym(KEY, "node", NODE) != to_pseudonym(KEY, "job", NODE)
    assert str(NODE).replace("-", "")[:8] not in to_pseudonym(KEY, "node", NODE)
    assert PSEUDONYM.match(to_name(KEY, ALICE))
    assert len({to_name(KEY, UUID(int=number)) for number in range(500)}) > 480
