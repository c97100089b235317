"""Sign-up, sign-in, keys and limits at real hubs."""

from __future__ import annotations

import time
from functools import partial

import httpx
import pytest

from tests.support.people import sign_in_operator, sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode
from tests.support.quickest import quickest_of


def post(hub, path, person=None, **body):
    headers = person.headers if person else {}
    return httpx.post(hub.url + path, json=body, headers=headers, timeout=20)


def me(hub, headers):
    return httpx.get(f"{hub.url}/v1/accounts/me", headers=headers, timeout=20)


def test_the_operators_link_is_printed_once_and_works_once(hub, start_hub, operator):
    assert me(hub, operator.headers).json()["roles"] == ["operator", "owner", "submitter"]
    with pytest.raises(AssertionError, match="each works once"):
        sign_in_operator(hub.url, hub.log_path.read_text())
    second = start_hub()
    assert "sign-in?token" not in second.log_path.read_text()


def test_an_invite_hub_takes_new_accounts_by_invite_only_and_each_once(start_hub):
    hub = start_hub(demo="false")
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    refused = post(hub, "/v1/accounts", email="ada@example.org")
    assert (refused.status_code, refused.json()["code"]) == (403, "sign_up_closed")
    invite = post(hub, "/v1/invites", operator).json()["invite"]
    assert post(hub, "/v1/accounts", email="ada@example.org", invite=invite).status_code == 201
    again = post(hub, "/v1/accounts", email="bob@example.org", invite=invite)
    assert again.json()["code"] == "sign_up_closed"
    owners_only = post(hub, "/v1/invites", operator, roles=["owner"]).json()["invite"]
    bob = post(hub, "/v1/accounts", email="bob@example.org", invite=owners_only).json()
    assert bob["key"]["key"]["roles"] == ["owner"]
    assert me(hub, {"Authorization": f"Bearer {bob['key']['secret']}"}).json()["roles"] == ["owner"]


def test_a_closed_hub_takes_nobody(start_hub):
    hub = start_hub(sign_up="closed")
    assert post(hub, "/v1/accounts", email="ada@example.org").json()["code"] == "sign_up_closed"


def test_a_password_signs_in_and_a_wrong_one_does_not(hub):
    post(hub, "/v1/accounts", email="Ada@Example.org", password="correct horse battery")
    assert post(hub, "/v1/sign-in", email="ada@example.org", password="correct horse battery").status_code == 200
    wrong = post(hub, "/v1/sign-in", email="ada@example.org", password="wrong horse battery")
    unknown = post(hub, "/v1/sign-in", email="nobody@example.org", password="wrong horse battery")
    assert (wrong.status_code, wrong.json()) == (401, unknown.json())


def test_guessing_passwords_is_slowed_down(hub):
    codes = (post(hub, "/v1/sign-in", email="x@y.z", password="guess").json()["code"] for _ in range(200))
    assert "rate_limited" in codes


def test_an_email_is_taken_once(hub):
    assert post(hub, "/v1/accounts", email="ada@example.org").status_code == 201
    assert post(hub, "/v1/accounts", email="ADA@example.org ").json()["code"] == "name_taken"


def test_a_sign_in_link_gives_a_browser_a_cookie_that_other_sites_cannot_use(hub, submitter):
    link = post(hub, "/v1/sign-in-links", submitter).json()
    with httpx.Client(base_url=hub.url, follow_redirects=True, timeout=60) as browser:
        assert browser.get(link["path"]).status_code == 200
        assert browser.post("/v1/sign-in", json={"link_token": link["token"]}).status_code == 200
        assert browser.get("/v1/accounts/me").status_code == 200
        foreign = browser.post("/v1/jobs", json={"command": ["x"]}, headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403
        own = browser.post("/v1/jobs", json={"command": ["x"]}, headers={"Origin": hub.url})
        assert own.status_code == 201
        # A browser says where a changing call comes from; what says nothing is not taken for one of ours.
        assert browser.post("/v1/sign-out").status_code == 403
        assert browser.post("/v1/sign-out", headers={"Origin": hub.url}).status_code == 204
        assert browser.get("/v1/accounts/me").status_code == 401


def test_a_key_cannot_make_a_stronger_key(hub, submitter):
    weak = post(hub, "/v1/keys", submitter, roles=["owner"]).json()["secret"]
    headers = {"Authorization": f"Bearer {weak}"}
    answer = httpx.post(f"{hub.url}/v1/keys", json={"roles": ["submitter"]}, headers=headers, timeout=60)
    assert answer.status_code == 403
    assert httpx.post(f"{hub.url}/v1/jobs", json={"command": ["x"]}, headers=headers, timeout=60).status_code == 403


def is_refused(hub, headers) -> bool:
    return me(hub, headers).status_code == 401


async def test_a_revoked_key_is_refused_by_every_hub_within_five_seconds(hub, start_hub, submitter):
    others = [start_hub(), start_hub()]

    async def revoke_one() -> float:
        """Until the last of the hubs refuses it."""
        key = post(hub, "/v1/keys", submitter).json()
        headers = {"Authorization": f"Bearer {key['secret']}"}
        # Asked until the very end, so that a hub that remembers it from the last time would not forget.
        assert [me(each, headers).status_code for each in others] == [200, 200]
        httpx.delete(f"{hub.url}/v1/keys/{key['key']['id']}", headers=submitter.headers, timeout=20)
        started = time.monotonic()
        assert me(hub, headers).status_code == 401
        for each in others:
            await wait_for(partial(is_refused, each, headers), what="every hub to refuse it")
        return time.monotonic() - started

    assert await quickest_of(revoke_one, enough=5.0, tries=3) < 5.0


def test_control_a_hub_that_remembers_keys_for_longer_lets_a_revoked_one_in(hub, start_hub, submitter):
    other = start_hub(program=("-m", "tests.support.planted_hub", "remembers_keys"))
    key = post(hub, "/v1/keys", submitter).json()
    headers = {"Authorization": f"Bearer {key['secret']}"}
    assert not is_refused(other, headers)
    httpx.delete(f"{hub.url}/v1/keys/{key['key']['id']}", headers=submitter.headers, timeout=20)
    time.sleep(5.0)
    assert not is_refused(other, headers)
    assert is_refused(hub, headers)


def test_an_accounts_limits_answer_429_with_a_time_to_come_back(start_hub):
    # Ten calls at once, and one more each second: however slow the machine is, it asks faster than that.
    hub = start_hub(queued_slices_max=10, stored_bytes_max=100, calls_per_minute_max=60)
    person = sign_up(hub.url)
    assert post(hub, "/v1/jobs", person, command=["x"], slice_count=8).status_code == 201
    full = post(hub, "/v1/jobs", person, command=["x"], slice_count=3)
    assert (full.status_code, full.json()["code"]) == (429, "limit_exceeded")
    assert int(full.headers["Retry-After"]) > 0
    import hashlib

    content = b"x" * 200
    upload = httpx.put(
        f"{hub.url}/v1/artifacts/{hashlib.sha256(content).hexdigest()}",
        content=content,
        headers=person.headers,
        timeout=60,
    )
    assert upload.status_code == 429
    answers = [me(hub, person.headers) for _ in range(80)]
    assert {a.status_code for a in answers} == {200, 429}
    assert sign_up(hub.url) is not None


def test_an_operator_raises_a_limit_and_takes_a_role_away(hub, operator, submitter):
    def change(**body):
        return httpx.patch(
            f"{hub.url}/v1/accounts/{submitter.account_id}", json=body, headers=operator.headers, timeout=60
        )

    changed = change(queued_slices_max=7, roles=["owner"]).json()
    assert (changed["limits"]["queued_slices_max"], changed["roles"]) == (7, ["owner"])
    assert post(hub, "/v1/jobs", submitter, command=["x"]).status_code == 403
    assert change(queued_slices_max=0).status_code == 400
    yourself = httpx.patch(
        f"{hub.url}/v1/accounts/{operator.account_id}",
        json={"roles": ["owner"]},
        headers=operator.headers,
        timeout=60,
    )
    assert yourself.status_code == 403


async def test_a_suspended_owners_nodes_are_refused_too(hub, operator, owner):
    node = ProtocolNode([hub.url], owner)
    await node.enrol()
    post(hub, f"/v1/accounts/{owner.account_id}/suspend", operator)
    assert (await node.heartbeat()).json()["code"] == "account_suspended"
    await node.close()


def test_a_suspended_account_is_refused_everything(hub, operator, submitter):
    post(hub, f"/v1/accounts/{submitter.account_id}/suspend", operator)
    answer = me(hub, submitter.headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "account_suspended")
    post(hub, f"/v1/accounts/{submitter.account_id}/resume", operator)
    assert me(hub, submitter.headers).status_code == 200
