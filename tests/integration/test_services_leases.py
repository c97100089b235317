"""Granting leases on a real database: nothing twice, numbers that grow, and what the node is told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import jwt
import msgspec
import pytest
from asyncpg.transaction import Transaction

from computepool import clock
from computepool.core.errors import Unauthenticated
from computepool.core.ids import AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.order import PriorityClass
from computepool.hub.services import attempts as attempt_service
from computepool.hub.services import jobs as job_service
from computepool.hub.services import leases as lease_module
from computepool.hub.services.keyring import JOB_TOKEN_TYPE
from computepool.hub.services.leases import Leases
from computepool.hub.store.attempts import Grant
from computepool.node.tokens import TokenRefused, verify_job_token
from computepool.wire.attempts import NextAnswer, RunOrder
from computepool.wire.jobs import Requirements
from computepool.wire.nodes import Gpu
from tests.support.builders import GB, indexes_of
from tests.support.spine import EXPECTED_SECONDS, Spine, open_spine

CARD = Gpu(name="NVIDIA GeForce RTX 3090", vram_bytes=24 * GB)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def test_a_free_slot_gets_the_first_queued_slice(spine):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol()
    grant = await spine.grant_one(node)
    assert (grant.job_id, grant.slice_index, grant.number) == (job.id, 0, 1)
    assert (grant.node_id, grant.slot) == (node.id, "cpu:0")
    assert [await spine.slice_state(job, index) for index in (0, 1)] == ["leased", "queued"]


async def test_a_lease_lasts_as_long_as_the_settings_say_on_the_databases_clock(spine):
    await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    attempt = await spine.attempt(grant)
    lasting = (attempt["expires_at"] - attempt["leased_at"]).total_seconds()
    assert lasting == pytest.approx(spine.settings.lease_seconds, abs=1.0)


async def test_the_first_lease_starts_the_job_and_later_ones_do_not(spine):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller, slice_count=2)
    node = await spine.enrol(cpu_slots=2)
    await spine.grant(node, grants_max=1)
    started = await job_service.get_job(spine.pool, caller, job.id)
    await spine.grant(node)
    again = await job_service.get_job(spine.pool, caller, job.id)
    assert started.state.value == again.state.value == "running"
    assert started.started_at == again.started_at is not None
    assert (again.leased_count, again.running_count) == (2, 0)


async def test_one_event_tells_of_all_slices_of_a_job_that_were_leased_together(spine):
    job = await spine.submit(slice_count=4)
    other = await spine.submit(slice_count=1)
    node = await spine.enrol(cpu_slots=8)
    assert len(await spine.grant(node)) == 5
    rows = await spine.fetch("SELECT job_id, body FROM events WHERE kind = 'slices_leased'")
    assert len(rows) == 2
    told = {row["job_id"]: indexes_of(row["body"]["slices"]) for row in rows}
    assert told == {job.id: [0, 1, 2, 3], other.id: [0]}


async def test_without_work_or_without_a_fitting_slot_nothing_is_granted(spine):
    node = await spine.enrol()
    assert await spine.grant(node) == []
    job = await spine.submit(requirements=Requirements(gpu=True))
    assert await spine.grant(node) == []
    assert await spine.slice_state(job) == "queued"


async def test_work_finds_the_one_node_that_can_do_it(spine):
    await spine.submit(requirements=Requirements(vram_bytes=20 * GB))
    plain, gamer = await spine.enrol(), await spine.enrol(gpus=(CARD,))
    [grant] = await spine.grant(plain, gamer)
    assert (grant.node_id, grant.slot) == (gamer.id, "gpu:0")


async def test_a_backlog_of_one_shape_does_not_hide_another(spine):
    caller = await spine.sign_up()
    await spine.submit(by=caller, slice_count=50, requirements=Requirements(gpu=True), priority=10)
    small = await spine.submit(by=caller)
    grant = await spine.grant_one(await spine.enrol())
    assert grant.job_id == small.id


async def test_of_an_accounts_own_slices_a_higher_priority_goes_first_and_equals_go_by_age(spine):
    caller = await spine.sign_up()
    old, new, urgent = [await spine.submit(by=caller, priority=priority) for priority in (0, 0, 1)]
    node = await spine.enrol()
    order = []
    for _ in range(3):
        grant = await spine.grant_one(node)
        await spine.succeed(node, grant)
        order.append(grant.job_id)
    assert order == [urgent.id, old.id, new.id]


async def test_a_slot_that_is_taken_is_passed_over_and_its_slice_stays_queued(spine):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol()
    await spine.grant_one(node)
    stale = await spine.open_round(await spine.list_candidates(node, busy=True))
    granted = await spine.grant_round(stale)
    assert granted.grants == []
    assert [(pair.head.slice_index, pair.candidate.slot.node_id) for pair in granted.refused] == [(1, node.id)]
    assert await spine.slice_state(job, 1) == "queued"
    assert await spine.fetch_value("SELECT attempt_count FROM slices WHERE slice_index = 1") == 0


async def test_hubs_that_grant_at_once_never_give_a_slice_or_a_slot_twice(spine):
    await spine.submit(slice_count=12)
    nodes = [await spine.enrol(cpu_slots=4) for _ in range(4)]
    hubs = [spine.open_second_hub() for _ in range(4)]
    granted: list[Grant] = []
    while len(granted) < 12:
        fresh = [grant for grants in await asyncio.gather(*(hub.grant(*nodes) for hub in hubs)) for grant in grants]
        assert fresh
        granted += fresh
    assert len({(grant.job_id, grant.slice_index) for grant in granted}) == len(granted) == 12
    assert len({(grant.node_id, grant.slot) for grant in granted}) == 12
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 12


async def test_a_hub_that_believes_itself_alone_and_is_not_gives_nothing_twice_either(spine):
    """It locks nothing while it pairs: what it writes is guarded."""
    await spine.submit(slice_count=12)
    nodes = [await spine.enrol(cpu_slots=4) for _ in range(4)]
    hubs = [spine.open_second_hub() for _ in range(4)]

    async def grant_alone(hub: Spine) -> list[Grant]:
        round_ = await hub.open_round(await hub.list_candidates(*nodes))
        return (await hub.grant_round(round_, alone=True)).grants

    granted: list[Grant] = []
    while len(granted) < 12:
        fresh = [grant for grants in await asyncio.gather(*map(grant_alone, hubs)) for grant in grants]
        assert fresh
        granted += fresh
    assert len({(grant.job_id, grant.slice_index) for grant in granted}) == len(granted) == 12
    assert len({(grant.node_id, grant.slot) for grant in granted}) == 12
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 12


@pytest.mark.parametrize("alone", [False, True])
async def test_a_slice_that_was_cancelled_after_it_was_paired_is_not_leased(spine, monkeypatch, alone):
    caller = await spine.sign_up()
    job = await spine.submit(by=caller)
    node = await spine.enrol()
    round_ = await spine.open_round(await spine.list_candidates(node))
    really = lease_module.attempt_store.insert_leases

    async def cancel_first(conn: object, *args: object, **options: object) -> object:
        if alone:
            await job_service.cancel_job(spine.pool, caller, job.id)
        else:
            # Where the heads are locked, the cancelling has to wait, and finds the lease.
            cancelling.append(asyncio.create_task(job_service.cancel_job(spine.pool, caller, job.id)))
            await asyncio.sleep(0.2)
        return await really(conn, *args, **options)

    cancelling: list[asyncio.Task] = []
    monkeypatch.setattr(lease_module.attempt_store, "insert_leases", cancel_first)
    granted = await spine.grant_round(round_, alone=alone)
    await asyncio.gather(*cancelling)
    assert (len(granted.grants), len(granted.refused)) == ((0, 1) if alone else (1, 0))
    assert await spine.slice_state(job) == "cancelled"
    assert await spine.fetch_value("SELECT count(*) FROM attempts WHERE state IN ('leased', 'running')") == 0


async def test_attempt_numbers_grow_with_every_lease_of_a_slice(spine):
    job = await spine.submit(retries=5)
    node, other = await spine.enrol(), await spine.enrol()
    numbers = []
    for holder in (node, other, node):
        grant = await spine.grant_one(holder)
        numbers.append(grant.number)
        await spine.finish((holder, spine.completion(holder, grant, exit_code=1, cause=Cause.EXIT_CODE)))
    assert numbers == [1, 2, 3]
    assert await spine.fetch_value("SELECT attempt_count FROM slices WHERE job_id = $1", job.id) == 3


async def test_a_slice_keeps_away_for_ten_seconds_from_the_node_that_failed_it(spine):
    await spine.submit(retries=5)
    node, other = await spine.enrol(), await spine.enrol()
    grant = await spine.grant_one(node)
    await spine.finish((node, spine.completion(node, grant, exit_code=1, cause=Cause.EXIT_CODE)))
    assert await spine.grant(node) == []
    await spine.fetch("UPDATE slices SET queued_at = queued_at - interval '10 seconds'")
    assert len(await spine.grant(node)) == 1
    assert await spine.grant(other) == []


async def test_no_more_leases_are_granted_at_once_than_one_transaction_should_hold(spine):
    await spine.submit(slice_count=10)
    node = await spine.enrol(cpu_slots=8)
    assert [len(await spine.grant(node, grants_max=3)) for _ in range(3)] == [3, 3, 2]


async def test_a_slot_left_over_by_an_account_that_has_no_more_is_filled_by_another_in_the_same_round(spine):
    await spine.submit(slice_count=1)
    await spine.submit(slice_count=5)
    node = await spine.enrol(cpu_slots=4)
    assert len(await spine.grant(node)) == 4


async def test_a_lease_says_what_its_accounts_share_is_charged_and_no_more_than_the_job_may_run(spine):
    caller = await spine.sign_up()
    await spine.submit(by=caller, wall_seconds=int(EXPECTED_SECONDS) + 5)
    await spine.submit(by=caller, wall_seconds=7)
    grants = await spine.grant(await spine.enrol(cpu_slots=2))
    assert [grant.expected_seconds for grant in grants] == [EXPECTED_SECONDS, 7]
    assert {grant.account_id for grant in grants} == {caller.account_id}
    assert [(await spine.attempt(grant))["expected_seconds"] for grant in grants] == [EXPECTED_SECONDS, 7]


async def test_a_round_that_could_not_be_written_gives_its_slots_back_and_leaves_no_trace(spine, monkeypatch):
    job = await spine.submit(slice_count=2)
    node = await spine.enrol(cpu_slots=2)
    round_ = await spine.open_round(await spine.list_candidates(node))

    really = lease_module.attempt_store.insert_leases

    async def lose_connection(*args: object, **options: object) -> None:
        await really(*args, **options)
        raise OSError("connection lost")

    monkeypatch.setattr(lease_module.attempt_store, "insert_leases", lose_connection)
    with pytest.raises(OSError, match="connection lost"):
        await spine.grant_round(round_)
    assert (len(round_.undone), round_.pairs) == (2, [])
    assert [await spine.slice_state(job, index) for index in (0, 1)] == ["queued", "queued"]
    assert await spine.fetch_value("SELECT count(*) FROM attempts") == 0
    monkeypatch.undo()
    assert len(await spine.grant(node)) == 2


async def test_a_higher_class_goes_first_whoever_has_waited_longer(spine):
    caller = replace(await spine.sign_up(), priority_class_max=PriorityClass.HIGH)
    waiting = await spine.submit(by=caller, priority=10)
    high = await spine.submit(by=caller, priority_class=PriorityClass.HIGH)
    low = await spine.submit(by=caller, priority_class=PriorityClass.LOW, priority=10)
    node = await spine.enrol()
    order = []
    for _ in range(3):
        grant = await spine.grant_one(node)
        await spine.succeed(node, grant)
        order.append(grant.job_id)
    assert order == [high.id, waiting.id, low.id]


async def test_the_hard_gate_of_the_price_holds(spine):
    node = await spine.enrol()
    await spine.fetch("UPDATE nodes SET floor_microcredits_per_hour = 2000000")
    dear = await spine.submit(requirements=Requirements(ceiling_microcredits_per_hour=1_000_000))
    assert await spine.grant(node) == []
    await spine.fetch("UPDATE nodes SET floor_microcredits_per_hour = 900000")
    assert (await spine.grant_one(node)).job_id == dear.id


# What the node is told


def read_orders(answer: NextAnswer) -> list[RunOrder]:
    return [msgspec.json.decode(assignment.order, type=RunOrder) for assignment in answer.assignments]


async def test_an_answer_carries_the_orders_the_proofs_of_the_leases_and_one_token_for_all(spine):
    job = await spine.submit(
        slice_count=3, command=("python3", "x.py"), env={"A": "1"}, requirements=Requirements(cores=2), wall_seconds=9
    )
    node = await spine.enrol(cpu_slots=2)
    grants = await spine.grant(node)
    answer = await spine.leases.answer(grants)
    for grant, assignment, order in zip(grants, answer.assignments, read_orders(answer), strict=True):
        assert (order.attempt_id, order.job_id, order.slice_index) == (grant.id, job.id, grant.slice_index)
        assert (order.slice_count, order.attempt_number, order.wall_seconds, order.cores) == (3, 1, 9, 2)
        assert (order.command, order.env, order.slot) == (("python3", "x.py"), {"A": "1"}, grant.slot)
        assert (assignment.attempt_id, assignment.slot) == (grant.id, grant.slot)
        assert assignment.lease_secret == spine.keyring.lease_secret(grant.id)
    claims = spine.keyring.verify(answer.token, typ=JOB_TOKEN_TYPE, audience=str(node.id))
    assert claims["iss"] == str(spine.keyring.hub_id)
    assert claims["orders"] == {
        str(assignment.attempt_id): hashlib.sha256(assignment.order.encode()).hexdigest()
        for assignment in answer.assignments
    }
    assert claims["exp"] - claims["iat"] == spine.settings.job_token_seconds


async def test_without_leases_there_is_nothing_to_sign(spine):
    answer = await spine.leases.answer([])
    assert (answer.assignments, answer.token) == ([], "")


async def test_a_script_without_a_command_is_run_by_python(spine):
    await spine.submit(command=(), script="print(1)")
    [order] = read_orders(await spine.leases.answer([await spine.grant_one(await spine.enrol())]))
    assert (order.command, order.script) == (("python3", "main.py"), "print(1)")


async def test_the_same_answer_again_has_the_same_orders_and_secrets_whichever_hub_gives_it(spine):
    await spine.submit(env={"B": "2", "A": "ä"}, command=("python3", "x.py"), requirements=Requirements(cores=2))
    grant = await spine.grant_one(await spine.enrol())
    [first] = (await spine.leases.answer([grant])).assignments
    [again] = (await spine.open_second_hub().leases.answer([grant])).assignments
    assert read_orders(NextAnswer(assignments=[again])) == read_orders(NextAnswer(assignments=[first]))
    assert again.lease_secret == first.lease_secret


async def test_every_answer_has_a_token_of_its_own(spine):
    await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    tokens = [(await spine.leases.answer([grant])).token for _ in range(2)]
    claims = [jwt.decode(token, options={"verify_signature": False}) for token in tokens]
    assert claims[0]["jti"] != claims[1]["jti"]
    assert claims[0]["orders"] == claims[1]["orders"]


async def test_a_job_token_is_not_made_for_another_node(spine):
    await spine.submit()
    answer = await spine.leases.answer([await spine.grant_one(await spine.enrol())])
    with pytest.raises(Unauthenticated):
        spine.keyring.verify(answer.token, typ=JOB_TOKEN_TYPE, audience=str(UUID(int=1)))


def check_words(spine: Spine, told: Sequence[Sequence[Grant]], answers: Sequence[NextAnswer]) -> None:
    """Each node is told its own leases, all of them and no others, under a token that it believes."""
    for leased, answer in zip(told, answers, strict=True):
        assert [each.attempt_id for each in answer.assignments] == [grant.id for grant in leased]
        verified = verify_job_token(
            answer.token,
            node_id=leased[0].node_id,
            hub_keys=spine.keyring.public_keys(),
            now_seconds=clock.unix_seconds(),
        )
        for grant, each in zip(leased, answer.assignments, strict=True):
            verified.check(grant.id, each.order)
            assert each.lease_secret == spine.keyring.lease_secret(grant.id)


def list_claims(answers: Sequence[NextAnswer]) -> list[dict[str, Any]]:
    """Of each token once, in the order of the answers."""
    tokens = dict.fromkeys(answer.token for answer in answers)
    return [jwt.decode(token, options={"verify_signature": False}) for token in tokens]


async def grant_each(spine: Spine, *slots: int) -> list[list[Grant]]:
    """Nodes with so many slots each, and a lease for every one of them."""
    await spine.submit(slice_count=sum(slots))
    nodes = [await spine.enrol(cpu_slots=count) for count in slots]
    grants = await spine.grant(*nodes)
    told = [[grant for grant in grants if grant.node_id == node.id] for node in nodes]
    assert [len(leased) for leased in told] == list(slots)
    return told


async def test_nodes_that_are_told_at_the_same_moment_share_a_token_that_names_all_of_them_and_their_attempts(spine):
    told = await grant_each(spine, 1, 3, 2)
    answers = spine.leases.word_all(told)
    check_words(spine, told, answers)
    [claims] = list_claims(answers)
    assert claims["aud"] == [str(leased[0].node_id) for leased in told]
    assert claims["orders"] == {
        str(each.attempt_id): hashlib.sha256(each.order.encode()).hexdigest()
        for answer in answers
        for each in answer.assignments
    }
    assert len(claims["orders"]) == 6


async def test_a_shared_token_is_not_made_for_a_node_that_was_not_told(spine):
    [answer, _] = spine.leases.word_all(await grant_each(spine, 1, 1))
    stranger = await spine.enrol()
    with pytest.raises(TokenRefused, match="another node"):
        verify_job_token(
            answer.token,
            node_id=stranger.id,
            hub_keys=spine.keyring.public_keys(),
            now_seconds=clock.unix_seconds(),
        )
    with pytest.raises(Unauthenticated):
        spine.keyring.verify(answer.token, typ=JOB_TOKEN_TYPE, audience=str(stranger.id))


async def test_no_node_learns_the_order_or_the_lease_secret_of_another(spine):
    told = await grant_each(spine, 2, 2)
    answers = spine.leases.word_all(told)
    for answer, other in (answers, reversed(answers)):
        said = msgspec.json.encode(answer) + msgspec.json.encode(list_claims([answer]))
        for each in other.assignments:
            assert str(each.attempt_id).encode() in said, "the token names it"
            assert each.lease_secret.encode() not in said
            assert msgspec.json.encode(each.order) not in said


def sign_for_the_first(self: Leases, group: Sequence[Any]) -> str:
    return really_sign(self, group[:1])


def sign_for_the_first_all_orders(self: Leases, group: Sequence[Any]) -> str:
    [first, *_] = group
    leased = [lease for words in group for lease in words.leased]
    orders = [order for words in group for order in words.orders]
    return really_sign(self, [first._replace(leased=leased, orders=orders)])


def tell_all_to_everybody(self: Leases, group: Sequence[Any]) -> list[NextAnswer]:
    answers = really_answer(self, group)
    everything = [each for answer in answers for each in answer.assignments]
    return [NextAnswer(assignments=everything, token=answer.token) for answer in answers]


def tell_each_what_is_for_the_next(self: Leases, group: Sequence[Any]) -> list[NextAnswer]:
    first, *others = really_answer(self, group)
    return [*others, first]


really_sign, really_answer = Leases._sign, Leases._to_answers


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_sign", sign_for_the_first),
        ("_sign", sign_for_the_first_all_orders),
        ("_to_answers", tell_all_to_everybody),
        ("_to_answers", tell_each_what_is_for_the_next),
    ],
)
async def test_control_words_that_reach_the_wrong_node_are_caught(spine, monkeypatch, name, bug):
    told = await grant_each(spine, 1, 2)
    check_words(spine, told, spine.leases.word_all(told))
    monkeypatch.setattr(Leases, name, bug)
    with pytest.raises((AssertionError, TokenRefused)):
        check_words(spine, told, spine.leases.word_all(told))


@pytest.mark.parametrize(
    ("slots", "shared"),
    [
        ((1, 1, 1, 1), [3, 1]),
        ((2, 1, 2, 2), [3, 2, 2]),
        ((1, 3, 1), [1, 3, 1]),
        # More for one node than a token should name: its own answer has one token all the same.
        ((5, 1), [5, 1]),
        ((1, 5), [1, 5]),
        ((5,), [5]),
    ],
)
async def test_a_token_names_no_more_orders_than_it_should_except_for_one_node(spine, monkeypatch, slots, shared):
    monkeypatch.setattr(lease_module, "ORDERS_PER_TOKEN", 3)
    told = await grant_each(spine, *slots)
    answers = spine.leases.word_all(told)
    check_words(spine, told, answers)
    claims = list_claims(answers)
    assert [len(each["orders"]) for each in claims] == shared
    assert set().union(*(each["orders"] for each in claims)) == {str(g.id) for leased in told for g in leased}


async def test_a_node_that_is_told_alone_is_the_only_one_in_its_token(spine):
    """As plain text, which every reader of tokens knows, also those that have not heard of lists."""
    [leased] = await grant_each(spine, 2)
    [claims] = list_claims(spine.leases.word_all([leased]))
    assert claims["aud"] == str(leased[0].node_id)
    assert list_claims([spine.leases.word(leased)])[0]["aud"] == claims["aud"]


async def test_a_node_without_leases_gets_no_token_and_is_not_named_in_that_of_others(spine):
    """It may be told to stop something, while others are given work."""
    [leased] = await grant_each(spine, 1)
    before, answer, after = spine.leases.word_all([[], leased, []])
    assert (before.assignments, before.token) == (after.assignments, after.token) == ([], "")
    check_words(spine, [leased], [answer])
    [claims] = list_claims([answer])
    assert claims["aud"] == str(leased[0].node_id)
    assert spine.leases.word_all([[], []]) == [NextAnswer(), NextAnswer()]
    assert spine.leases.word_all([]) == []


async def test_a_lease_of_a_job_that_is_not_there_is_left_out_of_the_answer(spine):
    await spine.submit()
    grant = await spine.grant_one(await spine.enrol())
    stray = grant._replace(id=AttemptId(UUID(int=1)), job_id=JobId(UUID(int=2)))
    assert [a.attempt_id for a in (await spine.leases.answer([stray, grant])).assignments] == [grant.id]


# What a hub remembers of jobs


async def test_the_oldest_job_can_be_granted_together_with_one_that_the_hub_has_just_learnt_of(spine, monkeypatch):
    monkeypatch.setattr(lease_module, "ORDERS_BYTES_MAX", 0)
    node = await spine.enrol(cpu_slots=4)
    caller = await spine.sign_up()
    old = await spine.submit(by=caller, slice_count=2)
    await spine.grant(node, grants_max=1)
    middle = await spine.submit(by=caller)
    new = await spine.submit(by=caller)
    grants = await spine.grant(node)
    assert {grant.job_id for grant in grants} == {old.id, middle.id, new.id}
    assert len((await spine.leases.answer(grants)).assignments) == 3


async def test_a_hub_remembers_no_more_of_jobs_than_it_should(spine, monkeypatch):
    monkeypatch.setattr(lease_module, "ORDERS_BYTES_MAX", 5 * lease_module.size_order(300))
    node = await spine.enrol()
    for _ in range(20):
        await spine.submit()
        [grant] = await spine.grant(node)
        await spine.succeed(node, grant)
    assert 1 <= len(spine.leases._orders) <= 6


async def test_a_hub_without_nodes_forgets_the_jobs_that_it_takes_in_all_the_same(spine, monkeypatch):
    monkeypatch.setattr(lease_module, "ORDERS_BYTES_MAX", 5 * lease_module.size_order(300))
    caller = await spine.sign_up()
    for _ in range(4):
        await spine.submit_all(*(spine.submission(caller) for _ in range(10)))
    assert len(spine.leases._orders) <= 20


async def test_many_answers_about_one_job_that_is_not_at_hand_count_its_size_once(spine, monkeypatch):
    """Nodes call again by the hundred after a hub has started; what is counted twice is never given back."""
    await spine.submit(slice_count=4)
    nodes = [await spine.enrol() for _ in range(4)]
    grants = await spine.grant(*nodes)
    fresh = spine.open_second_hub()
    await asyncio.gather(*(fresh.leases.answer([grant]) for grant in grants))
    assert fresh.leases._orders_bytes == sum(order.size_bytes for order in fresh.leases._orders.values())
    monkeypatch.setattr(lease_module, "ORDERS_BYTES_MAX", 0)
    fresh.leases.forget_oldest()
    assert (fresh.leases._orders_bytes, len(fresh.leases._orders)) == (0, 0)


async def test_a_lost_slice_is_granted_again_with_the_next_number(spine):
    job = await spine.submit()
    node, other = await spine.enrol(), await spine.enrol()
    first = await spine.grant_one(node)
    await spine.let_lease_pass(first)
    await attempt_service.reap_leases(spine.pool, grace_seconds=1, limit=10)
    second = await spine.grant_one(other)
    assert (second.job_id, second.number) == (job.id, 2)
    rows = await spine.fetch("SELECT body FROM events WHERE kind = 'slices_leased' ORDER BY id")
    assert [indexes_of(row["body"]["slices"]) for row in rows] == [[0], [0]]


async def test_a_slice_that_keeps_away_from_the_only_free_node_does_not_hold_up_the_one_behind_it(spine):
    node, caller = await spine.enrol(), await spine.sign_up()
    await spine.submit(by=caller, retries=5, priority=10)
    grant = await spine.grant_one(node)
    await spine.finish((node, spine.completion(node, grant, exit_code=1, cause=Cause.EXIT_CODE)))
    behind = await spine.submit(by=caller)
    assert [grant.job_id for grant in await spine.grant(node)] == [behind.id]


# The transaction that leases are written in


async def fail_after_writing(spine: Spine) -> None:
    async with spine.leases.open(alone=False) as session:
        await (await session.ready()).execute("DELETE FROM slices")
        raise RuntimeError("it fails after it has written")


async def test_what_fails_after_the_transaction_was_asked_for_is_rolled_back(spine):
    await spine.submit()
    with pytest.raises(RuntimeError):
        await fail_after_writing(spine)
    assert await spine.fetch_value("SELECT count(*) FROM slices") == 1


async def cancel_while_it_begins(spine: Spine) -> None:
    entered = asyncio.Event()

    async def write() -> None:
        async with spine.leases.open(alone=False) as session:
            entered.set()
            await session.ready()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# How the driver complains of a connection that comes back to the pool as it should not.
LEFT_OPEN = "with an active transaction"


async def test_who_is_cancelled_while_the_transaction_begins_leaves_none_open(spine, caplog):
    await cancel_while_it_begins(spine)
    assert LEFT_OPEN not in caplog.text


async def test_control_a_transaction_that_nobody_rolls_back_is_complained_of(spine, monkeypatch, caplog):
    async def leave(self: Transaction) -> None:
        """As if there were nothing to roll back."""

    monkeypatch.setattr(Transaction, "rollback", leave)
    await cancel_while_it_begins(spine)
    assert LEFT_OPEN in caplog.text
