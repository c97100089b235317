"""Every route, every kind of caller, own and other tenants' resources. A route without a row fails.

Each row says who may call and what the path names. From that follows every expected answer:
who may not gets 401 or 403; another tenant's resource is 404, the same as none.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from computepool import entropy
from computepool.core.networks.spec_json import to_json
from computepool.hub.http.app import all_routes
from tests.support.networks import make_mlp
from tests.support.people import sign_in_operator, sign_up
from tests.support.protocol_node import ProtocolNode

PUBLIC, ACCOUNT, SUBMITTER, OWNER, OPERATOR, NODE = "public", "account", "submitter", "owner", "operator", "node"


@dataclass(frozen=True)
class Row:
    access: str
    # What the path names; it belongs to Alice. None: the route names nothing of anyone's.
    resource: str | None = None
    body: Any = None
    # An operator may reach into every tenant.
    operator_sees_all: bool = False
    query: str = ""


CHECKPOINT = {"number": 1, "run_seconds": 0, "files": [{"path": "a", "sha256": "0" * 64, "size_bytes": 1}]}

MATRIX: dict[str, Row] = {
    "GET /healthz": Row(PUBLIC),
    "GET /readyz": Row(PUBLIC),
    "GET /metrics": Row(PUBLIC),
    "GET /openapi.json": Row(PUBLIC),
    "GET /": Row(PUBLIC),
    "GET /sign-in": Row(PUBLIC),
    "GET /static/{name}": Row(PUBLIC, "static"),
    "GET /v1/hub": Row(PUBLIC),
    "POST /v1/accounts": Row(PUBLIC, body={"email": "not an address"}),
    "POST /v1/sign-in": Row(PUBLIC, body={}),
    "POST /v1/nodes/challenges": Row(NODE, body={"slot": "cpu:0"}),
    "POST /v1/nodes/challenges/{challenge_id}/commit": Row(NODE, "challenge", body={"root": "0" * 64}),
    "POST /v1/nodes/challenges/{challenge_id}/open": Row(NODE, "challenge", body={"segments": []}),
    "POST /v1/nodes/token": Row(PUBLIC, body={"assertion": "x"}),
    "POST /v1/hub/keys/rotate": Row(OPERATOR),
    "POST /v1/hub/keys/{kid}/revoke": Row(OPERATOR, "hub_key", operator_sees_all=True),
    "POST /v1/sign-out": Row(ACCOUNT),
    "GET /v1/accounts/me": Row(ACCOUNT),
    "PUT /v1/accounts/me/password": Row(ACCOUNT, body={"password": "a long enough one"}),
    "POST /v1/sign-in-links": Row(ACCOUNT),
    "GET /v1/accounts": Row(OPERATOR),
    "POST /v1/accounts/{account_id}/sign-in-links": Row(OPERATOR, "account"),
    "PATCH /v1/accounts/{account_id}": Row(OPERATOR, "account", body={}),
    "POST /v1/accounts/{account_id}/suspend": Row(OPERATOR, "account"),
    "POST /v1/accounts/{account_id}/resume": Row(OPERATOR, "account"),
    "POST /v1/invites": Row(OPERATOR, body={}),
    "POST /v1/keys": Row(ACCOUNT, body={}),
    "GET /v1/keys": Row(ACCOUNT),
    "DELETE /v1/keys/{key_id}": Row(ACCOUNT, "key"),
    "POST /v1/jobs": Row(SUBMITTER, body={"command": ["true"]}),
    "POST /v1/jobs/batch": Row(SUBMITTER, body={"jobs": [{"command": ["true"]}]}),
    "GET /v1/jobs": Row(ACCOUNT),
    "GET /v1/jobs/{job_id}": Row(ACCOUNT, "job", operator_sees_all=True),
    "POST /v1/jobs/{job_id}/cancel": Row(SUBMITTER, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/slices": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/slices/{index}": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/slices/{index}/logs": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/events": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/receipts": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/why": Row(ACCOUNT, "job", operator_sees_all=True),
    "PUT /v1/artifacts/{sha256}": Row(SUBMITTER, "new_artifact", body=b"bytes"),
    "GET /v1/artifacts/{sha256}": Row(ACCOUNT, "artifact"),
    "HEAD /v1/artifacts/{sha256}": Row(ACCOUNT, "artifact"),
    "POST /v1/nodes": Row(OWNER, body={"name": "x"}),
    "GET /v1/nodes": Row(ACCOUNT),
    "GET /v1/nodes/{node_id}": Row(ACCOUNT, "node", operator_sees_all=True),
    "GET /v1/nodes/{node_id}/why": Row(ACCOUNT, "node", operator_sees_all=True),
    "POST /v1/nodes/{node_id}/drain": Row(OWNER, "node", operator_sees_all=True),
    "POST /v1/nodes/{node_id}/pause": Row(OWNER, "node", operator_sees_all=True),
    "POST /v1/nodes/{node_id}/resume": Row(OWNER, "node", operator_sees_all=True),
    "POST /v1/nodes/{node_id}/remove": Row(OWNER, "node", operator_sees_all=True),
    "PUT /v1/nodes/{node_id}/offer": Row(
        OWNER, "node", operator_sees_all=True, body={"floor_microcredits_per_hour": 1}
    ),
    "GET /v1/placement/experiment": Row(OPERATOR),
    "GET /v1/live": Row(ACCOUNT, query="?seconds=0"),
    "GET /v1/public/live": Row(PUBLIC, query="?seconds=0"),
    "GET /v1/public/mesh": Row(PUBLIC),
    "GET /v1/public/jobs": Row(PUBLIC),
    "GET /v1/leaderboard": Row(PUBLIC),
    "GET /v1/market/depth": Row(PUBLIC, query="?tier=cpu"),
    "GET /v1/accounts/me/profile": Row(ACCOUNT),
    "PATCH /v1/accounts/me/profile": Row(ACCOUNT, body={"shows_titles": False}),
    "GET /v1/jobs/{job_id}/spec": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/strip": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/jobs/{job_id}/attempts": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/nodes/{node_id}/attempts": Row(ACCOUNT, "node", operator_sees_all=True),
    "GET /v1/nodes/{node_id}/earnings": Row(ACCOUNT, "node", operator_sees_all=True),
    "GET /v1/credits/holds": Row(ACCOUNT),
    "GET /v1/networks": Row(ACCOUNT),
    "GET /v1/networks/{network_id}": Row(ACCOUNT, "network", operator_sees_all=True),
    "GET /v1/runs": Row(ACCOUNT),
    "GET /v1/runs/{run_id}": Row(ACCOUNT, "run", operator_sees_all=True),
    "GET /v1/runs/{run_id}/feed": Row(ACCOUNT, "run", operator_sees_all=True),
    "GET /v1/runs/{run_id}/checkpoints": Row(ACCOUNT, "run", operator_sees_all=True),
    "POST /v1/runs/{run_id}/stop": Row(SUBMITTER, "run", operator_sees_all=True),
    "GET /v1/operator/overview": Row(OPERATOR),
    "GET /v1/operator/history": Row(OPERATOR),
    "GET /v1/operator/events": Row(OPERATOR),
    "GET /v1/operator/distrusted-nodes": Row(OPERATOR),
    "GET /v1/jobs/{job_id}/validation": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/nodes/{node_id}/trust": Row(ACCOUNT, "node", operator_sees_all=True),
    "PUT /v1/operator/nodes/{node_id}/vouch": Row(OPERATOR, "node", body={"vouched": True}, operator_sees_all=True),
    "GET /v1/operator/blocked-inputs": Row(OPERATOR),
    "POST /v1/operator/blocked-inputs": Row(OPERATOR, body={"sha256": "x", "why": "x"}),
    "DELETE /v1/operator/blocked-inputs/{sha256}": Row(OPERATOR, "blocked_input", operator_sees_all=True),
    "POST /v1/demo/nodes/{name}/unplug": Row(ACCOUNT, body={"seconds": 0}),
    "GET /v1/market/rate-card": Row(PUBLIC),
    "GET /v1/market/spot": Row(PUBLIC),
    "GET /v1/market/history": Row(PUBLIC, query="?tier=cpu"),
    "GET /v1/market/index": Row(PUBLIC),
    "GET /v1/market/earnings": Row(ACCOUNT, query="?tier=cpu"),
    "POST /v1/quotes": Row(ACCOUNT, body={}),
    "GET /v1/credits": Row(ACCOUNT),
    "POST /v1/credits/top-ups": Row(ACCOUNT, body={"amount_microcredits": 1}),
    "GET /v1/credits/top-ups": Row(ACCOUNT),
    "GET /v1/credits/top-ups/{top_up_id}": Row(ACCOUNT, "top_up"),
    "GET /v1/credits/payout-details": Row(OWNER, "details"),
    "PUT /v1/credits/payout-details": Row(OWNER, body={"region": "IN", "destination": ""}),
    "POST /v1/credits/payouts": Row(OWNER, body={"amount_microcredits": 1}),
    "GET /v1/credits/payouts": Row(ACCOUNT),
    "GET /v1/credits/payouts/{payout_id}": Row(ACCOUNT, "payout"),
    "POST /v1/credits/payouts/{payout_id}/cancel": Row(OWNER, "payout"),
    "POST /v1/credits/spend-earnings": Row(OWNER, body={"amount_microcredits": 1}),
    "POST /v1/credits/providers/{name}/events": Row(PUBLIC, body={}),
    "GET /v1/operator/top-ups": Row(OPERATOR),
    "POST /v1/operator/top-ups/{top_up_id}/refund": Row(OPERATOR, "top_up", operator_sees_all=True),
    "GET /v1/operator/cash-rates": Row(OPERATOR),
    "GET /v1/operator/payouts": Row(OPERATOR),
    "POST /v1/operator/payouts/{payout_id}/approve": Row(OPERATOR, "payout", operator_sees_all=True),
    "POST /v1/operator/payouts/{payout_id}/refuse": Row(
        OPERATOR, "payout", operator_sees_all=True, body={"why": "no such bank"}
    ),
    "POST /v1/operator/payments": Row(OPERATOR, body={}),
    "GET /v1/operator/provider-events": Row(OPERATOR),
    "POST /v1/operator/provider-events/review": Row(OPERATOR, body={}),
    "POST /v1/operator/provider-events/hear-again": Row(OPERATOR, body={}),
    "GET /v1/operator/freezes": Row(OPERATOR),
    "POST /v1/operator/freezes/{account_id}/lift": Row(OPERATOR, "frozen", operator_sees_all=True),
    "POST /v1/credits/disputes": Row(SUBMITTER, body={}),
    "GET /v1/credits/disputes": Row(ACCOUNT),
    "GET /v1/credits/disputes/{dispute_id}": Row(ACCOUNT, "dispute"),
    "GET /v1/operator/disputes": Row(OPERATOR),
    "POST /v1/operator/disputes/{dispute_id}/uphold": Row(
        OPERATOR, "dispute", operator_sees_all=True, body={"note": "it was wrong"}
    ),
    "POST /v1/operator/disputes/{dispute_id}/dismiss": Row(
        OPERATOR, "dispute", operator_sees_all=True, body={"note": "it was right"}
    ),
    "POST /v1/operator/disputes/reverse": Row(OPERATOR, body={}),
    "GET /v1/credits/statement": Row(ACCOUNT),
    "GET /v1/jobs/{job_id}/statement": Row(ACCOUNT, "job", operator_sees_all=True),
    "GET /v1/nodes/{node_id}/statement": Row(ACCOUNT, "node", operator_sees_all=True),
    "GET /v1/credits/why": Row(ACCOUNT, "queried_node", operator_sees_all=True),
    "GET /v1/credits/proof": Row(PUBLIC),
    "GET /v1/operator/audit/batches": Row(OPERATOR),
    "GET /v1/operator/audit/balances": Row(OPERATOR),
    "POST /v1/operator/books/close": Row(OPERATOR, body={"day": "2026-01-01"}),
    "GET /v1/operator/books/payouts": Row(OPERATOR, query="?day=2026-01-01"),
    "POST /v1/jobs/next": Row(NODE, body="beat"),
    "POST /v1/nodes/heartbeat": Row(NODE, body="beat"),
    "POST /v1/jobs/complete": Row(NODE, body={}),
    "POST /v1/jobs/complete/batch": Row(NODE, body={}),
    "GET /v1/attempts/{attempt_id}/inputs/{sha256}": Row(NODE, "attempt"),
    "PUT /v1/attempts/{attempt_id}/outputs/{sha256}": Row(NODE, "attempt", body=b"bytes"),
    "GET /v1/attempts/{attempt_id}/outputs/{sha256}": Row(NODE, "attempt"),
    "PUT /v1/attempts/{attempt_id}/checkpoint": Row(NODE, "attempt", body=CHECKPOINT),
    "GET /v1/attempts/{attempt_id}/checkpoint": Row(NODE, "attempt"),
    "POST /v1/attempts/{attempt_id}/logs": Row(NODE, "attempt", body=b"a line\n", query="?offset=0"),
}

# Roles that a key of this caller carries.
ROLES = {
    "alice_submitter": {SUBMITTER},
    "alice_owner": {OWNER},
    "mallory": {SUBMITTER, OWNER},
    "operator": {SUBMITTER, OWNER, OPERATOR},
}
NOBODY = ("anonymous", "nonsense", "revoked", "expired", "suspended")
NODES = ("alice_node", "mallory_node")


def test_every_route_has_a_row_and_every_row_a_route():
    assert {route.name for route in all_routes()} == set(MATRIX)


def test_every_route_declares_the_access_that_its_row_expects():
    assert {route.name: route.access.value for route in all_routes()} == {n: r.access for n, r in MATRIX.items()}


# A payout that has failed moved no money: it can be looked at, and nothing else.
INSERT_PAYOUT = """
INSERT INTO payouts (id, account_id, idempotency_key, asked_microcredits, provider, details_id, currency,
                     amount_minor, amount_microcredits, state, failure, reserved_at, failed_at)
VALUES ($1::uuid, $2, $1::uuid::text, 10000, 'manual', $3, 'INR', 1, 10000, 'failed', 'cancelled', now(), now())"""
INSERT_DETAILS = """
INSERT INTO payout_details (id, account_id, region, currency, destination) VALUES ($1, $2, 'IN', 'INR', 'bank 1')"""
# Over an attempt of Alice's job that somebody else was paid for.
INSERT_DISPUTE = """
WITH paid AS (
    INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, expires_at, finished_at,
                          charged_microcredits, fee_microcredits, earning_state, release_at)
    SELECT $1, job_id, slice_index, $2, node_id, slot, 'succeeded', now(), now(), 5, 1, 'disputed',
           now() + interval '1 day'
      FROM attempts WHERE id = $3 RETURNING id)
INSERT INTO disputes (id, attempt_id, submitter_id, owner_id, origin, reason, opened_by)
SELECT $4, id, $5, $6, 'submitter', 'a test', $5 FROM paid"""
INSERT_RUN = """
WITH made AS (
    INSERT INTO networks (id, account_id, name, spec, digest, vnode_count, parameter_count)
    VALUES ($1, $3, 'net', $4, sha256('x'), 1, 1) RETURNING id)
INSERT INTO runs (id, network_id, account_id, job_id, steps, options, data, expires_at)
SELECT $2, id, $3, $2, 1, '{}', '[]', now() + interval '1 hour' FROM made"""
INSERT_BLOCKED = "INSERT INTO blocked_inputs (sha256, why, blocked_by) VALUES ($1, 'a test', $2)"
INSERT_FREEZE = "INSERT INTO account_freezes (id, account_id, why) VALUES ($1, $2, 'a test')"


@dataclass
class World:
    """One hub, Alice with everything the paths can name, and all kinds of callers."""

    hub_url: str
    dsn: str
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    alice: Any = None
    # Nobody but the other side of Alice's disputes.
    bob: Any = None
    node: Any = None
    held: Any = None
    challenge_id: Any = None
    nodes: list[ProtocolNode] = field(default_factory=list)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    details_id: UUID = field(default_factory=entropy.new_id)

    def post(self, path: str, headers: dict[str, str], **options: Any) -> dict[str, Any]:
        answer = httpx.post(self.hub_url + path, headers=headers, timeout=20, **options)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def set_up(self, operator) -> None:
        self.alice, mallory = sign_up(self.hub_url, "alice"), sign_up(self.hub_url, "mallory")
        self.bob = sign_up(self.hub_url, "bob")
        suspended = sign_up(self.hub_url, "suspended")
        for role in (SUBMITTER, OWNER):
            key = self.post("/v1/keys", self.alice.headers, json={"roles": [role]})
            self.headers[f"alice_{role}"] = bearer(key["secret"])
        self.headers |= {"anonymous": {}, "nonsense": bearer("cpk_nonsense"), "mallory": mallory.headers}
        self.headers |= {"operator": operator.headers, "suspended": suspended.headers}
        self.post(f"/v1/accounts/{suspended.account_id}/suspend", operator.headers)
        revoked = self.post("/v1/keys", self.alice.headers, json={})
        httpx.delete(f"{self.hub_url}/v1/keys/{revoked['key']['id']}", headers=self.alice.headers, timeout=60)
        self.headers["revoked"] = bearer(revoked["secret"])
        expired = self.post("/v1/keys", self.alice.headers, json={"expires_seconds": 60})
        await self.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", expired["key"]["id"])
        self.headers["expired"] = bearer(expired["secret"])
        self.input_sha = await self.upload()
        self.node = await self.make_node(self.alice, "alice_node")
        await self.make_node(mallory, "mallory_node")
        file = {"path": "in.txt", "sha256": self.input_sha, "size_bytes": 5}
        self.post("/v1/jobs", self.alice.headers, json={"command": ["true"], "files": [file], "retries": 0})
        self.held = await self.node.claim_one()
        await self.execute(INSERT_DETAILS, self.details_id, self.alice.account_id)
        asked = self.post("/v1/nodes/challenges", self.headers["alice_node"], json={"slot": "cpu:0"})
        self.challenge_id = asked["challenge"]["id"]

    async def execute(self, statement: str, *values: Any) -> None:
        conn = await asyncpg.connect(self.dsn)
        try:
            await conn.execute(statement, *values)
        finally:
            await conn.close()

    def request_top_up(self) -> str:
        """One only: an account may not ask for many in a day."""
        headers = {**self.alice.headers, "Idempotency-Key": "matrix"}
        return self.post("/v1/credits/top-ups", headers, json={"amount_microcredits": 10**8})["id"]

    async def make_node(self, person, name: str) -> ProtocolNode:
        node = ProtocolNode([self.hub_url], person, name=name, cpu_slots=1)
        await node.enrol()
        self.headers[name] = node.headers
        self.nodes.append(node)
        return node

    async def upload(self) -> str:
        sha = hashlib.sha256(b"input").hexdigest()
        answer = httpx.put(
            f"{self.hub_url}/v1/artifacts/{sha}", content=b"input", headers=self.alice.headers, timeout=60
        )
        assert answer.status_code == 200, answer.text
        return sha

    async def make_path(self, path: str, resource: str | None) -> str:
        """The route's path with something of Alice's filled in, made anew so that calls do not disturb each other."""
        bytes_sha = hashlib.sha256(b"bytes").hexdigest()
        if resource == "job":
            job = self.post(
                "/v1/jobs", self.alice.headers, json={"command": ["x"], "requirements": {"regions": ["AQ"]}}
            )
            return path.format(job_id=job["id"], index=0)
        if resource in ("node", "queried_node"):
            node = ProtocolNode([self.hub_url], self.alice, name=f"n{next(self.numbers)}")
            await node.enrol()
            await node.close()
            if resource == "queried_node":
                return f"{path}?node={node.node_id}&day=2026-01-01"
            return path.format(node_id=node.node_id)
        if resource == "key":
            return path.format(key_id=self.post("/v1/keys", self.alice.headers, json={})["key"]["id"])
        if resource == "account":
            return path.format(account_id=sign_up(self.hub_url, "target").account_id)
        if resource == "artifact":
            return path.format(sha256=self.input_sha)
        if resource == "new_artifact":
            return path.format(sha256=bytes_sha)
        if resource == "top_up":
            return path.format(top_up_id=self.request_top_up())
        if resource == "payout":
            payout_id = entropy.new_id()
            await self.execute(INSERT_PAYOUT, payout_id, self.alice.account_id, self.details_id)
            return path.format(payout_id=payout_id)
        if resource == "dispute":
            dispute_id = entropy.new_id()
            await self.execute(
                INSERT_DISPUTE,
                entropy.new_id(),
                1_000 + next(self.numbers),
                UUID(self.held.attempt_id),
                dispute_id,
                UUID(self.alice.account_id),
                UUID(self.bob.account_id),
            )
            return path.format(dispute_id=dispute_id)
        if resource in ("network", "run"):
            network_id, run_id = entropy.new_id(), entropy.new_id()
            await self.execute(INSERT_RUN, network_id, run_id, UUID(self.alice.account_id), to_json(make_mlp()))
            return path.format(network_id=network_id, run_id=run_id)
        if resource == "frozen":
            target = sign_up(self.hub_url, "frozen")
            await self.execute(INSERT_FREEZE, entropy.new_id(), target.account_id)
            return path.format(account_id=target.account_id)
        if resource == "hub_key":
            # One that was only just announced: nobody holds anything that it has signed.
            rotated = self.post("/v1/hub/keys/rotate", self.headers["operator"])
            return path.format(kid=rotated["hub_keys"][-1]["kid"])
        if resource == "blocked_input":
            sha = hashlib.sha256(entropy.new_bytes(8))
            await self.execute(INSERT_BLOCKED, sha.digest(), self.alice.account_id)
            return path.format(sha256=sha.hexdigest())
        if resource == "challenge":
            return path.format(challenge_id=self.challenge_id)
        if resource == "attempt":
            sha = self.input_sha if "inputs" in path else bytes_sha
            return path.format(attempt_id=self.held.attempt_id, sha256=sha)
        return path.format(name="style.css")

    async def headers_of(self, caller: str, route: str) -> dict[str, str]:
        headers = dict(self.headers[caller])
        if caller in NODES:
            headers["Lease-Secret"] = self.held.secret
        if route == "POST /v1/sign-out" and caller in ROLES:
            # Signing out ends the key it is called with: use one that nobody needs afterwards.
            headers = bearer(self.post("/v1/keys", headers, json={})["secret"])
        return headers


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def expected(row: Row, caller: str) -> set[int] | str:
    """The statuses that are right; "in" means anything but a refusal for who the caller is."""
    if row.access == PUBLIC:
        return "in"
    if caller in NOBODY:
        return {403} if caller == "suspended" and row.access != NODE else {401}
    if (caller in NODES) != (row.access == NODE):
        return {401}
    if caller in NODES:
        if caller == "mallory_node" and row.resource in ("attempt", "challenge"):
            return {409} if row.resource == "attempt" else {404}
        return "in"
    if row.access != ACCOUNT and row.access not in ROLES[caller]:
        return {403}
    if row.resource in (None, "account", "new_artifact"):
        return "in"
    if caller == "operator" and row.operator_sees_all:
        return "in"
    return "in" if caller.startswith("alice") else {404}


async def list_wrong(hub_url: str, dsn: str, operator, rows: Mapping[str, Row]) -> list[tuple[Any, ...]]:
    """Every call of these rows that was answered otherwise than they say."""
    world = World(hub_url, dsn)
    await world.set_up(operator)
    wrong, calls = [], 0
    async with httpx.AsyncClient(base_url=hub_url, timeout=60) as client:
        for route in all_routes():
            if (row := rows.get(route.name)) is None:
                continue
            for caller in (*NOBODY, *ROLES, *NODES):
                url = await world.make_path(route.path, row.resource) + row.query
                body = (
                    {"boot_id": world.node.boot_id, "running": [world.held.attempt_id]}
                    if row.body == "beat"
                    else row.body
                )
                content = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
                headers = await world.headers_of(caller, route.name)
                answer = await client.request(route.method, url, headers=headers, **content)
                calls += 1
                want = expected(row, caller)
                good = answer.status_code not in (401, 403, 404, 500) if want == "in" else answer.status_code in want
                if row.access == PUBLIC:
                    good = answer.status_code < 500
                if not good:
                    wrong.append((route.name, caller, want, answer.status_code, answer.text[:120]))
    assert calls == len(rows) * (len(NOBODY) + len(ROLES) + len(NODES))
    await asyncio.gather(*(node.close() for node in world.nodes))
    return wrong


@pytest.mark.timeout(280)
async def test_every_route_answers_every_caller_as_its_row_says(hub, dsn, operator):
    assert await list_wrong(hub.url, dsn, operator, MATRIX) == []


@pytest.mark.timeout(280)
async def test_control_a_hub_that_forgets_to_compare_tenants_is_caught(start_hub, dsn):
    hub = start_hub(program=("-m", "tests.support.planted_hub", "no_tenant_check"))
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    jobs = {name: row for name, row in MATRIX.items() if row.resource == "job"}
    wrong = await list_wrong(hub.url, dsn, operator, jobs)
    assert {(row[0], row[1]) for row in wrong} >= {("GET /v1/jobs/{job_id}", "mallory")}
