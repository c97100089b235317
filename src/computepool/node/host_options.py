"""What the agent and the process that hosts VNodes tell each other: one line of JSON each way."""

from __future__ import annotations

import msgspec

from computepool.wire.nodes import HubKey

# The host's exit code when the hub will not have it.
REFUSED_EXIT_CODE = 3
# An address with this in it is told with the port that the host got.
PORT = "{port}"


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine computes like."""

    numeric_class: str
    flops_per_second: float
    device: str


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent tells the process that it starts."""

    rpc_address: str
    node_id: str
    attempt_id: str
    lease_secret: str
    run_id: str
    seat: str
    hub_keys: tuple[HubKey, ...]
    numeric_class: str
    # What VNodes may take here.
    memory_bytes: int
    # Where to listen for other hosts, and what to tell them; empty: by relay only.
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    device: str = "cpu"
    # Where shards of data are kept for later runs, and how much of them; empty: nowhere.
    data_folder: str = ""
    data_bytes_max: int = 0
    tls: bool = False
    # Certificates that the hub is known by, as PEM; absent: those of the machine.
    tls_roots: bytes | None = None
