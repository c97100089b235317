"""How many new nodes an owner or a network may bring, on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.core.errors import NewNodesLimited
from computepool.core.ids import NodeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.trust.identities import WINDOW
from computepool.hub.services import accounts as account_service
from computepool.hub.services import nodes as service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.keyring import to_base64
from computepool.hub.store import nodes as node_store
from computepool.wire.nodes import EnrolNode, Hardware
from tests.support.bugged_nodes import bug_node
from tests.support.spine import Spine, open_spine

LIMIT = 2
HERE, THERE = "93.184.216.0/24", "151.101.1.0/24"


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn, new_nodes_max=LIMIT) as spine:
        yield spine


def make_request() -> EnrolNode:
    return EnrolNode(
        name="node",
        public_key=to_base64(Ed25519PrivateKey.generate().public_key().public_bytes_raw()),
        hardware=Hardware(cores=8, ram_bytes=64 << 30, disk_bytes=1 << 40, cpu_slots=1),
        isolation=IsolationLevel.SANDBOXED,
    )


async def enrol(
    spine: Spine, owner: AccountCaller, network: str | None = None, request: EnrolNode | None = None
) -> NodeId:
    return await service.enrol_node(spine.pool, spine.settings, owner, request or make_request(), network=network)


async def test_an_owner_brings_as_many_as_may_come_and_hears_when_the_next_may(spine):
    owner = await spine.sign_up()
    for _ in range(LIMIT):
        await enrol(spine, owner)
    with pytest.raises(NewNodesLimited, match="Ask the operator") as refusal:
        await enrol(spine, owner)
    assert refusal.value.details["reason"] == "too_many"
    assert 0 < refusal.value.details["retry_after_seconds"] <= WINDOW.total_seconds()
    # Others may.
    await enrol(spine, await spine.sign_up())


async def test_control_without_the_count_an_owner_brings_any_number(spine, monkeypatch):
    async def let_all_in(*_: object) -> None:
        return None

    monkeypatch.setattr(service, "_check_newcomer", let_all_in)
    owner = await spine.sign_up()
    assert len({await enrol(spine, owner) for _ in range(LIMIT + 3)}) == LIMIT + 3


async def test_a_known_node_enrols_again_and_a_removed_one_makes_no_room(spine):
    owner, request = await spine.sign_up(), make_request()
    first = await enrol(spine, owner, request=request)
    second = await enrol(spine, owner)
    assert await enrol(spine, owner, request=request) == first
    await service.change_node_state(spine.pool, owner, second, "remove")
    with pytest.raises(NewNodesLimited):
        await enrol(spine, owner)


async def test_after_the_window_there_is_room_again(spine):
    owner = await spine.sign_up()
    for _ in range(LIMIT):
        await enrol(spine, owner)
    await spine.fetch("UPDATE nodes SET created_at = created_at - interval '31 days'")
    await enrol(spine, owner)


async def test_a_network_brings_no_more_than_an_owner_however_many_accounts_it_has(spine):
    for _ in range(LIMIT):
        await enrol(spine, await spine.sign_up(), HERE)
    with pytest.raises(NewNodesLimited, match="This network"):
        await enrol(spine, await spine.sign_up(), HERE)
    await enrol(spine, await spine.sign_up(), THERE)


async def test_unknown_networks_are_not_one(spine):
    for _ in range(LIMIT + 2):
        await enrol(spine, await spine.sign_up(), None)


async def test_the_operator_can_raise_an_owners_limit_and_their_network_has_room_for_it(spine):
    owner, operator = await spine.sign_up(), await spine.sign_up()
    changed = await account_service.change_account(
        spine.pool,
        operator,
        owner.account_id,
        roles=None,
        queued_slices_max=None,
        stored_bytes_max=None,
        calls_per_minute_max=None,
        new_nodes_max=4,
    )
    assert changed.new_nodes_max == 4
    for _ in range(4):
        await enrol(spine, owner, HERE)
    with pytest.raises(NewNodesLimited):
        await enrol(spine, owner, HERE)


async def test_many_at_once_are_counted_one_after_the_other(spine):
    owner = await spine.sign_up()
    answers = await asyncio.gather(*(enrol(spine, owner) for _ in range(LIMIT + 4)), return_exceptions=True)
    assert sum(isinstance(answer, NewNodesLimited) for answer in answers) == 4
    assert await spine.fetch_value("SELECT count(*) FROM nodes") == LIMIT


async def test_after_a_bugged_node_there_is_a_cool_off_and_then_room_for_one(dsn, spine):
    owner = await spine.sign_up()
    node_id = await enrol(spine, owner, HERE)
    await bug_node(dsn, str(node_id), str(owner.account_id), wrong=0)
    for person in (owner, await spine.sign_up()):
        with pytest.raises(NewNodesLimited, match="wrong results") as refusal:
            await enrol(spine, person, HERE)
        assert refusal.value.details["reason"] == "cooling_off"
        assert 3 * 86_400 < refusal.value.details["retry_after_seconds"] <= 4 * 86_400
    await spine.fetch("UPDATE node_trust SET since = since - interval '5 days'")
    await spine.fetch("UPDATE nodes SET created_at = created_at - interval '40 days'")
    await enrol(spine, owner, HERE)
    with pytest.raises(NewNodesLimited):
        await enrol(spine, owner, HERE)


async def test_a_node_that_validation_found_wrong_counts_like_any_other_bugged_one(spine):
    owner = await spine.sign_up()
    node_id = await enrol(spine, owner)
    await spine.fetch(
        "INSERT INTO node_trust (node_id, standing, since, bugged_count) VALUES ($1, 'bugged', now(), 1)", node_id
    )
    with pytest.raises(NewNodesLimited, match="wrong results"):
        await enrol(spine, owner)
    # Its cool-off is over and it is on its way back: there is room for one, and it was the one.
    await spine.fetch("UPDATE node_trust SET standing = 'returning'")
    with pytest.raises(NewNodesLimited, match="as many as may"):
        await enrol(spine, owner)
    await spine.fetch("UPDATE nodes SET created_at = created_at - interval '40 days'")
    await enrol(spine, owner)
    with pytest.raises(NewNodesLimited):
        await enrol(spine, owner)


async def test_the_network_is_kept_and_follows_the_node(spine):
    owner, request = await spine.sign_up(), make_request()
    node_id = await enrol(spine, owner, HERE, request)
    assert await network_of(spine, node_id) == HERE
    await enrol(spine, owner, THERE, request)
    assert await network_of(spine, node_id) == THERE
    # What is unknown now does not make what was known wrong.
    await enrol(spine, owner, None, request)
    assert await network_of(spine, node_id) == THERE


async def network_of(spine: Spine, node_id: NodeId) -> str | None:
    async with spine.pool.acquire() as conn:
        node = await node_store.find_node(conn, node_id)
    assert node is not None
    return node.network
