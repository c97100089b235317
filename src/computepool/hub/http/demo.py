"""The demo's theatre: pull the plug of a machine that is only played, and see the work move."""

from __future__ import annotations

from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import plugs
from computepool.wire import views as wire

routes = Routes()


@routes.add("POST", "/v1/demo/nodes/{name}/unplug", Access.ACCOUNT, body=wire.Unplug, answer=wire.Unplugged)
async def unplug_node(call: Call) -> wire.Unplugged:
    """Demo hubs only: answer none of a synthetic node's calls for some seconds. `name` is its id on the map."""
    hub, name = call.hub, call.path["name"]
    found = await hub.live.find_node(name)
    node_id = found.id if found is not None else None
    until = await plugs.unplug_node(hub.pool, hub.settings, call.account, node_id, seconds=call.body.seconds)
    await hub.plugs.refresh(hub.pool)
    return wire.Unplugged(node=name, until=until)
