"""The hub's signing keys: one is added, then signs, then the old one goes; or one is revoked at once."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from computepool import entropy
from computepool.core.errors import Conflict, NotFound, Unauthenticated
from computepool.core.ids import NodeId
from computepool.hub.services.keyring import NODE_TOKEN_TYPE, Keyring, ensure_keys, revoke_key, rotate_keys
from computepool.hub.store.connect import Pool
from computepool.node.tokens import find_vouched_keys

HUB_ID = entropy.new_id()
CLAIMS = {"sub": "a node", "aud": "here", "exp": 4_000_000_000}


@pytest.fixture
async def keyring(pool: Pool) -> Keyring:
    await ensure_keys(pool)
    return await open_keyring(pool)


async def open_keyring(pool: Pool) -> Keyring:
    """As another hub of the grid has it."""
    keyring = Keyring(HUB_ID)
    await keyring.refresh(pool)
    return keyring


def sign(keyring: Keyring) -> str:
    return keyring.sign(CLAIMS, typ=NODE_TOKEN_TYPE)


def verify(keyring: Keyring, token: str) -> dict[str, Any]:
    return keyring.verify(token, typ=NODE_TOKEN_TYPE, audience="here")


def kid_of(token: str) -> str:
    return jwt.get_unverified_header(token)["kid"]


def list_kids(keyring: Keyring) -> list[str]:
    return [key.kid for key in keyring.public_keys()]


async def test_a_new_key_is_known_before_it_signs(pool, keyring):
    [old] = list_kids(keyring)
    await rotate_keys(pool, announce_seconds=3_600)
    await keyring.refresh(pool)
    assert len(list_kids(keyring)) == 2
    assert kid_of(sign(keyring)) == old
    # Hubs that start together make no keys of their own.
    await ensure_keys(pool)
    assert list_kids(await open_keyring(pool)) == list_kids(keyring)


async def test_a_revoked_key_neither_signs_nor_counts_and_the_next_signs_before_its_time(pool, keyring):
    token, [old] = sign(keyring), list_kids(keyring)
    await rotate_keys(pool, announce_seconds=3_600)
    other_hub = await open_keyring(pool)
    await revoke_key(pool, kid=old)
    for each in (keyring, other_hub):
        await each.refresh(pool)
        assert old not in list_kids(each)
        with pytest.raises(Unauthenticated):
            verify(each, token)
    assert kid_of(sign(keyring)) != old
    assert verify(other_hub, sign(keyring))["sub"] == "a node"


async def test_what_the_next_key_signs_is_believed_by_a_hub_that_has_not_heard_of_it_yet(pool, keyring):
    [old] = list_kids(keyring)
    await rotate_keys(pool, announce_seconds=3_600)
    late = await open_keyring(pool)
    await revoke_key(pool, kid=old)
    await keyring.refresh(pool)
    assert verify(late, sign(keyring))["sub"] == "a node"


async def test_after_a_new_key_was_revoked_the_old_one_stays(pool, keyring):
    [old] = list_kids(keyring)
    # From now on the old one has a date to go.
    await rotate_keys(pool, announce_seconds=3_600)
    await keyring.refresh(pool)
    [new] = set(list_kids(keyring)) - {old}
    await revoke_key(pool, kid=new)
    await keyring.refresh(pool)
    assert list_kids(keyring) == [old]
    retires = await pool.fetchval("SELECT retires_at FROM hub_keys WHERE kid = $1", old)
    assert retires is None


async def test_the_last_key_cannot_be_revoked_nor_one_that_is_not_there(pool, keyring):
    [only] = list_kids(keyring)
    with pytest.raises(Conflict, match="only key"):
        await revoke_key(pool, kid=only)
    with pytest.raises(NotFound):
        await revoke_key(pool, kid="another")
    await keyring.refresh(pool)
    assert kid_of(sign(keyring)) == only


async def test_the_lease_key_is_no_signing_key(pool, keyring):
    kid = await pool.fetchval("SELECT kid FROM hub_keys WHERE purpose = 'lease'")
    await rotate_keys(pool, announce_seconds=3_600)
    with pytest.raises(NotFound):
        await revoke_key(pool, kid=kid)


async def test_nodes_that_heard_of_the_next_key_follow_a_revocation_and_the_others_do_not(pool, keyring):
    node_id, early = NodeId(entropy.new_id()), keyring.public_keys()
    await rotate_keys(pool, announce_seconds=3_600)
    await keyring.refresh(pool)
    both = keyring.public_keys()
    await revoke_key(pool, kid=early[0].kid)
    await keyring.refresh(pool)
    signed, now = keyring.vouch_for_keys(node_id), 0.0

    def follow(pinned: Any) -> Any:
        return find_vouched_keys(signed, node_id=node_id, pinned=pinned, now_seconds=now)

    assert follow(both) == keyring.public_keys()
    # They would have to believe anybody.
    assert follow(early) is None
