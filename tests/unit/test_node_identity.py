"""The node's key, its enrolment and what it has started survive restarts, and nobody else can read them."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import files, tokens
from computepool.node.identity import Identity, WrongHub
from computepool.node.spent_tokens import KEEP_SECONDS, SpentTokens
from computepool.node.state_dir import StateDir, StateDirInUse
from computepool.wire.nodes import EnrolledNode, EnrolNode, Hardware, Hosting, HubKey

NOW = 1_800_000_000.0


def make_request(
    identity: Identity,
    *,
    cores: int = 4,
    disk_bytes: int = 10**9,
    floor: int = 0,
    hosting: Hosting | None = None,
) -> EnrolNode:
    return EnrolNode(
        name="attic",
        public_key=identity.public_key_text,
        hardware=Hardware(cores=cores, ram_bytes=10**9, disk_bytes=disk_bytes),
        isolation=IsolationLevel.SANDBOXED,
        floor_microcredits_per_hour=floor,
        hosting=hosting,
    )


def make_answer(*keys: HubKey) -> EnrolledNode:
    return EnrolledNode(node_id=uuid4(), hub_id=uuid4(), token="t", token_seconds=900, hub_keys=list(keys))


def test_the_key_is_made_once_and_kept_to_oneself(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    first = Identity(state).public_key_text
    assert Identity(state).public_key_text == first
    assert state.key_path.stat().st_mode & 0o777 == 0o600
    assert state.root.stat().st_mode & 0o777 == 0o700


def test_an_enrolment_survives_a_restart(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    identity = Identity(state)
    assert not identity.is_enrolled
    answer = make_answer(HubKey(kid="k", public_key="p"))
    request = make_request(identity)
    identity.record_enrolment("http://hub", request, answer)
    again = Identity(state)
    assert (again.node_id, again.hub_id, list(again.hub_keys)) == (answer.node_id, answer.hub_id, answer.hub_keys)
    assert again.has_declared(request)
    assert state.enrolment_path.stat().st_mode & 0o777 == 0o600


def test_another_numeric_class_is_told_again_but_not_a_speed_that_was_measured_anew(tmp_path: Path) -> None:
    identity = Identity(StateDir(tmp_path))
    offer = Hosting(numeric_class="a", memory_bytes=10**9, flops_per_second=1e9)
    identity.record_enrolment("http://hub", make_request(identity, hosting=offer), make_answer())
    faster = Hosting(numeric_class="a", memory_bytes=10**9, flops_per_second=2e9)
    other = Hosting(numeric_class="b", memory_bytes=10**9, flops_per_second=1e9)
    assert identity.has_declared(make_request(identity, hosting=faster))
    assert not identity.has_declared(make_request(identity, hosting=other))
    assert not identity.has_declared(make_request(identity))


def test_new_hardware_is_told_again_but_not_a_few_bytes_of_disk(tmp_path: Path) -> None:
    identity = Identity(StateDir(tmp_path))
    identity.record_enrolment("http://hub", make_request(identity), make_answer())
    assert identity.has_declared(make_request(identity, disk_bytes=10**9 - 5_000))
    assert not identity.has_declared(make_request(identity, cores=8))


def test_a_new_floor_is_told(tmp_path: Path) -> None:
    identity = Identity(StateDir(tmp_path))
    identity.record_enrolment("http://hub", make_request(identity), make_answer())
    assert not identity.has_declared(make_request(identity, floor=1_500_000))


def test_another_hub_is_refused(tmp_path: Path) -> None:
    identity = Identity(StateDir(tmp_path))
    identity.record_enrolment("http://hub", make_request(identity), make_answer())
    with pytest.raises(WrongHub, match="state-dir"):
        identity.record_enrolment("http://hub", make_request(identity), make_answer())


def test_a_rotation_of_hub_keys_is_followed_and_kept(tmp_path: Path) -> None:
    old, new = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    pinned = HubKey(kid="old", public_key=tokens.to_key_text(old.public_key()))
    coming = HubKey(kid="new", public_key=tokens.to_key_text(new.public_key()))
    state = StateDir(tmp_path)
    identity = Identity(state)
    identity.record_enrolment("http://hub", make_request(identity), make_answer(pinned))
    listed = [{"kid": key.kid, "public_key": key.public_key} for key in (pinned, coming)]
    claims = {"aud": str(identity.node_id), "exp": NOW + 600, "hub_keys": listed}
    signed = [jwt.encode(claims, old, algorithm="EdDSA", headers={"kid": "old", "typ": tokens.KEY_SET_TYPE})]
    assert identity.take_over_keys(signed, now_seconds=NOW)
    assert identity.take_over_keys(signed, now_seconds=NOW)
    assert list(Identity(state).hub_keys) == [pinned, coming]


def test_keys_that_nobody_vouches_for_are_not_taken_over(tmp_path: Path) -> None:
    stranger = Ed25519PrivateKey.generate()
    pinned = HubKey(kid="old", public_key=tokens.to_key_text(Ed25519PrivateKey.generate().public_key()))
    strange = HubKey(kid="old", public_key=tokens.to_key_text(stranger.public_key()))
    identity = Identity(StateDir(tmp_path))
    identity.record_enrolment("http://hub", make_request(identity), make_answer(pinned))
    listed = [{"kid": "old", "public_key": strange.public_key}]
    claims = {"aud": str(identity.node_id), "exp": NOW + 600, "hub_keys": listed}
    signed = [jwt.encode(claims, stranger, algorithm="EdDSA", headers={"kid": "old", "typ": tokens.KEY_SET_TYPE})]
    assert not identity.take_over_keys(signed, now_seconds=NOW)
    assert list(identity.hub_keys) == [pinned]
    assert identity.knows_one_of([strange, pinned])
    assert not identity.knows_one_of([strange])


def test_two_agents_never_share_a_folder(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    first.lock()
    with pytest.raises(StateDirInUse, match="state-dir"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_the_sign_of_life_gets_younger_with_every_touch(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.touch_alive()
    before = state.alive_path.stat().st_mtime_ns
    time.sleep(0.01)
    state.touch_alive()
    assert state.alive_path.stat().st_mtime_ns > before


def test_an_attempt_is_started_once_even_across_restarts(tmp_path: Path) -> None:
    attempt_id = uuid4()
    spent = SpentTokens(tmp_path / "spent", now_seconds=NOW)
    assert spent.spend(attempt_id, expires_at=NOW + 300, now_seconds=NOW)
    assert not spent.spend(attempt_id, expires_at=NOW + 300, now_seconds=NOW)
    assert SpentTokens(tmp_path / "spent", now_seconds=NOW + 1).is_spent(attempt_id)


def test_what_long_expired_tokens_started_is_forgotten(tmp_path: Path) -> None:
    attempt_id = uuid4()
    SpentTokens(tmp_path / "spent", now_seconds=NOW).spend(attempt_id, expires_at=NOW, now_seconds=NOW)
    later = SpentTokens(tmp_path / "spent", now_seconds=NOW + KEEP_SECONDS + 1)
    assert not later.is_spent(attempt_id)
    assert (tmp_path / "spent").read_bytes() == b""


def test_a_line_cut_short_by_a_crash_spoils_nothing(tmp_path: Path) -> None:
    path, whole, later = tmp_path / "spent", uuid4(), uuid4()
    path.write_bytes(f"{whole} {NOW + 300:.0f}\n{str(uuid4())[:20]}".encode())
    spent = SpentTokens(path, now_seconds=NOW)
    spent.spend(later, expires_at=NOW + 300, now_seconds=NOW)
    again = SpentTokens(path, now_seconds=NOW)
    assert again.is_spent(whole)
    assert again.is_spent(later)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    files.write_whole(path, b"one")
    files.write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_a_crash_left_half_removed_does_not_block_the_next(tmp_path: Path) -> None:
    (tmp_path / ".gone-a" / "leftover").mkdir(parents=True)
    (tmp_path / "a" / "b").mkdir(parents=True)
    files.remove_folder(tmp_path / "a")
    files.remove_folder(tmp_path / "never there")
    assert list(tmp_path.iterdir()) == []
