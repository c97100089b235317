"""Receipts: stored with the results of their call, and verified later by whoever comes by."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.core.errors import NotFound, StaleLease
from computepool.core.jobs.cause import Cause
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.receipts import list_signed, verify_receipts
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.receipts import CLOCK_LEEWAY_SECONDS, RECEIPT_TYPE, read_results
from computepool.wire.attempts import CompleteAnswer
from tests.support.spine import EnrolledNode, Spine, open_spine
from tests.support.validation_lab import WRONG, open_validation_lab

ACCEPTED = CompleteAnswer(accepted=True)
FAILED = {"exit_code": 1, "cause": Cause.EXIT_CODE}


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


async def lease(spine: Spine, *, slices: int = 1) -> tuple[EnrolledNode, list[Grant]]:
    await spine.submit(slice_count=slices, retries=0)
    node = await spine.enrol(cpu_slots=slices)
    return node, await spine.grant(node)


async def verify(spine: Spine, *, limit: int = 100) -> int:
    return await verify_receipts(spine.pool, hub_id=spine.keyring.hub_id, limit=limit)


async def list_states(spine: Spine) -> list[str]:
    rows = await spine.fetch("SELECT state::text FROM receipts ORDER BY created_at, id")
    return [row["state"] for row in rows]


async def list_refusals(spine: Spine) -> list[Any]:
    return await spine.fetch("SELECT * FROM events WHERE kind = 'receipt_refused' ORDER BY id")


async def get_reason(spine: Spine, node: EnrolledNode) -> str:
    """Of the one receipt there is, which was refused."""
    assert await verify(spine) == 1
    assert await list_states(spine) == ["refused"]
    [event] = await list_refusals(spine)
    [receipt] = await spine.fetch("SELECT * FROM receipts")
    assert (event["node_id"], event["body"]["receipt"]) == (node.id, str(receipt["id"]))
    return event["body"]["why"]


async def test_a_receipt_that_vouches_for_its_result_is_verified(spine):
    node, [grant] = await lease(spine)
    await spine.succeed(node, grant)
    assert await list_states(spine) == ["unverified"]
    assert await verify(spine) == 1
    assert await list_states(spine) == ["verified"]
    assert await list_refusals(spine) == []


async def test_a_receipt_is_looked_at_once(spine):
    node, [grant] = await lease(spine)
    await spine.succeed(node, grant)
    assert [await verify(spine) for _ in range(3)] == [1, 0, 0]


async def test_without_receipts_there_is_nothing_to_do(spine):
    assert await verify(spine) == 0


async def test_a_failure_needs_no_receipt_and_keeps_none(spine):
    node, [grant] = await lease(spine)
    assert await spine.succeed(node, grant, **FAILED, receipt="") == CompleteAnswer(accepted=False)
    assert await list_states(spine) == []
    assert (await spine.attempt(grant))["receipt_id"] is None


# One receipt for a call


async def test_one_receipt_vouches_for_all_results_of_a_call(spine):
    node, grants = await lease(spine, slices=5)
    done = [spine.completion(node, grant) for grant in grants[:4]]
    failed = spine.completion(node, grants[4], **FAILED)
    answers = await spine.finish_call(node, [*done, failed])
    assert answers == [ACCEPTED] * 4 + [CompleteAnswer(accepted=False)]
    [receipt] = await spine.fetch("SELECT * FROM receipts")
    ids = [(await spine.attempt(grant))["receipt_id"] for grant in grants]
    assert ids == [receipt["id"]] * 4 + [None]
    await verify(spine)
    assert await list_states(spine) == ["verified"]


async def test_one_result_that_a_receipt_does_not_name_is_enough_to_refuse_it(spine):
    node, grants = await lease(spine, slices=3)
    done = [spine.completion(node, grant) for grant in grants]
    await spine.finish_call(node, done, receipt=spine.receipt(node, *done[:2]))
    assert f"nothing of attempt {grants[2].id}" in await get_reason(spine, node)


async def test_a_receipt_need_not_vouch_for_what_was_refused(spine):
    node, grants = await lease(spine, slices=2)
    sound, forged = spine.completion(node, grants[0]), spine.completion(node, grants[1], lease_secret="guessed")
    [accepted, refused] = await spine.finish_call(node, [sound, forged], receipt=spine.receipt(node, sound))
    assert (accepted, type(refused)) == (ACCEPTED, StaleLease)
    await verify(spine)
    assert await list_states(spine) == ["verified"]


async def test_a_call_in_which_everything_was_refused_keeps_no_receipt(spine):
    _, [grant] = await lease(spine)
    stranger = await spine.enrol()
    [refused] = await spine.finish_call(stranger, [spine.completion(stranger, grant)])
    assert isinstance(refused, StaleLease)
    assert await list_states(spine) == []


async def test_a_call_that_repeats_some_results_keeps_its_receipt_for_the_new_ones(spine):
    node, grants = await lease(spine, slices=2)
    first, second = [spine.completion(node, grant) for grant in grants]
    await spine.finish_call(node, [first])
    repeated = CompleteAnswer(accepted=True, repeated=True)
    assert await spine.finish_call(node, [first, second]) == [repeated, ACCEPTED]
    ids = [(await spine.attempt(grant))["receipt_id"] for grant in grants]
    assert len(set(ids)) == 2
    assert await verify(spine) == 2
    assert await list_states(spine) == ["verified", "verified"]


async def test_a_call_that_was_repeated_whole_leaves_one_receipt(spine):
    node, [grant] = await lease(spine)
    done = spine.completion(node, grant)
    for _ in range(3):
        await spine.finish_call(node, [done])
    assert await list_states(spine) == ["unverified"]


async def test_a_late_result_is_vouched_for_too(spine):
    node, [grant] = await lease(spine)
    await spine.let_lease_pass(grant)
    await reap_leases(spine.pool, grace_seconds=1, limit=10)
    await spine.succeed(node, grant)
    await verify(spine)
    assert await list_states(spine) == ["verified"]


# Receipts that do not hold


async def test_a_receipt_signed_by_another_key_is_found_and_its_result_stands_until_somebody_decides(spine):
    node, [grant] = await lease(spine)
    thief = EnrolledNode(node.id, Ed25519PrivateKey.generate(), node.caller)
    assert await spine.succeed(node, grant, receipt=spine.completion(thief, grant).receipt) == ACCEPTED
    assert "does not hold" in await get_reason(spine, node)
    assert (await spine.attempt(grant))["state"] == "succeeded"


async def test_a_receipt_of_another_node_is_found_although_it_is_well_signed(spine):
    node, [grant] = await lease(spine)
    other = await spine.enrol()
    await spine.succeed(node, grant, receipt=spine.receipt(other, spine.completion(node, grant)))
    assert "does not hold" in await get_reason(spine, node)


@pytest.mark.parametrize("claim", ["aud", "iss"])
async def test_a_receipt_for_somebody_else_is_found(spine, claim):
    node, [grant] = await lease(spine)
    done = spine.completion(node, grant)
    await spine.succeed(node, grant, receipt=spine.receipt(node, done, **{claim: str(UUID(int=9))}))
    assert "does not hold" in await get_reason(spine, node)


async def test_a_receipt_with_another_hash_is_found(spine):
    node, [grant] = await lease(spine)
    results = {str(grant.id): {"result_sha256": "0" * 64, "run_seconds": 1.0, "exit_code": 0}}
    await spine.succeed(node, grant, receipt=spine.receipt(node, results=results))
    assert f"attempt {grant.id}, or something else" in await get_reason(spine, node)


@pytest.mark.parametrize("results", [{}, [], None, "all of them", {"x": {}}, 7])
async def test_a_receipt_that_says_nothing_of_the_attempt_is_found(spine, results):
    node, [grant] = await lease(spine)
    await spine.succeed(node, grant, receipt=spine.receipt(node, results=results))
    assert f"nothing of attempt {grant.id}" in await get_reason(spine, node)


async def test_a_receipt_about_another_attempt_is_found(spine):
    node, grants = await lease(spine, slices=2)
    await spine.succeed(node, grants[0], receipt=spine.completion(node, grants[1]).receipt)
    assert f"nothing of attempt {grants[0].id}" in await get_reason(spine, node)


async def test_a_receipt_of_another_type_of_token_is_found(spine):
    node, [grant] = await lease(spine)
    await spine.succeed(node, grant, receipt=spine.receipt(node, spine.completion(node, grant), typ="JWT"))
    assert RECEIPT_TYPE in await get_reason(spine, node)


async def test_a_receipt_without_a_signature_is_found(spine):
    node, [grant] = await lease(spine)
    claims = jwt.decode(spine.completion(node, grant).receipt, options={"verify_signature": False})
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"typ": RECEIPT_TYPE})
    await spine.succeed(node, grant, receipt=unsigned)
    assert "does not hold" in await get_reason(spine, node)


async def test_a_node_whose_clock_runs_minutes_ahead_can_deliver_all_the_same(spine):
    node, [grant] = await lease(spine)
    done, ahead = spine.completion(node, grant), int(time.time()) + CLOCK_LEEWAY_SECONDS - 60
    await spine.succeed(node, grant, receipt=spine.receipt(node, done, iat=ahead))
    await verify(spine)
    assert await list_states(spine) == ["verified"]


async def test_a_receipt_from_hours_ahead_is_found(spine):
    node, [grant] = await lease(spine)
    done, ahead = spine.completion(node, grant), int(time.time()) + 10 * CLOCK_LEEWAY_SECONDS
    await spine.succeed(node, grant, receipt=spine.receipt(node, done, iat=ahead))
    assert "does not hold" in await get_reason(spine, node)


# Receipts made to break the verifier


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sign_raw(node: EnrolledNode, payload: bytes, header: dict[str, Any] | None = None) -> str:
    """Well signed, whatever it says: a node may sign what it likes."""
    head = encode(json.dumps({"typ": RECEIPT_TYPE, "alg": "EdDSA", **(header or {})}).encode())
    signed = f"{head}.{encode(payload)}"
    return f"{signed}.{encode(node.private.sign(signed.encode()))}"


def list_hostile(node: EnrolledNode, hub_id: UUID) -> Sequence[str]:
    said = {"iss": str(node.id), "aud": str(hub_id)}

    def claims(**more: Any) -> bytes:
        return json.dumps({**said, **more}).encode()

    return [
        "..",
        "a.b.c",
        "ä.ö.ü",
        f"{encode(b'[]')}.{encode(b'{}')}.x",
        f"{encode(b'[' * 30_000)}.{encode(b'{}')}.x",
        sign_raw(node, b"not json"),
        sign_raw(node, b"\xff\xfe"),
        sign_raw(node, b"[]"),
        sign_raw(node, b"[" * 60_000),
        sign_raw(node, claims(iat=float("inf"))),
        sign_raw(node, claims(iat=float("nan"))),
        sign_raw(node, claims(iat=10**400)),
        sign_raw(node, claims(exp=float("-inf"))),
        sign_raw(node, claims(nbf={"a": 1})),
        sign_raw(node, claims(iat=None)),
        sign_raw(node, claims(aud=[{}])),
        sign_raw(node, claims(iss=["x"])),
        sign_raw(node, claims(sub=7, jti=[])),
        sign_raw(node, claims(), {"kid": 7}),
        sign_raw(node, claims(), {"crit": ["a\0b"]}),
        sign_raw(node, claims(), {"crit": ["\ud800"]}),
        sign_raw(node, claims(), {"crit": ["x" * 60_000]}),
        sign_raw(node, claims(), {"crit": 7}),
        sign_raw(node, claims(), {"b64": False}),
        sign_raw(node, claims(), {"alg": "HS256"}),
        sign_raw(node, claims(), {"alg": ["EdDSA"]}),
        sign_raw(node, claims(), {"typ": {"x": "\0"}}),
    ]


HOSTILE_COUNT = 27


@pytest.mark.parametrize("number", range(HOSTILE_COUNT))
async def test_a_receipt_made_to_break_the_verifier_is_refused_and_holds_up_no_other(spine, number):
    """One that could not be judged would come first again and again, and nobody's receipt would be verified."""
    hostile, [bad] = await lease(spine)
    honest, [good] = await lease(spine)
    tokens = list_hostile(hostile, spine.keyring.hub_id)
    assert len(tokens) == HOSTILE_COUNT
    assert await spine.succeed(hostile, bad, receipt=tokens[number]) == ACCEPTED
    await spine.succeed(honest, good)
    assert await verify(spine) == 2
    assert await list_states(spine) == ["refused", "verified"]
    [event] = await list_refusals(spine)
    assert len(event["body"]["why"]) < 300


# Who sees them


async def list_seen(spine: Spine, caller: AccountCaller, job: Job, **page: int) -> list[tuple[int, UUID | None]]:
    _, signed = await list_signed(spine.pool, caller, job.id, **{"after": -1, "limit": 10, **page})
    return [(each.slice_index, each.receipt_id) for each in signed]


async def test_one_receipt_for_two_submitters_is_shown_to_each_with_their_own_results(spine):
    alice, bob, owner = await spine.sign_up(), await spine.sign_up(), await spine.sign_up()
    jobs = [await spine.submit(by=by, slice_count=2) for by in (alice, bob)]
    node = await spine.enrol(owner=owner, cpu_slots=4)
    await spine.finish_call(node, [spine.completion(node, grant) for grant in await spine.grant(node)])
    [receipt_id] = [row["id"] for row in await spine.fetch("SELECT id FROM receipts")]
    for job, by, other in ((jobs[0], alice, bob), (jobs[1], bob, alice)):
        assert await list_seen(spine, by, job) == [(0, receipt_id), (1, receipt_id)]
        assert await list_seen(spine, owner, job) == [(0, receipt_id), (1, receipt_id)]
        assert await list_seen(spine, by, job, limit=1) == [(0, receipt_id)]
        assert await list_seen(spine, by, job, after=0) == [(1, receipt_id)]
        for after in (-1, 5):
            with pytest.raises(NotFound):
                await list_seen(spine, other, job, after=after)


async def test_an_owner_sees_what_their_own_nodes_have_signed(spine):
    submitter, one, two, idle = [await spine.sign_up() for _ in range(4)]
    job = await spine.submit(by=submitter, slice_count=2)
    for owner in (one, two):
        node = await spine.enrol(owner=owner)
        await spine.succeed(node, await spine.grant_one(node))
    await spine.enrol(owner=idle)
    assert [index for index, _ in await list_seen(spine, submitter, job)] == [0, 1]
    assert [index for index, _ in await list_seen(spine, one, job)] == [0]
    assert [index for index, _ in await list_seen(spine, two, job)] == [1]
    assert await list_seen(spine, one, job, after=0) == []
    with pytest.raises(NotFound):
        await list_seen(spine, idle, job)


async def test_a_result_that_was_put_right_is_shown_with_the_receipt_of_who_got_it_right(dsn, tmp_path):
    async with open_validation_lab(dsn, tmp_path, holdback_seconds=0) as lab:
        spine, submitter = lab.spine, await lab.spine.sign_up()
        forger = await lab.enrol()
        for _ in range(3):
            await lab.enrol(vouched=True)
        job, grant = await lab.run(forger, WRONG, by=submitter)
        assert await list_seen(spine, submitter, job) == [], "kept back until somebody else has got the same"
        await lab.settle()
        _, signed = await list_signed(spine.pool, submitter, job.id, after=-1, limit=10)
        assert [(each.attempt_id == grant.id, each.accepted) for each in signed] == [(True, False), (False, True)]
        for each in signed:
            assert each.token is not None
            assert each.result_sha256 is not None
            vouched = read_results(
                each.token, node_id=each.node_id, public_key=each.public_key, hub_id=spine.keyring.hub_id
            )
            assert vouched[str(each.signed_id)] == each.result_sha256.hex()


# Many hubs, many receipts


async def test_a_portion_takes_the_oldest_and_no_more_than_its_limit(spine):
    node, grants = await lease(spine, slices=3)
    for grant in grants:
        await spine.succeed(node, grant)
    assert await verify(spine, limit=2) == 2
    assert await list_states(spine) == ["verified", "verified", "unverified"]
    assert [await verify(spine, limit=2) for _ in range(2)] == [1, 0]


async def test_hubs_that_verify_at_once_look_at_every_receipt_once(spine):
    node, grants = await lease(spine, slices=8)
    thief = EnrolledNode(node.id, Ed25519PrivateKey.generate(), node.caller)
    for number, grant in enumerate(grants):
        signer = thief if number % 4 == 0 else node
        await spine.succeed(node, grant, receipt=spine.completion(signer, grant).receipt)
    looked = 0
    while portion := sum(await asyncio.gather(*(verify(spine, limit=3) for _ in range(4)))):
        looked += portion
    assert looked == 8
    assert sorted(await list_states(spine)) == ["refused"] * 2 + ["verified"] * 6
    assert len(await list_refusals(spine)) == 2
