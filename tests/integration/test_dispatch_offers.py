"""Conditions of owners in dispatch: who is given what and when, on a clock that is handed in, with its controls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from computepool.core.ids import AttemptId
from computepool.core.market.offers import Audience
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.leaves import JOB_KIND, SLICE_SECONDS, WANTS
from computepool.core.placement.pools import Fleet
from computepool.hub.dispatch.reception import Reception
from computepool.hub.dispatch.registry import Registry
from computepool.hub.services import nodes as node_service
from computepool.hub.services import offers as offer_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store.jobs import Job
from computepool.node.tokens import make_assertion
from computepool.wire.nodes import RenewToken, SetOffer
from tests.integration.test_dispatch_rounds import Dispatch, compose, list_attempts, list_live
from tests.support.postgres import wait_for
from tests.support.spine import EnrolledNode, Spine, open_spine

# Monday, an hour and a bit before the node opens.
EIGHT_PAST_NOON = datetime(2030, 1, 7, 12, 8, tzinfo=UTC)
AFTERNOON = {"hours": "mon 14-15", "zone": "UTC"}
MOMENT = 0.3


@dataclass
class Clock:
    now: datetime = EIGHT_PAST_NOON

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True)
class Leased:
    """A lease, as far as its node must know it to end it."""

    id: AttemptId


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


@pytest.fixture
def dispatch(spine: Spine, clock: Clock) -> Dispatch:
    return compose(spine, clock)


@pytest.fixture
async def owner(spine: Spine) -> AccountCaller:
    return await spine.sign_up()


async def set_offer(spine: Spine, owner: AccountCaller, node: EnrolledNode, *hubs: Dispatch, **terms: Any) -> None:
    """As the API does it, at these hubs."""
    await offer_service.set_offer(spine.pool, spine.leases.prices, owner, node.id, SetOffer(**terms))
    for hub in hubs:
        await hub.reception.look_at_node(node.id)


@contextlib.asynccontextmanager
async def running(*hubs: Dispatch) -> AsyncIterator[None]:
    """Rounds and timers go by themselves, as in a hub."""
    chores = [chore for hub in hubs for chore in (hub.rounds.run(), hub.rounds.run_timer(lambda _: None))]
    started = [asyncio.create_task(chore) for chore in chores]
    try:
        yield
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)


async def is_leased(spine: Spine, job: Job) -> bool:
    return bool(await spine.fetch_value("SELECT count(*) FROM attempts WHERE job_id = $1", job.id))


# Hours


async def test_a_closed_node_is_given_nothing_and_every_hub_opens_its_own_at_the_hour(spine, owner, clock):
    hubs = [compose(spine, clock), compose(spine.open_second_hub(), clock)]
    nodes = [await spine.enrol(owner=owner) for _ in hubs]
    for node in nodes:
        await set_offer(spine, owner, node, **AFTERNOON)
    async with running(*hubs):
        waiting = [await hub.park(node, "cpu:0") for hub, node in zip(hubs, nodes, strict=True)]
        for hub in hubs:
            await hub.submit()
        clock.now = EIGHT_PAST_NOON.replace(hour=13, minute=59, second=59)
        await asyncio.sleep(1.5)
        assert await list_live(spine) == [], "not a second before"
        clock.now = EIGHT_PAST_NOON.replace(hour=14, minute=0, second=0)
        answers = [await each.hear() for each in waiting]
    assert sorted(list_attempts(answers)) == sorted(await list_live(spine))
    assert len(await list_live(spine)) == 2


@pytest.mark.parametrize("looks", [True, False], ids=["as it is", "control"])
async def test_it_is_the_look_at_the_clock_that_opens_and_without_it_nobody_does(
    spine, owner, clock, monkeypatch, looks
):
    if not looks:
        monkeypatch.setattr(Reception, "keep_hours", lambda self: asyncio.sleep(0))
    hub, node = compose(spine, clock), await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, **AFTERNOON)
    waiting = await hub.park(node, "cpu:0")
    await hub.submit()
    # The first tick hears of the offer and looks at the node for its sake; the second has nothing but the clock.
    for clock.now in (EIGHT_PAST_NOON, EIGHT_PAST_NOON.replace(hour=14)):
        await hub.rounds._tick(lambda _: None)
        await hub.rounds.run_once()
    assert bool(await list_live(spine)) is looks
    waiting.call.dismiss()
    assert bool(list_attempts([await waiting.hear()])) is looks


async def test_when_the_hour_ends_nothing_new_comes_and_what_runs_goes_on_and_is_paid(spine, owner, clock):
    hub, node = compose(spine, clock), await spine.enrol(owner=owner, cpu_slots=2)
    await set_offer(spine, owner, node, **AFTERNOON)
    clock.now = EIGHT_PAST_NOON.replace(hour=14)
    async with running(hub):
        first = await hub.park(node, "cpu:0", "cpu:1")
        [job] = await hub.submit()
        [attempt_id] = list_attempts([await first.hear()])
        second = await hub.park(node, "cpu:1")
        clock.now = EIGHT_PAST_NOON.replace(hour=15, minute=0)
        await wait_for(lambda: len(hub.rounds._registry.fleet) == 0, what="the hub to look at the clock")
        [late] = await hub.submit()
        await asyncio.sleep(MOMENT)
        assert not second.answered.is_set()
        assert not await is_leased(spine, late)
        # Its slot is claimed again with the result; the result counts, and nothing comes with it.
        row = await spine.attempt(Leased(attempt_id))
        assert await hub.complete(node, Leased(attempt_id), await hub.claim(node, row["slot"])) is None
    assert await spine.slice_state(job) == "succeeded"
    assert await list_live(spine) == []


async def test_a_job_is_not_born_leased_on_a_closed_node(spine, owner, clock, dispatch):
    node = await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, **AFTERNOON)
    await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit()
    assert not await is_leased(spine, job)


async def test_control_a_registry_that_forgets_hours_gives_work_at_any_time(spine, owner, dispatch, monkeypatch):
    monkeypatch.setattr(Registry, "is_closed", lambda self, node_id, now: False)
    node = await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, **AFTERNOON)
    await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit()
    assert await is_leased(spine, job)


async def test_a_parked_node_hears_at_once_of_hours_that_its_owner_sets_and_lifts(spine, owner, dispatch):
    node = await spine.enrol(owner=owner)
    waiting = await dispatch.park(node, "cpu:0")
    await set_offer(spine, owner, node, dispatch, **AFTERNOON)
    [job] = await dispatch.submit()
    assert not await is_leased(spine, job)
    await set_offer(spine, owner, node, dispatch)
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()]) == await list_live(spine) != []


async def test_hours_of_a_clock_that_is_half_an_hour_off_strike_with_it(spine, owner, clock):
    hub, node = compose(spine, clock), await spine.enrol(owner=owner)
    # 18:00 in India is 12:30 in Greenwich.
    await set_offer(spine, owner, node, hours="mon 18-19", zone="Asia/Kolkata")
    async with running(hub):
        waiting = await hub.park(node, "cpu:0")
        await hub.submit()
        clock.now = EIGHT_PAST_NOON.replace(minute=29, second=59)
        await asyncio.sleep(1.5)
        assert not waiting.answered.is_set()
        clock.now = clock.now + timedelta(seconds=1)
        assert list_attempts([await waiting.hear()])


# What and whose


GATES = [
    ("kind", {"kinds": ("ml",)}, {}, {"kind": "ml"}),
    ("seconds", {"seconds_min": 60}, {"wall_seconds": 59}, {"wall_seconds": 60}),
]


@pytest.mark.parametrize("queued_first", [False, True], ids=["born leased", "in a round"])
@pytest.mark.parametrize(("name", "terms", "refused", "taken"), GATES, ids=[each[0] for each in GATES])
async def test_a_node_takes_what_its_owner_takes_and_nothing_else(
    spine, owner, dispatch, name, terms, refused, taken, queued_first
):
    node = await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, **terms)
    waiting = None if queued_first else await dispatch.park(node, "cpu:0")
    [strange] = await dispatch.submit(**refused)
    [welcome] = await dispatch.submit(**taken)
    waiting = waiting or await dispatch.park(node, "cpu:0")
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()]) == await list_live(spine) != []
    assert (await is_leased(spine, strange), await is_leased(spine, welcome)) == (False, True)


@pytest.mark.parametrize("queued_first", [False, True], ids=["born leased", "in a round"])
@pytest.mark.parametrize("audience", [Audience.OWN, Audience.NAMED])
async def test_a_private_node_serves_those_it_is_for(spine, owner, dispatch, audience, queued_first):
    friend, node = await spine.sign_up(), await spine.enrol(owner=owner)
    accounts = (str(friend.account_id),) if audience is Audience.NAMED else ()
    await set_offer(spine, owner, node, audience=audience, accounts=accounts)
    waiting = None if queued_first else await dispatch.park(node, "cpu:0")
    strangers = [*await dispatch.submit(3), *(await dispatch.submit(by=friend) if not accounts else [])]
    [own] = await dispatch.submit(by=friend if accounts else owner)
    waiting = waiting or await dispatch.park(node, "cpu:0")
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()]) == await list_live(spine) != []
    assert await is_leased(spine, own)
    assert not any([await is_leased(spine, job) for job in strangers])
    assert await spine.fetch_value("SELECT pooled FROM attempts WHERE job_id = $1", own.id), "no price for the index"


@pytest.mark.parametrize("queued_first", [False, True], ids=["born leased", "in a round"])
@pytest.mark.parametrize("audience", Audience)
async def test_no_floor_keeps_owners_from_their_own_nodes_public_or_not(
    spine, owner, dispatch, audience, queued_first
):
    friend, node = await spine.sign_up(), await spine.enrol(owner=owner)
    accounts = (str(friend.account_id),) if audience is Audience.NAMED else ()
    await set_offer(spine, owner, node, floor_microcredits_per_hour=10**12, audience=audience, accounts=accounts)
    waiting = None if queued_first else await dispatch.park(node, "cpu:0")
    [theirs] = await dispatch.submit(by=friend)
    [own] = await dispatch.submit(by=owner)
    waiting = waiting or await dispatch.park(node, "cpu:0")
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()])
    assert (await is_leased(spine, theirs), await is_leased(spine, own)) == (False, True)
    assert await rate_of(spine, own) == 0
    pooled = await spine.fetch_value("SELECT pooled FROM attempts WHERE job_id = $1", own.id)
    assert pooled is (audience is not Audience.ANYONE)


PLANTED = {
    "kinds": (FleetIndex, "_mask", lambda *asked: _mask_all_but(JOB_KIND, *asked)),
    "shortest slices": (FleetIndex, "_mask", lambda *asked: _mask_all_but(SLICE_SECONDS, *asked)),
    "what is allowed": (FleetIndex, "_mask", lambda *asked: _mask_all_but(WANTS, *asked)),
    "own floors": (Fleet, "_find_own", lambda self, account_id: None),
    "pools": (Fleet, "_insert", lambda self, candidate, *place: self._public.add(candidate)),
}
_REALLY_MASK = FleetIndex._mask


def _mask_all_but(left_out: int, index: FleetIndex, gate: int, wish: Any) -> int:
    return -1 if gate == left_out else _REALLY_MASK(index, gate, wish)


@pytest.mark.parametrize(
    ("bug", "terms"),
    [("kinds", {"kinds": ("ml",)}), ("shortest slices", {"seconds_min": 14_400}), ("pools", {"audience": "own"})],
)
async def test_control_a_gate_that_is_left_out_is_noticed(spine, owner, clock, monkeypatch, bug, terms):
    monkeypatch.setattr(*PLANTED[bug])
    dispatch, node = compose(spine, clock), await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, **{**terms, "audience": Audience(terms.get("audience", "anyone"))})
    await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit()
    assert await is_leased(spine, job)


async def announce(spine: Spine, node: EnrolledNode, *allows: str) -> None:
    """As an agent does whose owner has changed the settings: with its next token."""
    now_seconds = datetime.now(tz=UTC).timestamp()
    hub_id = spine.keyring.hub_id
    assertion = make_assertion(node.private, node_id=node.id, hub_id=hub_id, now_seconds=now_seconds)
    request = RenewToken(assertion=assertion, allows=allows)
    assert await node_service.renew_node(spine.pool, spine.keyring, request) == node.id


WANTING = {"egress": ("files.example.org:443",), "packages": ("numpy",)}


@pytest.mark.parametrize("queued_first", [False, True], ids=["born leased", "in a round"])
async def test_work_goes_only_where_its_owner_allows_what_it_wants(spine, owner, dispatch, queued_first):
    plain, allowing = await spine.enrol(owner=owner), await spine.enrol(owner=owner)
    await announce(spine, plain, "egress *.example.com:443", "packages")
    await announce(spine, allowing, "egress *.example.org:443", "packages")
    [job] = await dispatch.submit(**WANTING) if queued_first else [None]
    calls = [await dispatch.park(node, "cpu:0") for node in (plain, allowing)]
    [job] = [job] if queued_first else await dispatch.submit(**WANTING)
    await dispatch.rounds.run_once()
    assert list_attempts([await calls[1].hear()])
    assert await spine.fetch_value("SELECT node_id FROM attempts WHERE job_id = $1", job.id) == allowing.id


async def test_a_job_that_nobody_allows_waits_until_somebody_does(spine, owner, dispatch):
    node = await spine.enrol(owner=owner)
    waiting = await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit(**WANTING)
    await dispatch.rounds.run_once()
    assert not await is_leased(spine, job)
    await announce(spine, node, "egress files.example.org:443", "packages")
    await dispatch.reception.look_at_node(node.id)
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()])
    assert await is_leased(spine, job)


async def test_control_work_is_sent_where_it_is_not_allowed_when_the_gate_is_left_out(
    spine, owner, clock, monkeypatch
):
    monkeypatch.setattr(*PLANTED["what is allowed"])
    dispatch, node = compose(spine, clock), await spine.enrol(owner=owner)
    await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit(**WANTING)
    assert await is_leased(spine, job)


async def test_control_a_fleet_that_knows_no_owners_lets_them_wait(spine, owner, clock, monkeypatch):
    monkeypatch.setattr(*PLANTED["own floors"])
    dispatch, node = compose(spine, clock), await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, floor_microcredits_per_hour=10**12)
    await dispatch.park(node, "cpu:0")
    [own] = await dispatch.submit(by=owner)
    assert not await is_leased(spine, own)


async def test_a_job_that_waits_is_given_to_a_pool_that_is_opened_for_it_later(spine, owner, dispatch):
    friend, node = await spine.sign_up(), await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, audience=Audience.OWN)
    waiting = await dispatch.park(node, "cpu:0")
    [job] = await dispatch.submit(by=friend)
    await dispatch.rounds.run_once()
    assert not await is_leased(spine, job)
    await set_offer(spine, owner, node, dispatch, audience=Audience.NAMED, accounts=(str(friend.account_id),))
    await dispatch.rounds.run_once()
    assert list_attempts([await waiting.hear()])
    assert await is_leased(spine, job)


async def test_whoever_is_not_named_any_more_gets_nothing_more(spine, owner, dispatch):
    friend, node = await spine.sign_up(), await spine.enrol(owner=owner)
    await set_offer(spine, owner, node, audience=Audience.NAMED, accounts=(str(friend.account_id),))
    await dispatch.park(node, "cpu:0")
    await set_offer(spine, owner, node, dispatch, audience=Audience.OWN)
    [job] = await dispatch.submit(by=friend)
    await dispatch.rounds.run_once()
    assert not await is_leased(spine, job)


async def test_a_submit_finds_ones_own_pool_although_another_with_the_same_needs_found_nothing(
    spine, owner, dispatch
):
    """Both are in one batch, and a shape that found nothing is not asked for again."""
    node, stranger = await spine.enrol(owner=owner), await spine.sign_up()
    await set_offer(spine, owner, node, audience=Audience.OWN)
    waiting = await dispatch.park(node, "cpu:0")
    [theirs, own] = await dispatch.rounds.submit([spine.submission(stranger), spine.submission(owner)])
    assert list_attempts([await waiting.hear()])
    assert (await is_leased(spine, theirs), await is_leased(spine, own)) == (False, True)


# Money


async def rate_of(spine: Spine, job: Job) -> int:
    return await spine.fetch_value("SELECT rate_microcredits_per_hour FROM attempts WHERE job_id = $1", job.id)


async def test_a_pool_is_paid_at_its_owners_price_and_costs_its_owner_nothing(spine, owner, dispatch):
    friend, node = await spine.sign_up(), await spine.enrol(owner=owner, cpu_slots=2)
    price = 3_000_000
    named = {"audience": Audience.NAMED, "accounts": (str(friend.account_id),)}
    await set_offer(spine, owner, node, floor_microcredits_per_hour=price, **named)
    await dispatch.park(node, "cpu:0", "cpu:1")
    [job] = await dispatch.submit(by=friend)
    assert await rate_of(spine, job) == price, "and not spot, which is higher"
    alone = await spine.enrol(owner=owner)
    await set_offer(spine, owner, alone, floor_microcredits_per_hour=10**12, audience=Audience.OWN)
    await dispatch.park(alone, "cpu:0")
    [own] = await dispatch.submit(by=owner)
    assert await rate_of(spine, own) == 0, "the floor of one's own pool does not stop one's own jobs"
