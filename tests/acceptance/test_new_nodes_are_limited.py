"""An owner who brings one node after the other, to a real hub behind a proxy, and one who is not limited."""

from __future__ import annotations

import httpx
import pytest

from tests.support.agent_process import AgentProcess
from tests.support.people import sign_in_operator, sign_up
from tests.support.postgres import connected
from tests.support.protocol_node import ProtocolNode

LIMIT = 2


async def try_to_enrol(url: str, owner, address: str) -> httpx.Response:
    """As a proxy on the hub's machine passes it on."""
    node = ProtocolNode([url], owner)
    headers = {**owner.headers, "X-Forwarded-For": address}
    try:
        return await node.client.post(f"{url}/v1/nodes", json=node.enrolment(), headers=headers)
    finally:
        await node.close()


async def test_new_nodes_are_limited_by_owner_and_by_network_until_the_operator_says_otherwise(start_hub):
    hub = start_hub(new_nodes_max=LIMIT)
    owner, operator = sign_up(hub.url, "owner"), sign_in_operator(hub.url, hub.log_path.read_text())
    for number in range(LIMIT):
        assert (await try_to_enrol(hub.url, owner, f"93.184.216.{number}")).status_code == 201
    refused = await try_to_enrol(hub.url, owner, "151.101.1.1")
    assert (refused.status_code, refused.json()["code"]) == (429, "new_nodes_limited")
    assert "This account" in refused.json()["message"]
    assert int(refused.headers["retry-after"]) > 29 * 86_400
    # A fresh account in the same house is no way round it; elsewhere it may come.
    other = sign_up(hub.url, "other")
    refused = await try_to_enrol(hub.url, other, "93.184.216.200")
    assert (refused.status_code, refused.json()["code"]) == (429, "new_nodes_limited")
    assert "This network" in refused.json()["message"]
    assert (await try_to_enrol(hub.url, other, "2606:2800:220:1::5")).status_code == 201
    # Without an address that says something nothing is known of a network.
    for _ in range(LIMIT):
        assert (await try_to_enrol(hub.url, sign_up(hub.url, "near"), "192.168.0.7")).status_code == 201
    httpx.patch(
        f"{hub.url}/v1/accounts/{owner.account_id}",
        headers=operator.headers,
        json={"new_nodes_max": LIMIT + 1},
        timeout=20,
    ).raise_for_status()
    assert (await try_to_enrol(hub.url, owner, "93.184.216.9")).status_code == 201


async def test_control_where_there_is_no_limit_one_owner_brings_any_number(start_hub):
    hub = start_hub(new_nodes_max=0)
    owner = sign_up(hub.url, "owner")
    for _ in range(LIMIT + 4):
        assert (await try_to_enrol(hub.url, owner, "93.184.216.7")).status_code == 201


async def test_the_network_of_a_node_is_known_and_follows_it(start_hub, dsn):
    hub = start_hub()
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"))
    node.client.headers["X-Forwarded-For"] = "93.184.216.34"
    await node.enrol()
    assert await network_of(dsn, node) == "93.184.216.0/24"
    headers = {"X-Forwarded-For": "2606:2800:220:1::5"}
    renewed = await node.client.post(
        f"{hub.url}/v1/nodes/token", json={"assertion": node.assertion()}, headers=headers
    )
    assert renewed.status_code == 200
    assert await network_of(dsn, node) == "2606:2800:220::/48"
    await node.close()


async def network_of(dsn: str, node: ProtocolNode) -> str | None:
    async with connected(dsn) as conn:
        return await conn.fetchval("SELECT network FROM nodes WHERE id = $1::text::uuid", node.node_id)


@pytest.mark.timeout(120)
async def test_an_agent_that_is_one_too_many_says_so_and_ends(start_hub, tmp_path):
    hub = start_hub(new_nodes_max=1)
    owner = sign_up(hub.url, "owner")
    assert (await try_to_enrol(hub.url, owner, "93.184.216.7")).status_code == 201
    agent = AgentProcess(hub_url=hub.url, owner=owner, root=tmp_path, profile="cpu-only", cpu_slots=1).start()
    try:
        assert agent.process.wait(90) == 7
        assert "Ask the operator" in agent.log_text()
    finally:
        agent.end()
