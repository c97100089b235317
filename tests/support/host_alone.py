"""A host without a hub: its orders come from a test, and what it reads lies on a shelf."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import to_json
from computepool.node.host_options import HostOptions
from computepool.node.vnodes.host import Host
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.networks import make_mlp

SPEC = make_mlp()
NODE_ID = UUID(int=7)
# One VNode each on three seats; the loss shares the last one.
SEATS = {"a": "seat-0", "b": "seat-1", "head": "seat-2", "loss": "seat-2"}


class HostAlone:
    def __init__(self, seat: str, *, memory_bytes: int = 10**9, **more: Any) -> None:
        options = HostOptions(
            rpc_address="127.0.0.1:9",
            node_id=str(NODE_ID),
            attempt_id="t",
            lease_secret="s",
            run_id="r",
            seat=seat,
            hub_keys=more.pop("hub_keys", ()),
            numeric_class="c",
            memory_bytes=memory_bytes,
            **more,
        )
        self.host = Host(options)
        self.shelf: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.host._session.read_blob = self._read  # type: ignore[method-assign]

    async def _read(self, sha256: str) -> bytes:
        self.fetched.append(sha256)
        return self.shelf[sha256]

    async def prepare(
        self, *data: bytes, spec: NetworkSpec = SPEC, epoch: int = 1, checkpoint: tuple[int, dict[str, str]] = (0, {})
    ) -> None:
        """`checkpoint`: its step, and the hash of each VNode's state."""
        names = [hashlib.sha256(content).hexdigest() for content in data]
        self.shelf.update(zip(names, data, strict=True))
        placement = [pb.Location(vnode_id=id, seat=seat, incarnation=1) for id, seat in SEATS.items()]
        order = pb.Prepare(
            epoch=epoch,
            spec_json=to_json(spec),
            placement=placement,
            data=[pb.DataRef(sha256=name) for name in names],
            checkpoint_step=checkpoint[0],
            checkpoints=[pb.VNodeCheckpoint(vnode_id=id, sha256=sha256) for id, sha256 in checkpoint[1].items()],
        )
        await self.host._prepare(order)

    def list_said(self) -> list[Any]:
        waiting = self.host._session._waiting
        return [waiting.get_nowait() for _ in range(waiting.qsize())]

    @property
    def fault(self) -> pb.HostFault:
        [said] = self.list_said()
        assert said.WhichOneof("kind") == "fault", said
        return said.fault  # type: ignore[no-any-return]

    async def close(self) -> None:
        await self.host.close()
