"""A whole grid on this machine: a hub, three owners, one submitter and five played nodes, and their end.

Everything it needs and leaves is in one folder. Nothing here is known to the hub but through its API.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from computepool import clock, entropy
from computepool.cli.fleet import PROFILES, Member, find_last_words, start_fleet
from computepool.cli.processes import Child, Children
from computepool.core.errors import ComputePoolError, Conflict, HubUnavailable, Unauthenticated
from computepool.sdk import Client
from computepool.settings import InvalidSettings
from computepool.wire.nodes import Node

SUBMITTER = "Dana"
OWNERS = ("Asha", "Bruno", "Chen")
# Who takes parts of networks, where some are trained: twice as many as hold one at a time, so that one steps in when
# another's plug is pulled.
HOSTING = ("rtx-4090", "rtx-3090", "rtx-4070", "rtx-3060")

_HUB_SECONDS_MAX = 60.0
_NODES_SECONDS_MAX = 30.0
_HUB_GRACE_SECONDS = 20.0
_FLEET_GRACE_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_LAST_LINES = 12
_PORT_FIRST, _PORT_COUNT = 8000, 50
# Of gRPC: only the fleet and the demo itself call it.
_RPC_HOST = "127.0.0.1"


class DemoFailed(Exception):
    """What went wrong, in words for the person in front of the terminal."""


@dataclass(frozen=True, slots=True)
class Grid:
    hub_url: str
    submitter: Client
    submitter_key: str
    # By owner's name; an owner sees only their own nodes.
    owners: Mapping[str, Client]
    hub: Child
    fleet: Sequence[Child]

    def list_nodes(self) -> list[tuple[str, Node]]:
        """(owner, node), in the order of the fleet; of several nodes of one name (earlier fleets) the newest."""
        newest: dict[str, tuple[str, Node]] = {}
        for owner, client in self.owners.items():
            for node in client.nodes():
                before = newest.get(node.name)
                if before is None or before[1].created_at < node.created_at:
                    newest[node.name] = (owner, node)
        return [newest[child.name] for child in self.fleet if child.name in newest]


@contextmanager
def run_grid(
    folder: Path, *, host: str, port: int | None, say: Callable[[str], None], networks: bool = False
) -> Iterator[Grid]:
    """Everything is up inside the block and ended after it, the fleet before the hub. With `networks` it trains them,
    too."""
    _require_hub_extra()
    with ExitStack() as stack:
        stack.enter_context(_alone_in(folder))
        chosen = choose_port(host, [port] if port else range(_PORT_FIRST, _PORT_FIRST + _PORT_COUNT))
        hub_url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{chosen}"
        hubs = stack.enter_context(Children(grace_seconds=_HUB_GRACE_SECONDS))
        say("Starting the hub")
        rpc_port = choose_port(_RPC_HOST, range(chosen + 1, chosen + 1 + _PORT_COUNT)) if networks else 0
        hub = _start_hub(hubs, folder, host=host, port=chosen, rpc_port=rpc_port)
        _await_hub(hub, hub_url)
        keys = _ensure_accounts(folder, hub_url)
        clients = {name: stack.enter_context(Client(hub_url, key)) for name, key in keys.items()}
        agents = stack.enter_context(Children(grace_seconds=_FLEET_GRACE_SECONDS))
        say("Starting five nodes of three owners")
        members = spread(PROFILES, keys, hosting=HOSTING if networks else ())
        fleet = start_fleet(agents, members, hub_url=hub_url, folder=folder / "nodes")
        owners = {name: clients[name] for name in OWNERS}
        grid = Grid(hub_url, clients[SUBMITTER], keys[SUBMITTER], owners, hub, fleet)
        _await_nodes(grid)
        try:
            yield grid
        finally:
            say("Ending the nodes and the hub")


def spread(profiles: Sequence[str], keys: Mapping[str, str], *, hosting: Collection[str] = ()) -> list[Member]:
    """The machines go to the owners in turn."""
    return [
        Member(profile, profile, keys[OWNERS[i % len(OWNERS)]], networks=profile in hosting)
        for i, profile in enumerate(profiles)
    ]


def default_folder(env: Mapping[str, str], *, is_root: bool) -> Path:
    # The embedded database runs as another user when started by root, who could not read root's home.
    if is_root:
        return Path("/var/lib/computepool-demo")
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "computepool-demo"


def hub_env(env: Mapping[str, str], *, folder: Path, host: str, port: int, rpc_port: int = 0) -> dict[str, str]:
    """Settings meant for a real hub or a real database must not reach the demo's."""
    foreign = ("DATABASE_URL", "HUB_URL", "PORT")
    kept = {name: value for name, value in env.items() if not name.startswith("COMPUTEPOOL_") and name not in foreign}
    return kept | {
        "PORT": str(port),
        "COMPUTEPOOL_HUB_HOST": host,
        **({"COMPUTEPOOL_HUB_RPC_HOST": _RPC_HOST, "COMPUTEPOOL_HUB_RPC_PORT": str(rpc_port)} if rpc_port else {}),
        "COMPUTEPOOL_HUB_DEMO": "true",
        "COMPUTEPOOL_HUB_OPERATOR_LINK": "true",
        # Work on the map goes out from somewhere. Credits are rupees, so the demo's hub stands in India.
        "COMPUTEPOOL_HUB_COUNTRY": "IN",
        # Short, so that whoever pulls a plug sees the work move while they look.
        "COMPUTEPOOL_HUB_BEAT_SECONDS": "3",
        "COMPUTEPOOL_HUB_LEASE_SECONDS": "12",
        "COMPUTEPOOL_HUB_REAP_GRACE_SECONDS": "2",
        "COMPUTEPOOL_HUB_DATA_DIR": str(folder / "hub"),
        "PYTHONUNBUFFERED": "1",
    }


def choose_port(host: str, candidates: Sequence[int]) -> int:
    """The first free one. Looked for before the hub starts: somebody else's hub must not be taken for ours."""
    for port in candidates:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return port
    taken = str(candidates[0]) if len(candidates) == 1 else f"{candidates[0]} to {candidates[-1]}"
    raise DemoFailed(f"Port {taken} of {host} cannot be used. Name another with --port.")


def _require_hub_extra() -> None:
    missing = [name for name in ("uvicorn", "asyncpg", "alembic") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidSettings(
            f"The demo runs a hub, which needs {', '.join(missing)}. Install them: pip install 'computepool[hub]'"
        )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two demos in one folder would be two starts of the same nodes."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailed(f"A demo is running in {folder} already. End it, or give another --dir.") from None
        yield


def _start_hub(children: Children, folder: Path, *, host: str, port: int, rpc_port: int) -> Child:
    return children.start(
        "hub",
        [sys.executable, "-m", "computepool.hub"],
        env=hub_env(os.environ, folder=folder, host=host, port=port, rpc_port=rpc_port),
        log_path=folder / "hub.log",
    )


def _await_hub(hub: Child, hub_url: str) -> None:
    import httpx

    deadline = clock.seconds() + _HUB_SECONDS_MAX
    with httpx.Client(trust_env=False, timeout=2.0) as http:
        while clock.seconds() < deadline:
            if hub.exit_code is not None:
                raise DemoFailed(describe_ended(hub))
            with suppress(httpx.TransportError):
                if http.get(f"{hub_url}/readyz").status_code == 200:
                    return
            time.sleep(_LOOK_SECONDS)
    raise DemoFailed(f"The hub was not ready after {_HUB_SECONDS_MAX:.0f} s; see {hub.log_path}")


def _ensure_accounts(folder: Path, hub_url: str) -> dict[str, str]:
    """Each person's key. A folder that was used before brings its accounts along."""
    path = folder / "accounts.json"
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    keys = {}
    for name in (SUBMITTER, *OWNERS):
        keys[name] = known[name] if _is_accepted(hub_url, known.get(name)) else _sign_up(hub_url, name)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(keys, file)
    return keys


def _is_accepted(hub_url: str, key: str | None) -> bool:
    if key is None:
        return False
    with Client(hub_url, key) as client:
        try:
            client.get_account()
        except Unauthenticated:
            return False
    return True


def _sign_up(hub_url: str, name: str) -> str:
    with Client(hub_url, "") as client:
        try:
            return client.sign_up(email=f"{name.lower()}@demo.example", name=name).key.secret
        except Conflict:
            # The account is there but its key was lost with accounts.json.
            fresh = f"{name.lower()}-{entropy.new_bytes(4).hex()}@demo.example"
            return client.sign_up(email=fresh, name=name).key.secret


def _await_nodes(grid: Grid) -> None:
    deadline = clock.seconds() + _NODES_SECONDS_MAX
    online: set[str] = set()
    while clock.seconds() < deadline:
        for child in grid.fleet:
            if child.exit_code is not None:
                raise DemoFailed(describe_ended(child))
        with suppress(HubUnavailable):
            online = {node.name for _, node in grid.list_nodes() if node.online}
        if len(online) == len(grid.fleet):
            return
        time.sleep(_LOOK_SECONDS)
    missing = [child for child in grid.fleet if child.name not in online]
    raise DemoFailed("; ".join(f"{child.name} did not come online, see {child.log_path}" for child in missing))


def describe_ended(child: Child) -> str:
    words = "\n".join(f"  {line}" for line in find_last_words(child.last_lines(_LAST_LINES)))
    return f"{child.name} ended with exit code {child.exit_code} ({child.log_path}):\n{words}"


def find_own_folder() -> Path | None:
    """Where this command lives; None if a shell finds it by itself."""
    own = Path(sys.executable).with_name("computepool")
    found = shutil.which("computepool")
    return own.parent if own.exists() and (found is None or Path(found) != own) else None


def make_links(grid: Grid) -> dict[str, str]:
    """By name: links that open the dashboard signed in, each good for one use; none where the hub offers none.

    The submitter is who the terminal is, too, so that a job of one is seen in the other. The operator sees everyone's
    nodes and jobs.
    """
    found = {}
    with suppress(ComputePoolError):
        found[SUBMITTER] = grid.hub_url + grid.submitter.create_sign_in_link().path
    links = re.findall(r"/sign-in\?token=[\w-]+", grid.hub.log_path.read_text(errors="replace"))
    if links:
        found["the operator"] = grid.hub_url + links[-1]
    return found
