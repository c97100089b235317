"""The conditions of owners on a real database: what is stored, what is refused, what holds for whom and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from computepool.core.accounts.roles import Role
from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.ids import NodeId
from computepool.core.jobs.spec import Requirements
from computepool.core.market.offers import Audience
from computepool.core.placement.gates import Gate
from computepool.core.placement.idleness import IdleReason
from computepool.hub.http.why import _to_job_why, _to_node_why
from computepool.hub.services import nodes as node_service
from computepool.hub.services import why as why_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.offers import find_closed
from computepool.hub.services.why import JobStory, NodeStory
from computepool.hub.store import nodes as node_store
from computepool.hub.store import offers as offer_store
from computepool.hub.store.nodes import OfferedSlot
from tests.integration.test_services_why import BOOK, PRICES
from tests.support.builders import GB
from tests.support.stored_grid import StoredGrid, open_grid

CREDIT = 1_000_000
_ZERO = UUID(int=0)
# Monday.
NOON = datetime(2030, 1, 7, 12, 0, tzinfo=UTC)


@pytest.fixture
async def grid(dsn: str) -> AsyncIterator[StoredGrid]:
    async with open_grid(dsn) as grid:
        yield grid


@pytest.fixture
async def owner(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


@pytest.fixture
async def person(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


async def email_of(grid: StoredGrid, caller: AccountCaller) -> str:
    return await grid.fetch_value("SELECT email FROM accounts WHERE id = $1", caller.account_id)


async def list_offered(grid: StoredGrid, *nodes: NodeId) -> list[OfferedSlot]:
    async with grid.pool.acquire() as conn:
        return await node_store.list_candidates(conn, nodes)


def hours_at(moment: datetime) -> dict[str, str]:
    """Open for the hour of this moment, and no other."""
    day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[moment.weekday()]
    return {"hours": f"{day} {moment.hour}-{moment.hour + 1}", "zone": "UTC"}


def far_from_now() -> datetime:
    return datetime.now(UTC) + timedelta(days=3)


# What is set


async def test_an_offer_is_stored_whole_and_read_back_with_its_slots(grid, owner, person):
    node = await grid.enrol(owner, cpu_slots=2)
    changed = await grid.set_offer(
        owner,
        node,
        floor_microcredits_per_hour=8 * CREDIT,
        hours="mon-fri 19-7",
        zone="Europe/Berlin",
        seconds_min=60,
        kinds=("ml", "compute"),
        audience=Audience.NAMED,
        accounts=(await email_of(grid, person), str(owner.account_id)),
    )
    offer = changed.offer
    assert (offer.floor_microcredits_per_hour, offer.seconds_min, offer.kinds) == (8 * CREDIT, 60, {"ml", "compute"})
    assert (offer.audience, offer.named) == (Audience.NAMED, {person.account_id})
    assert str(offer.schedule.zone) == "Europe/Berlin"
    assert offer.schedule.next_open_at(NOON) == NOON.replace(hour=18), "19:00 in Berlin"
    for each in await list_offered(grid, node):
        assert (each.slot.slice_seconds_min, each.slot.job_kinds) == (60, {"ml", "compute"})
        assert each.slot.welcome == {owner.account_id, person.account_id}
        assert each.schedule == offer.schedule
    assert (await node_service.get_node(grid.pool, owner, node)).offer == offer
    [listed] = await node_service.list_nodes(grid.pool, owner, after=NodeId(_ZERO), limit=10)
    assert listed.offer == offer


async def test_a_node_without_conditions_is_lent_to_anyone_at_all_hours_for_all_work(grid, owner):
    node = await grid.enrol(owner, floor=5)
    [each] = await list_offered(grid, node)
    assert (each.slot.slice_seconds_min, each.slot.job_kinds, each.slot.welcome, each.schedule) == (
        0,
        set(),
        None,
        None,
    )
    offer = (await node_service.get_node(grid.pool, owner, node)).offer
    assert (offer.floor_microcredits_per_hour, offer.audience) == (5, Audience.ANYONE)


async def test_an_offer_takes_the_place_of_the_one_before_and_is_told_once(grid, owner):
    node = await grid.enrol(owner)
    told = f"SELECT count(*) FROM hub_changes WHERE kind = 'node' AND subject_id = '{node}'"
    before = await grid.fetch_value(told)
    await grid.set_offer(owner, node, seconds_min=60, hours="sat", zone="UTC", audience=Audience.OWN)
    await grid.set_offer(owner, node, kinds=("ml",))
    await grid.set_offer(owner, node, kinds=("ml",))
    offer = (await node_service.get_node(grid.pool, owner, node)).offer
    assert (offer.seconds_min, offer.schedule, offer.audience, offer.kinds) == (0, None, Audience.ANYONE, {"ml"})
    assert await grid.fetch_value(told) == before + 2, "nothing is told where nothing has changed"
    body = await grid.fetch_value("SELECT body FROM events WHERE kind = 'node_offer_set' ORDER BY id DESC LIMIT 1")
    assert (body["kinds"], body["before"]["hours"], body["before"]["audience"]) == (["ml"], "sat", "own")


async def test_an_agent_that_enrols_anew_leaves_the_offer_as_it_is(grid, owner):
    node = await grid.enrol(owner)
    await grid.set_offer(owner, node, seconds_min=60, audience=Audience.OWN)
    await grid.execute("UPDATE nodes SET name = 'renamed' WHERE id = $1", node)
    assert (await node_service.get_node(grid.pool, owner, node)).offer.seconds_min == 60


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"hours": "mon", "zone": "Europe/Atlantis"}, "zone 'Europe/Atlantis' is unknown"),
        ({"hours": "mon", "zone": "../../etc/passwd"}, "is unknown"),
        ({"hours": "mon", "zone": "localtime"}, "is unknown"),
        ({"hours": "mon", "zone": "Europe"}, "is unknown"),
        ({"hours": "mon", "zone": "U\0TC"}, "is unknown"),
        ({"hours": "mon"}, "hours need the zone"),
        ({"zone": "UTC"}, "no hours are given"),
        ({"hours": "", "zone": "UTC"}, "names no hours"),
        ({"hours": "never", "zone": "UTC"}, "'never' is no day"),
        ({"kinds": ("mining",)}, "kind 'mining' is unknown; there are compute, gaming, ml"),
        ({"seconds_min": 45}, "seconds_min must be one of 0, 10, 60"),
        ({"seconds_min": -1}, "seconds_min must be one of"),
        ({"audience": Audience.NAMED}, "no other account is"),
        (
            {"audience": Audience.NAMED, "accounts": ("nobody@example.org",)},
            "account 'nobody@example.org' is unknown",
        ),
        ({"audience": Audience.NAMED, "accounts": (str(NodeId(_ZERO)),)}, "is unknown; name it by its id"),
        ({"audience": Audience.NAMED, "accounts": ("a\0b",)}, "is unknown"),
        ({"audience": Audience.NAMED, "accounts": tuple(f"a{n}@b.c" for n in range(102))}, "takes 100 at most"),
    ],
)
async def test_a_bad_offer_is_refused_with_what_to_do_and_changes_nothing(grid, owner, terms, words):
    node = await grid.enrol(owner, floor=7)
    with pytest.raises(InvalidRequest) as refusal:
        await grid.set_offer(owner, node, **terms)
    assert words in refusal.value.message
    assert await grid.fetch_value("SELECT count(*) FROM offers") == 0
    assert await grid.fetch_value("SELECT floor_microcredits_per_hour FROM nodes") == 7


async def test_to_name_oneself_alone_is_to_name_nobody(grid, owner):
    node = await grid.enrol(owner)
    with pytest.raises(InvalidRequest, match="choose own or anyone"):
        await grid.set_offer(owner, node, audience=Audience.NAMED, accounts=(str(owner.account_id),))


async def test_accounts_that_are_named_for_no_pool_are_refused(grid, owner, person):
    node = await grid.enrol(owner)
    with pytest.raises(InvalidRequest, match="choose named, or name none"):
        await grid.set_offer(owner, node, accounts=(str(person.account_id),))


async def test_every_fault_is_told_at_once(grid, owner):
    node = await grid.enrol(owner)
    with pytest.raises(InvalidRequest) as refusal:
        await grid.set_offer(owner, node, hours="x", zone="UTC", kinds=("y",), seconds_min=1)
    assert all(word in refusal.value.message for word in ("'x'", "'y'", "seconds_min"))


# Hours


async def test_schedules_that_are_closed_are_listed_once_each_with_their_opening(grid, owner):
    for hours, zone in [("mon 9-17", "UTC"), ("mon 9-17", "UTC"), ("mon 13-17", "UTC"), ("mon 9-17", "Asia/Tokyo")]:
        await grid.set_offer(owner, await grid.enrol(owner), hours=hours, zone=zone)
    async with grid.pool.acquire() as conn:
        closed = await find_closed(conn, NOON)
        assert len(await offer_store.list_schedules(conn, limit=10)) == 3
    found = {(each.zone, opens) for each, opens in zip(closed.schedules, closed.opens_at, strict=True)}
    # In Tokyo it is 21:00; the week there begins anew on Sunday night in Greenwich.
    assert found == {
        ("UTC", NOON + timedelta(hours=1)),
        ("Asia/Tokyo", datetime(2030, 1, 14, 0, 0, tzinfo=UTC)),
    }


async def test_a_zone_that_a_hub_does_not_know_keeps_the_node_closed_there(grid, owner, monkeypatch):
    node = await grid.enrol(owner)
    await grid.set_offer(owner, node, hours="mon-sun", zone="Europe/Berlin")
    monkeypatch.setattr(offer_store, "find_zone", lambda name: None)
    [each] = await list_offered(grid, node)
    assert not each.schedule.is_open(NOON)
    assert each.schedule.next_open_at(NOON) is None


# Why


async def why_job(grid: StoredGrid, caller: AccountCaller, **job: Any) -> JobStory:
    job_id = await grid.add_job(caller, **job)
    story = await why_service.explain_job(grid.pool, grid.settings, BOOK, PRICES, caller, job_id, slice_index=None)
    _to_job_why(story)
    return story


async def why_node(grid: StoredGrid, owner: AccountCaller, node: NodeId) -> NodeStory:
    story = await why_service.explain_node(grid.pool, grid.settings, PRICES, owner, node)
    _to_node_why(story)
    return story


@pytest.mark.parametrize(
    ("terms", "gate", "note"),
    [
        (
            {"kinds": ("ml",)},
            Gate.KIND,
            "1 slot would fit, but is lent for jobs of the kind ml only; this one is compute.",
        ),
        ({"audience": Audience.OWN}, Gate.POOL, "1 slot would fit, but is kept for a private pool"),
        ({"seconds_min": 3_600}, Gate.SECONDS, None),
    ],
)
async def test_a_job_that_waits_for_an_owners_condition_is_told_of_it(grid, owner, person, terms, gate, note):
    node = await grid.enrol(owner)
    await grid.set_offer(owner, node, **terms)
    found = (await why_job(grid, person)).waiting.explanation
    assert {each.gate: each.failed_count for each in found.gates} == {gate: 1}
    assert [each.startswith(note) for each in found.notes] == ([True] if note else [])
    if gate is Gate.SECONDS:
        [suggestion] = found.suggestions
        assert (suggestion.requirements.slice_seconds, suggestion.slot_count) == (3_600, 1)
        # As told, it fits.
        longer = (await why_job(grid, person, wall_seconds=3_600)).waiting.explanation
        assert (longer.pass_count, longer.free_count) == (1, 1)


async def test_a_job_that_waits_for_the_hour_is_told_when_it_strikes(grid, owner, person):
    node = await grid.enrol(owner)
    opens = far_from_now().replace(minute=0, second=0, microsecond=0)
    await grid.set_offer(owner, node, **hours_at(opens))
    found = (await why_job(grid, person)).waiting.explanation
    assert (found.slot_count, found.pass_count, found.away_count) == (0, 0, 0)
    [place] = found.places
    assert place.opens_at == opens
    assert f"opens on {opens:%A %H:00} UTC" in found.notes[0]
    told = (await why_node(grid, owner, node)).idleness
    assert told.reason is IdleReason.CLOSED
    assert f"It opens on {opens:%A %H:00} (UTC)." in told.words


async def test_those_who_are_welcome_see_a_pool_as_any_other_slot_and_its_owner_pays_nothing(grid, owner, person):
    node = await grid.enrol(owner, floor=20 * CREDIT)
    poor, rich = Requirements(ceiling_microcredits_per_hour=CREDIT), Requirements()
    await grid.set_offer(
        owner,
        node,
        floor_microcredits_per_hour=20 * CREDIT,
        audience=Audience.NAMED,
        accounts=(str(person.account_id),),
    )
    assert (await why_job(grid, person, need=rich)).waiting.explanation.pass_count == 1
    assert (await why_job(grid, person, need=poor)).waiting.explanation.pass_count == 0
    await grid.set_offer(owner, node, floor_microcredits_per_hour=20 * CREDIT, audience=Audience.OWN)
    assert (await why_job(grid, owner, need=poor)).waiting.explanation.pass_count == 1
    assert (await why_job(grid, person, need=rich)).waiting.explanation.pass_count == 0


async def test_the_score_table_shows_no_slot_that_is_not_for_the_job(grid, owner, person):
    open_to_all = await grid.enrol(owner, name="open")
    for terms in ({"kinds": ("ml",)}, {"seconds_min": 3_600}, {"audience": Audience.OWN}, hours_at(far_from_now())):
        await grid.set_offer(owner, await grid.enrol(owner), **terms)
    job = await grid.add_job(person)
    await grid.add_attempt(job, open_to_all, "cpu:0")
    story = await why_service.explain_job(grid.pool, grid.settings, BOOK, PRICES, person, job, slice_index=None)
    assert (story.story.choice.fit_count, len(story.story.choice.ranked)) == (1, 1)


async def test_a_private_node_is_told_of_the_work_of_those_it_is_for(grid, owner, person):
    node = await grid.enrol(owner)
    await grid.set_offer(owner, node, audience=Audience.NAMED, accounts=(str(person.account_id),))
    for slices, priority_class in ((30, "normal"), (4, "high")):
        await grid.add_job(await grid.sign_up(), slices=slices, priority_class=priority_class)
    told = (await why_node(grid, owner, node)).idleness
    assert (told.reason, told.waiting_count, told.fitting_count) == (IdleReason.NOTHING_FITS, 34, 0)
    [change] = told.offer_changes
    assert (change.gate, change.value, change.slice_count) == (Gate.POOL, "anyone", 34)
    await grid.add_job(person, slices=2)
    await grid.add_job(owner, slices=3, priority_class="low")
    told = (await why_node(grid, owner, node)).idleness
    assert (told.reason, told.waiting_count, told.fitting_count) == (IdleReason.WORK_FITS, 39, 5)


async def test_an_owner_who_gives_up_the_condition_as_told_gets_the_work(grid, owner, person):
    node = await grid.enrol(owner)
    await grid.set_offer(owner, node, seconds_min=3_600, kinds=("gaming",))
    await grid.add_job(person, slices=9, need=Requirements(job_kind="gaming", slice_seconds=60))
    [change] = (await why_node(grid, owner, node)).idleness.offer_changes
    assert (change.gate, change.value, change.slice_count) == (Gate.SECONDS, "60", 9)
    await grid.set_offer(owner, node, seconds_min=60, kinds=("gaming",))
    assert (await why_node(grid, owner, node)).idleness.reason is IdleReason.WORK_FITS


async def test_operators_may_set_it_and_strangers_may_not(grid, owner, person):
    node = await grid.enrol(owner, ram_bytes=8 * GB)
    operator = await grid.sign_up(roles=frozenset(Role))
    assert (await grid.set_offer(operator, node, seconds_min=10)).offer.owner_id == owner.account_id
    with pytest.raises(NotFound):
        await grid.set_offer(person, node, seconds_min=60)
