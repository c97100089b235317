"""The teaching agent keeps its promises: short, alone with the standard library, and its own Ed25519 is right."""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import jwt
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

SOURCE = Path(__file__).parents[2] / "examples" / "tiny_agent.py"


def load(*edits: tuple[str, str]) -> ModuleType:
    """The agent as it is, or a copy with a guard taken out."""
    source = SOURCE.read_text()
    for text, replacement in edits:
        assert source.count(text) == 1, text
        source = source.replace(text, replacement)
    module = ModuleType("tiny_agent")
    exec(compile(source, SOURCE, "exec"), module.__dict__)
    return module


tiny: Any = load()


def test_it_has_at_most_150_lines() -> None:
    assert len(SOURCE.read_text().splitlines()) <= 150


def test_it_needs_the_standard_library_only() -> None:
    tree = ast.parse(SOURCE.read_text())
    plain = {
        name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    named = {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert plain | named <= set(sys.stdlib_module_names)


@settings(max_examples=15, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=300))
def test_its_keys_and_signatures_are_those_of_the_library(seed: bytes, message: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes_raw()
    assert tiny.public_of(seed) == public
    assert tiny.sign(seed, message) == key.sign(message)
    assert tiny.verify(public, message, key.sign(message))


@settings(max_examples=15, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), position=st.integers(0, 511))
def test_a_changed_bit_spoils_a_signature_for_both(seed: bytes, position: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    signature = bytearray(key.sign(b"message"))
    signature[position // 8] ^= 1 << position % 8
    public = key.public_key()
    assert not is_verified_by_library(public, bytes(signature))
    assert not is_verified_by_tiny(public, bytes(signature))


def test_signatures_with_an_overlarge_number_or_wrong_length_are_refused() -> None:
    key = Ed25519PrivateKey.generate()
    signature = key.sign(b"message")
    overlarge = (int.from_bytes(signature[32:], "little") + tiny.ORDER).to_bytes(32, "little")
    for wrong in (signature[:32] + overlarge, signature + b"\0", signature[:63]):
        assert not is_verified_by_tiny(key.public_key(), wrong)


def is_verified_by_library(public: Ed25519PublicKey, signature: bytes) -> bool:
    try:
        public.verify(signature, b"message")
    except InvalidSignature:
        return False
    return True


def is_verified_by_tiny(public: Ed25519PublicKey, signature: bytes) -> bool:
    try:
        return bool(tiny.verify(public.public_bytes_raw(), b"message", signature))
    except ValueError:
        # The changed bytes are no point of the curve, which is a refusal too.
        return False


class Hub:
    """Signs job tokens the way a hub does."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.keys = [{"kid": "k1", "public_key": tiny.b64(self.key.public_key().public_bytes_raw())}]
        self.node_id = str(uuid4())

    def assign(self, *, header: dict[str, Any] | None = None, **changes: Any) -> tuple[dict[str, str], str]:
        """An assignment, and the token of the answer that brings it."""
        attempt_id = str(uuid4())
        order = json.dumps({"attempt_id": attempt_id, "command": ["true"]})
        claims = {
            "aud": self.node_id,
            "jti": "random text",
            "exp": time.time() + 60,
            "orders": {str(uuid4()): "0" * 64, attempt_id: tiny.sha256(order.encode())},
            **changes,
        }
        headers = {"kid": "k1", "typ": "computepool-job+jwt", **(header or {})}
        token = jwt.encode(claims, self.key, algorithm="EdDSA", headers=headers)
        return {"attempt_id": attempt_id, "order": order}, token


def test_a_good_order_is_opened() -> None:
    hub = Hub()
    assert tiny.open_order(*hub.assign(), hub.node_id, hub.keys)["command"] == ["true"]


@pytest.mark.parametrize("others", [0, 1, 15])
def test_a_token_for_several_nodes_is_good_for_each_of_them(others: int) -> None:
    hub = Hub()
    aud = [*(str(uuid4()) for _ in range(others)), hub.node_id]
    assert tiny.open_order(*hub.assign(aud=aud), hub.node_id, hub.keys)["command"] == ["true"]


def is_opened_by_a_stranger(agent: Any, aud: Callable[[str], Any]) -> bool:
    """Whether an agent whose id is not in the audience, only much like it, takes the token for its own."""
    hub = Hub()
    try:
        agent.open_order(*hub.assign(aud=aud(hub.node_id)), hub.node_id, hub.keys)
    except ValueError:
        return False
    return True


STRANGERS: list[Callable[[str], Any]] = [
    lambda id: [str(uuid4()), str(uuid4())],
    lambda id: [],
    lambda id: f"{id}, {uuid4()}",
    lambda id: [f"{id}0"],
    lambda id: [[id]],
    lambda id: {id: True},
]


@pytest.mark.parametrize("aud", STRANGERS)
def test_a_token_for_several_nodes_is_refused_by_every_other(aud: Callable[[str], Any]) -> None:
    assert not is_opened_by_a_stranger(tiny, aud)


def test_an_order_that_names_another_node_is_refused() -> None:
    hub = Hub()
    other = json.dumps({"attempt_id": "a", "node_id": str(uuid4()), "command": ["true"]})
    given, token = hub.assign(aud=[hub.node_id, str(uuid4())], orders={"a": tiny.sha256(other.encode())})
    with pytest.raises(ValueError, match="no token"):
        tiny.open_order({**given, "attempt_id": "a", "order": other}, token, hub.node_id, hub.keys)


def test_control_agents_that_look_for_their_id_less_closely_are_caught() -> None:
    """One finds it anywhere in the audience's text; the other does not look."""
    hasty = load(("aud if type(aud) is list else [aud]", "aud"))
    assert [is_opened_by_a_stranger(hasty, aud) for aud in STRANGERS] == [False, False, True, False, False, True]
    blind = load((" and node_id in auds", ""))
    assert all(is_opened_by_a_stranger(blind, aud) for aud in STRANGERS)


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "another"},
        {"aud": None},
        {"exp": 1},
        {"orders": {}},
        {"orders": None},
        {"orders": ["text"]},
        {"header": {"typ": "JWT"}},
        {"header": {"kid": "k2"}},
    ],
)
def test_a_token_that_is_not_meant_for_this_is_refused(changes: dict[str, Any]) -> None:
    hub = Hub()
    with pytest.raises(ValueError):
        tiny.open_order(*hub.assign(**changes), hub.node_id, hub.keys)


def test_a_changed_order_and_a_strangers_signature_are_refused() -> None:
    hub, stranger = Hub(), Hub()
    changed, token = hub.assign()
    changed["order"] = changed["order"].replace("true", "false")
    with pytest.raises(ValueError):
        tiny.open_order(changed, token, hub.node_id, hub.keys)
    stranger.node_id = hub.node_id
    with pytest.raises(ValueError):
        tiny.open_order(*stranger.assign(), hub.node_id, hub.keys)


def test_the_algorithms_none_and_hs256_are_refused() -> None:
    hub = Hub()
    good, token = hub.assign()
    head, body, _ = token.split(".")
    header = json.loads(tiny.unb64(head))
    public = tiny.unb64(hub.keys[0]["public_key"])
    none = tiny.b64(json.dumps({**header, "alg": "none"}).encode()) + f".{body}."
    claims = json.loads(tiny.unb64(body))
    swapped = jwt.encode(claims, public, algorithm="HS256", headers={"kid": "k1", "typ": header["typ"]})
    for forged in (none, swapped):
        with pytest.raises(ValueError):
            tiny.open_order(good, forged, hub.node_id, hub.keys)


def test_its_own_tokens_are_read_by_the_library() -> None:
    seed = bytes(range(32))
    token = tiny.make_jwt(seed, {"aud": "hub", "jti": "x"}, "computepool-receipt+jwt")
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    assert jwt.decode(token, public, algorithms=["EdDSA"], audience="hub")["jti"] == "x"
    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "typ": "computepool-receipt+jwt"}


class Node(tiny.Node):  # type: ignore[misc]
    """Enrolled already; its job is over at once, and its calls are noted."""

    def __init__(self, hub: Hub, folder: Path, *, exit_code: int, answer: dict[str, Any]) -> None:
        self.folder, self.seed, self.boot, self.exit_code = folder, bytes(range(32)), "boot", exit_code
        self.id, self.hub_id, self.keys = hub.node_id, "hub", hub.keys
        self.calls: list[tuple[str, Any]] = []
        self.answer = answer

    def call(self, method: str, path: str, body: Any = None, lease: str = "") -> Any:
        self.calls.append((path, body))
        return self.answer

    def run(self, *order: Any) -> int:
        return self.exit_code


def test_a_success_is_signed_and_asks_for_the_next_work(tmp_path: Path) -> None:
    hub, following = Hub(), {"assignments": [], "token": "t"}
    node = Node(hub, tmp_path, exit_code=0, answer={"accepted": True, "next": following})
    given, token = hub.assign()
    assert node.work({**given, "lease_secret": "s"}, token) == following
    ((path, told),) = node.calls
    assert path == "/v1/jobs/complete"
    assert (told["exit_code"], told["cause"], told["claim"]) == (0, None, {"free_slots": ["cpu:0"]})
    public = Ed25519PrivateKey.from_private_bytes(node.seed).public_key()
    claims = jwt.decode(told["receipt"], public, algorithms=["EdDSA"], audience="hub")
    assert (claims["iss"], set(claims)) == (hub.node_id, {"iss", "aud", "iat", "results"})
    assert claims["results"] == {
        given["attempt_id"]: {
            "result_sha256": told["result_sha256"],
            "run_seconds": told["usage"]["run_seconds"],
            "exit_code": 0,
        }
    }


def test_a_failure_is_told_without_a_receipt_and_nothing_is_started_twice(tmp_path: Path) -> None:
    hub = Hub()
    node = Node(hub, tmp_path, exit_code=3, answer={"accepted": False, "next": None})
    given, token = hub.assign()
    assert node.work({**given, "lease_secret": "s"}, token) is None
    assert node.work({**given, "lease_secret": "s"}, token) is None
    assert [told["cause"] for _, told in node.calls] == ["exit_code", "sandbox_refused"]
    assert [told["receipt"] for _, told in node.calls] == ["", ""]
