"""The agent's settings: one frozen class, read once at start. Refuses to look at the environment afterwards."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from computepool import settings
from computepool.core.placement.price import MICROCREDITS_PER_CREDIT, PRICE_MICROCREDITS_MAX
from computepool.node.comfort.readers import AUTO, FILE_PREFIX
from computepool.node.sandbox.backends import NAMES as SANDBOX_NAMES
from computepool.settings import InvalidSettings

PREFIX = "COMPUTEPOOL_NODE_"
CREDITS_MAX = PRICE_MICROCREDITS_MAX // MICROCREDITS_PER_CREDIT
FREE = Decimal(0)
# Of images, and of hosts; a hub takes no more.
PATTERNS_MAX = 80
# Instead of an address to listen on.
RELAY_ALONE = "none"


class Poll(str, Enum):
    LONG = "long"  # one call is always held open
    SHORT = "short"  # for networks that cut long calls: ask, wait, ask again


class Device(str, Enum):
    CPU = "cpu"
    CUDA = "cuda"


class LogLevel(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    hub_url: Annotated[
        str, Meta(description="The hub's address, for example https://hub.example.org.", extra={"env": "HUB_URL"})
    ]
    hub_ca_file: Annotated[
        str, Meta(description="Certificates of an authority of your own that vouches for the hub, as PEM.")
    ] = ""
    owner_key: Annotated[str, Meta(description="The owner's API key. Needed once, to enrol; never stored.")] = ""
    name: Annotated[str, Meta(description="The node's name in the owner's list; the machine's name if empty.")] = ""
    state_dir: Annotated[
        str, Meta(description="Where the agent keeps its key, its cache and its running attempts.")
    ] = ""
    region: Annotated[str | None, Meta(description="Country as ISO-2 code, for example IN or DE.")] = None
    profile: Annotated[
        str, Meta(description="Play a machine for a demo: the name of a shipped profile (rtx-4090) or a TOML file.")
    ] = ""
    cpu_slots: Annotated[
        int, Meta(ge=0, le=256, description="CPU jobs that may run at once, besides one per GPU.")
    ] = 1
    cores_max: Annotated[int | None, Meta(description="Lend at most so many cores; all if empty.")] = None
    ram_bytes_max: Annotated[int | None, Meta(description="Lend at most so many bytes of RAM; all if empty.")] = None
    disk_bytes_max: Annotated[
        int | None, Meta(description="Lend at most so many bytes of disk; all free if empty.")
    ] = None
    poll: Annotated[Poll, Meta(description="long holds a call open; short asks now and then.")] = Poll.LONG
    wait_seconds: Annotated[float, Meta(ge=0, le=300, description="How long one call for work is held open.")] = 30.0
    drain_seconds: Annotated[
        float, Meta(ge=0, description="At the end, how long running jobs may take to finish.")
    ] = 600.0
    stop_grace_seconds: Annotated[
        float, Meta(ge=0, le=60, description="Between asking a stopped job to end and killing it.")
    ] = 5.0
    pids_max: Annotated[int, Meta(ge=8, description="Processes and threads that one job may have.")] = 512
    cache_bytes_max: Annotated[int, Meta(ge=0, description="Input files kept for later jobs, in bytes.")] = (
        10_000_000_000
    )
    sandboxes: Annotated[
        str,
        Meta(description="Sandboxes to test and use, of bubblewrap, podman, docker, gvisor; all installed if empty."),
    ] = ""
    images_allowed: Annotated[
        str,
        Meta(
            description="Images that jobs may bring, as names with *, for example docker.io/library/*; none if empty."
        ),
    ] = ""
    egress_allowed: Annotated[
        str,
        Meta(
            description="Hosts that jobs may reach if they ask, as host:port with *, for example *.example.org:443."
        ),
    ] = ""
    packages_index: Annotated[
        str, Meta(description="Where Python packages of jobs come from, wheels alone; jobs get none if empty.")
    ] = "https://pypi.org/simple"
    packages_bytes_max: Annotated[
        int, Meta(ge=0, description="Installed packages kept for later jobs, in bytes.")
    ] = 10_000_000_000
    floor_credits_per_hour: Annotated[
        Decimal, Meta(description="The least that one slot is lent for, in credits an hour, for example 1.50.")
    ] = FREE
    comfort_file: Annotated[
        str, Meta(description="When this machine is lent, as TOML; comfort.toml in the agent's folder if empty.")
    ] = ""
    seat: Annotated[
        str, Meta(description="How the machine is looked at: auto; for tests file:PATH, with readings as JSON.")
    ] = "auto"
    measure: Annotated[
        bool, Meta(description="Measure how fast the devices are, and show it to the hub: tiers and prices follow.")
    ] = True
    networks: Annotated[bool, Meta(description="Host VNodes of networks; needs the extra `networks`.")] = False
    networks_listen: Annotated[
        str,
        Meta(description="Where hosts listen for each other, as address:port, 0: any port; none: by relay alone."),
    ] = "0.0.0.0:0"
    networks_uplink_mbit: Annotated[
        float, Meta(ge=0, le=8_000_000, description="What this machine can send to others, in Mbit/s; 0: not known.")
    ] = 0.0
    networks_latency_ms: Annotated[
        float, Meta(ge=0, le=10_000, description="How long the first byte to another machine takes; 0: not known.")
    ] = 0.0
    networks_device: Annotated[Device, Meta(description="What VNodes are computed on: cpu or cuda.")] = Device.CPU
    networks_threads: Annotated[
        int, Meta(ge=1, le=256, description="Threads of a host; runs are exact among hosts with as many.")
    ] = 1
    networks_roots_file: Annotated[
        str, Meta(description="Certificates that gRPC of the hub is known by, as PEM; those of the machine if empty.")
    ] = ""
    log_level: Annotated[LogLevel, Meta(description="debug, info, warning or error.")] = LogLevel.INFO

    @property
    def floor_microcredits_per_hour(self) -> int:
        return int(self.floor_credits_per_hour * MICROCREDITS_PER_CREDIT)


def load_config(env: Mapping[str, str], **overrides: Any) -> NodeConfig:
    """Overrides come from the command line and win. Raises InvalidSettings with every fault at once."""
    if not (overrides.get("hub_url") or env.get("HUB_URL")):
        raise InvalidSettings("Which hub? Set HUB_URL, for example HUB_URL=https://hub.example.org")
    try:
        config = settings.load(NodeConfig, env, prefix=PREFIX, **overrides)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"The settings cannot be used: {error}") from None
    faults = _list_faults(config)
    if faults:
        raise InvalidSettings("The settings cannot be used:\n  " + "\n  ".join(faults))
    return config


def find_state_dir(config: NodeConfig, env: Mapping[str, str]) -> Path:
    """One folder per hub and name, so that one machine may serve two hubs, or one hub twice."""
    if config.state_dir:
        return Path(config.state_dir).expanduser().absolute()
    return find_state_home(env) / _to_file_name(_address_of(config.hub_url)) / _to_file_name(config.name or "default")


def find_state_home(env: Mapping[str, str]) -> Path:
    """Where the folders of this user's agents lie."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/computepool-node")
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "computepool-node"


def _address_of(hub_url: str) -> str:
    return urlsplit(hub_url).netloc.rpartition("@")[2]


def _to_file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).strip(".")[:100] or "default"


def _list_faults(config: NodeConfig) -> list[str]:
    faults = []
    address = urlsplit(config.hub_url)
    if address.scheme not in ("http", "https") or not address.netloc:
        faults.append("HUB_URL must begin with http:// or https:// and name a host")
    if config.region is not None and not re.fullmatch(r"[A-Z]{2}", config.region):
        faults.append(f"{PREFIX}REGION={config.region!r}: expected an ISO-2 country code such as IN or DE")
    for field in ("cores_max", "ram_bytes_max", "disk_bytes_max"):
        value = getattr(config, field)
        if value is not None and value < 1:
            faults.append(f"{PREFIX}{field.upper()}={value}: must be positive")
    strange = set(config.sandboxes.replace(",", " ").split()) - set(SANDBOX_NAMES)
    if strange:
        faults.append(
            f"{PREFIX}SANDBOXES: {', '.join(sorted(strange))} is unknown; there are {', '.join(SANDBOX_NAMES)}"
        )
    for target in config.egress_allowed.replace(",", " ").split():
        if not re.fullmatch(r"[^\s:/]+:[0-9]{1,5}", target):
            faults.append(f"{PREFIX}EGRESS_ALLOWED={target!r}: expected host:port, for example *.example.org:443")
    images, hosts = config.images_allowed.replace(",", " ").split(), config.egress_allowed.replace(",", " ").split()
    if len(images) > PATTERNS_MAX or len(hosts) > PATTERNS_MAX or any(len(each) > 250 for each in (*images, *hosts)):
        faults.append(
            f"{PREFIX}IMAGES_ALLOWED, EGRESS_ALLOWED: at most {PATTERNS_MAX} patterns of 250 characters each"
        )
    if config.seat != AUTO and not config.seat.startswith(FILE_PREFIX):
        faults.append(f"{PREFIX}SEAT={config.seat!r}: expected {AUTO}, or {FILE_PREFIX}PATH")
    if not re.fullmatch(rf"{RELAY_ALONE}|.*:[0-9]{{1,5}}", config.networks_listen):
        faults.append(f"{PREFIX}NETWORKS_LISTEN={config.networks_listen!r}: expected address:port, or {RELAY_ALONE}")
    if config.hub_ca_file and (trouble := _find_trouble(config.hub_ca_file)):
        faults.append(f"{PREFIX}HUB_CA_FILE={config.hub_ca_file!r}: {trouble}")
    if config.networks_roots_file and not Path(config.networks_roots_file).is_file():
        faults.append(f"{PREFIX}NETWORKS_ROOTS_FILE={config.networks_roots_file!r}: there is no such file")
    if not _is_price(config.floor_credits_per_hour):
        faults.append(
            f"{PREFIX}FLOOR_CREDITS_PER_HOUR={config.floor_credits_per_hour}: expected credits such as 1.50, "
            f"from 0 to {CREDITS_MAX:,}, with at most six decimals"
        )
    return faults


def _find_trouble(ca_file: str) -> str | None:
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        return f"no certificates can be read from it ({error.strerror or error})"
    return None


def _is_price(credits: Decimal) -> bool:
    """Money is never rounded: what is no whole number of microcredits was not meant."""
    return credits.is_finite() and 0 <= credits <= CREDITS_MAX and credits * MICROCREDITS_PER_CREDIT % 1 == 0
