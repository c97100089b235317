"""Job tokens are believed only when every check holds, whatever their header says of itself."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from uuid import UUID, uuid4

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.core.jobs.cause import Cause
from computepool.node import tokens
from computepool.node.tokens import JobToken, TokenRefused
from computepool.wire.attempts import Completion, Usage
from computepool.wire.nodes import HubKey

NOW = 1_800_000_000.0
NODE_ID, ATTEMPT_ID, HUB_ID = uuid4(), uuid4(), uuid4()
ORDER = '{"command": ["python3", "main.py"]}'
HUB_PRIVATE = Ed25519PrivateKey.generate()
PINNED = [HubKey(kid="k1", public_key=tokens.to_key_text(HUB_PRIVATE.public_key()))]


def sha256_of(order: str) -> str:
    return hashlib.sha256(order.encode()).hexdigest()


def make_token(
    *,
    key: Ed25519PrivateKey = HUB_PRIVATE,
    header: dict[str, Any] | None = None,
    without: str = "",
    **changes: Any,
) -> str:
    claims = {
        "iss": str(HUB_ID),
        "aud": str(NODE_ID),
        "jti": "any random text",
        "exp": int(NOW) + 300,
        "orders": {str(ATTEMPT_ID): sha256_of(ORDER)},
        **changes,
    }
    claims.pop(without, None)
    headers = {"kid": "k1", "typ": tokens.JOB_TOKEN_TYPE, **(header or {})}
    return jwt.encode(claims, key, algorithm="EdDSA", headers=headers)


def verify(
    token: str, *, order: str = ORDER, hub_keys: list[HubKey] = PINNED, attempt_id: UUID = ATTEMPT_ID
) -> JobToken:
    verified = tokens.verify_job_token(token, node_id=NODE_ID, hub_keys=hub_keys, now_seconds=NOW)
    verified.check(attempt_id, order)
    return verified


def test_a_good_token_is_believed() -> None:
    assert verify(make_token()).expires_at == NOW + 300


def test_a_token_within_the_clocks_leeway_is_believed() -> None:
    verify(make_token(exp=int(NOW) - 30))


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (make_token(header={"kid": "k2"}), "not pinned"),
        (make_token(key=Ed25519PrivateKey.generate()), "does not verify"),
        (make_token(header={"typ": "JWT"}), "type"),
        (make_token(header={"typ": tokens.RECEIPT_TYPE}), "type"),
        (make_token(aud=str(uuid4())), "another node"),
        (make_token(aud=[str(uuid4()), str(uuid4())]), "another node"),
        (make_token(aud=[f"{NODE_ID}0"]), "another node"),
        (make_token(aud=f"{NODE_ID}, {uuid4()}"), "another node"),
        (make_token(aud={str(NODE_ID): True}), "another node"),
        (make_token(aud=[[str(NODE_ID)]]), "another node"),
        (make_token(aud=[]), "does not verify"),
        (make_token(without="aud"), "does not verify"),
        (make_token(orders={}), "does not name"),
        (make_token(orders={str(uuid4()): sha256_of(ORDER)}), "does not name"),
        (make_token(orders={str(ATTEMPT_ID): None}), "does not name"),
        (make_token(orders={str(ATTEMPT_ID): 7}), "not the one"),
        (make_token(orders={str(ATTEMPT_ID): "0" * 64}), "not the one"),
        (make_token(orders=[str(ATTEMPT_ID)]), "no orders"),
        (make_token(without="orders"), "no orders"),
        (make_token(exp=int(NOW) - 3_600), "ran out"),
        (make_token(without="exp"), "no expiry"),
        (make_token(exp=True), "no expiry"),
        ("", "cannot be read"),
        ("a.b.c", "cannot be read"),
        (make_token()[:-4] + "AAAA", "does not verify"),
    ],
)
def test_a_token_that_misses_one_check_is_refused(token: str, words: str) -> None:
    with pytest.raises(TokenRefused, match=words):
        verify(token)


@pytest.mark.parametrize("others", [0, 1, 15])
def test_a_token_for_several_nodes_is_believed_by_each_of_them(others: int) -> None:
    """The hub signs once for nodes that it gives work to at the same moment."""
    strangers = {str(uuid4()): sha256_of(f"{number}") for number in range(others)}
    token = make_token(
        aud=[*(str(uuid4()) for _ in range(others)), str(NODE_ID)],
        orders={**strangers, str(ATTEMPT_ID): sha256_of(ORDER)},
    )
    assert verify(token).expires_at == NOW + 300
    for attempt_id in strangers:
        with pytest.raises(TokenRefused, match="not the one"):
            verify(token, attempt_id=UUID(attempt_id))


def test_control_without_a_look_at_the_audience_a_token_for_others_would_be_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tokens._DECODING, "verify_aud", False)
    verify(make_token(aud=[str(uuid4()), str(uuid4())]))


def test_a_changed_order_is_refused() -> None:
    with pytest.raises(TokenRefused, match="not the one"):
        verify(make_token(), order=ORDER.replace("main", "evil"))


def test_one_token_covers_many_orders_each_under_its_own_attempt() -> None:
    other_id, other_order = uuid4(), ORDER.replace("main", "other")
    orders = {str(ATTEMPT_ID): sha256_of(ORDER), str(other_id): sha256_of(other_order)}
    token = make_token(orders=orders)
    verify(token)
    verify(token, attempt_id=other_id, order=other_order)
    with pytest.raises(TokenRefused, match="not the one"):
        verify(token, attempt_id=other_id, order=ORDER)


def test_no_token_covers_nothing() -> None:
    with pytest.raises(TokenRefused, match="does not name"):
        tokens.NO_TOKEN.check(ATTEMPT_ID, ORDER)


def test_the_algorithm_none_is_refused() -> None:
    head, body, _ = make_token().split(".")
    header = {**json.loads(base64.urlsafe_b64decode(head + "==")), "alg": "none"}
    unsigned = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode() + f".{body}."
    with pytest.raises(TokenRefused, match="only EdDSA"):
        verify(unsigned)


def test_a_token_signed_with_the_public_key_as_hmac_secret_is_refused() -> None:
    claims = jwt.decode(make_token(), options={"verify_signature": False})
    public = HUB_PRIVATE.public_key().public_bytes_raw()
    swapped = jwt.encode(claims, public, algorithm="HS256", headers={"kid": "k1", "typ": tokens.JOB_TOKEN_TYPE})
    with pytest.raises(TokenRefused, match="only EdDSA"):
        verify(swapped)


def test_no_token_is_believed_without_pinned_keys() -> None:
    with pytest.raises(TokenRefused, match="not pinned"):
        verify(make_token(), hub_keys=[])


def test_new_hub_keys_are_taken_over_when_a_pinned_key_vouches_for_them() -> None:
    new = Ed25519PrivateKey.generate()
    listed = [*PINNED, HubKey(kid="k2", public_key=tokens.to_key_text(new.public_key()))]
    by_new, by_pinned = make_key_list(new, "k2", listed), make_key_list(HUB_PRIVATE, "k1", listed)
    assert find_vouched([by_new, by_pinned]) == listed
    assert find_vouched([by_new]) is None
    assert find_vouched([]) is None


@pytest.mark.parametrize(
    "changes", [{"aud": str(uuid4())}, {"hub_keys": "nonsense"}, {"hub_keys": []}, {"exp": int(NOW) - 3_600}]
)
def test_a_key_list_for_others_empty_or_old_is_not_taken_over(changes: dict[str, Any]) -> None:
    assert find_vouched([make_key_list(HUB_PRIVATE, "k1", PINNED, **changes)]) is None


def test_a_key_list_without_an_end_or_of_another_type_is_not_taken_over() -> None:
    """One that was kept could bring back a revoked key; and nothing else that the hub signs is a key list."""
    keys = [{"kid": each.kid, "public_key": each.public_key} for each in PINNED]
    claims = {"aud": str(NODE_ID), "exp": int(NOW) + 600, "hub_keys": keys}

    def encode(claims: dict[str, Any], **header: str) -> str:
        return jwt.encode(claims, HUB_PRIVATE, algorithm="EdDSA", headers={"kid": "k1", **header})

    assert find_vouched([encode(claims, typ=tokens.KEY_SET_TYPE)]) == PINNED
    del claims["exp"]
    assert find_vouched([encode(claims, typ=tokens.KEY_SET_TYPE)]) is None
    claims["exp"] = int(NOW) + 600
    assert find_vouched([encode(claims), encode(claims, typ=tokens.JOB_TOKEN_TYPE)]) is None


def test_a_key_list_with_a_key_that_is_none_is_not_taken_over() -> None:
    listed = [*PINNED, HubKey(kid="k2", public_key="AAAA")]
    assert find_vouched([make_key_list(HUB_PRIVATE, "k1", listed)]) is None


def test_an_assertion_names_the_node_and_lives_a_minute() -> None:
    key = Ed25519PrivateKey.generate()
    text = tokens.make_assertion(key, node_id=NODE_ID, hub_id=HUB_ID, now_seconds=NOW)
    claims = jwt.decode(
        text,
        key.public_key(),
        algorithms=["EdDSA"],
        audience=str(HUB_ID),
        options={"verify_exp": False, "verify_iat": False},
    )
    assert claims["iss"] == claims["sub"] == str(NODE_ID)
    assert claims["exp"] - claims["iat"] == 60
    assert tokens.make_assertion(key, node_id=NODE_ID, hub_id=HUB_ID, now_seconds=NOW) != text


def test_a_receipt_carries_what_the_protocol_asks_for() -> None:
    key = Ed25519PrivateKey.generate()
    good = Completion(
        attempt_id=ATTEMPT_ID,
        lease_secret="s",
        exit_code=0,
        usage=Usage(run_seconds=1.5),
        result_sha256="ab" * 32,
    )
    failed = Completion(attempt_id=uuid4(), lease_secret="s", exit_code=1, cause=Cause.EXIT_CODE)
    text = make_receipt(key, good, failed)
    assert jwt.get_unverified_header(text) == {"alg": "EdDSA", "typ": "computepool-receipt+jwt"}
    claims = jwt.decode(
        text, key.public_key(), algorithms=["EdDSA"], audience=str(HUB_ID), options={"verify_iat": False}
    )
    assert claims == {
        "iss": str(NODE_ID),
        "aud": str(HUB_ID),
        "iat": int(NOW),
        "results": {str(ATTEMPT_ID): {"result_sha256": "ab" * 32, "run_seconds": 1.5, "exit_code": 0}},
    }
    assert make_receipt(key, failed) == ""


def make_receipt(key: Ed25519PrivateKey, *completions: Completion) -> str:
    return tokens.make_receipt(key, node_id=NODE_ID, hub_id=HUB_ID, completions=completions, now_seconds=NOW)


def make_key_list(key: Ed25519PrivateKey, kid: str, listed: list[HubKey], **changes: Any) -> str:
    keys = [{"kid": each.kid, "public_key": each.public_key} for each in listed]
    claims = {"aud": str(NODE_ID), "exp": int(NOW) + 600, "hub_keys": keys, **changes}
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": kid, "typ": tokens.KEY_SET_TYPE})


def find_vouched(signed: list[str]) -> list[HubKey] | None:
    return tokens.find_vouched_keys(signed, node_id=NODE_ID, pinned=PINNED, now_seconds=NOW)
