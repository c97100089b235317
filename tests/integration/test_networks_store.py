"""Networks and what runs leave behind, on a real database: stored as they are, seen by their owners, and freed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import httpx
import pytest

from computepool import entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import Conflict, IdempotencyMismatch, InvalidRequest, InvalidSpec, NotFound
from computepool.core.networks.errors import DataRefused
from computepool.core.networks.run import FeedKind, RunState
from computepool.core.networks.spec import VNodeSpec
from computepool.core.networks.spec_json import from_json, to_json
from computepool.hub.blobs.fetch import Fetcher, is_address, is_public
from computepool.hub.services import networks as network_service
from computepool.hub.services import plans as plan_service
from computepool.hub.services import run_blobs
from computepool.hub.services import runs as run_service
from computepool.hub.services.nodes import enrol_node
from computepool.hub.services.runs import DataRef
from computepool.hub.services.seats import get_seat
from computepool.hub.store import networks as network_store
from computepool.hub.store import runs as run_store
from computepool.hub.store.runs import Metric, NewLine
from computepool.wire import nodes as wire_nodes
from tests.support.networks import make_mlp
from tests.support.run_lab import DATA_SHA256, RunLab, bits_of, open_run_lab


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


# Networks


async def test_a_network_is_stored_with_its_topology_as_canonical_text_and_its_hash(lab):
    by = await lab.spine.sign_up()
    spec = make_mlp()
    shuffled = json.dumps(dict(reversed(json.loads(to_json(spec)).items())), indent=3)
    made = await network_service.create_network(lab.spine.pool, by, shuffled)
    found = await network_service.get_network(lab.spine.pool, by, made.id)
    assert found.spec == to_json(spec)
    assert from_json(found.spec) == spec
    assert found.digest == hashlib.sha256(to_json(spec).encode()).digest()
    assert (found.vnode_count, found.parameter_count) == (4, 16 * 24 + 24 + 24 * 24 + 24 + 24 * 10 + 10)


async def test_a_network_that_cannot_be_built_is_refused_with_everything_that_is_wrong(lab):
    by = await lab.spine.sign_up()
    spec = make_mlp()
    broken = replace(spec, vnodes=(*spec.vnodes[:2], VNodeSpec("head", "lineer", {}), spec.vnodes[3]), batch_size=15)
    with pytest.raises(InvalidSpec) as refusal:
        await network_service.create_network(lab.spine.pool, by, to_json(broken))
    faults = refusal.value.details["faults"]
    assert any("lineer" in fault for fault in faults)
    assert any("batch_size 15" in fault for fault in faults)
    with pytest.raises(InvalidSpec, match="not JSON"):
        await network_service.create_network(lab.spine.pool, by, "{")
    assert await lab.spine.fetch_value("SELECT count(*) FROM networks") == 0


async def test_the_same_key_makes_one_network(lab):
    by, other = await lab.spine.sign_up(), await lab.spine.sign_up()
    first = await lab.create(by, idempotency_key="k")
    assert (await lab.create(by, idempotency_key="k")).id == first.id
    assert (await lab.create(other, idempotency_key="k")).id != first.id
    with pytest.raises(IdempotencyMismatch):
        await lab.create(by, make_mlp(seed=8), idempotency_key="k")
    with pytest.raises(InvalidRequest, match="1 to 200"):
        await lab.create(by, idempotency_key="")


async def test_a_network_is_its_accounts_and_nobody_elses(lab):
    by, stranger = await lab.spine.sign_up(), await lab.spine.sign_up()
    network = await lab.create(by)
    with pytest.raises(NotFound):
        await network_service.get_network(lab.spine.pool, stranger, network.id)
    with pytest.raises(NotFound):
        await network_service.delete_network(lab.spine.pool, lab.blobs, stranger, network.id)
    with pytest.raises(NotFound):
        await lab.start(stranger, network)
    assert await network_service.list_networks(lab.spine.pool, stranger, before=None, limit=10) == []
    operator = replace(stranger, roles=frozenset(Role))
    assert (await network_service.get_network(lab.spine.pool, operator, network.id)).id == network.id
    # Who trains pays: an operator looks, and trains nobody else's.
    with pytest.raises(NotFound):
        await lab.start(operator, network)


async def test_networks_are_listed_by_the_page_newest_first(lab):
    by = await lab.spine.sign_up()
    made = [await lab.create(by, make_mlp(seed=seed)) for seed in range(3)]
    page = await network_service.list_networks(lab.spine.pool, by, before=None, limit=2)
    assert [each.id for each in page] == [made[2].id, made[1].id]
    rest = await network_service.list_networks(lab.spine.pool, by, before=page[-1].id, limit=2)
    assert [each.id for each in rest] == [made[0].id]


async def test_a_network_is_deleted_with_its_checkpoints_once_no_run_of_it_goes_on(lab):
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(2):
        await lab.enrol_pnode()
    network = await lab.create(by)
    run_id = (await lab.start(by, network)).row.id
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, run_id)
    await lab.step(at, run_id, *range(1, 41))
    await lab.store(at, run_id, 10)
    with pytest.raises(Conflict, match="Stop them first"):
        await network_service.delete_network(lab.spine.pool, lab.blobs, by, network.id)
    await lab.store(at, run_id, 40)
    await asyncio.gather(*at.owner._chores)
    shas = [row["sha256"].hex() for row in await lab.spine.fetch("SELECT sha256 FROM run_blobs")]
    assert all(lab.blobs.has(sha) for sha in shas)
    await network_service.delete_network(lab.spine.pool, lab.blobs, by, network.id)
    assert not any(lab.blobs.has(sha) for sha in shas)
    assert lab.blobs.has(DATA_SHA256)
    with pytest.raises(NotFound):
        await network_service.get_network(lab.spine.pool, by, network.id)
    # What was paid for stays to be seen.
    assert (await run_service.get_run(lab.spine.pool, by, run_id)).row.state is RunState.SUCCEEDED


async def test_an_agent_says_at_its_enrolment_that_it_hosts_and_no_longer_when_it_does_not(lab):
    owner = await lab.spine.sign_up()
    hosting = wire_nodes.Hosting(numeric_class="avx2", memory_bytes=7, flops_per_second=1e9)
    request = wire_nodes.EnrolNode(
        name="node",
        public_key="A" * 43,
        hardware=wire_nodes.Hardware(cores=4, ram_bytes=8 * 10**9, disk_bytes=10**11, cpu_slots=1),
        isolation="sandboxed",
        hosting=hosting,
    )
    node_id = await enrol_node(lab.spine.pool, lab.spine.settings, owner, request)
    [row] = await lab.spine.fetch("SELECT node_id, numeric_class, memory_bytes FROM pnodes")
    assert tuple(row) == (node_id, "avx2", 7)
    silent = wire_nodes.EnrolNode(**{f: getattr(request, f) for f in request.__struct_fields__} | {"hosting": None})
    await enrol_node(lab.spine.pool, lab.spine.settings, owner, silent)
    assert await lab.spine.fetch_value("SELECT count(*) FROM pnodes") == 0
    wrongs = (
        {"numeric_class": ""},
        {"memory_bytes": 0},
        {"flops_per_second": float("inf")},
        {"bytes_per_second": 0.0},
        {"latency_seconds": -1.0},
    )
    for wrong in wrongs:
        fields = {f: getattr(hosting, f) for f in hosting.__struct_fields__} | wrong
        bad = wire_nodes.EnrolNode(
            **{f: getattr(request, f) for f in request.__struct_fields__} | {"hosting": wire_nodes.Hosting(**fields)}
        )
        with pytest.raises(InvalidRequest, match=f"hosting.{next(iter(wrong))}"):
            await enrol_node(lab.spine.pool, lab.spine.settings, owner, bad)


async def test_the_pnode_that_holds_the_data_is_chosen_and_fetches_nothing(lab):
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(3):
        await lab.enrol_pnode()
    holder = await lab.enrol_pnode()
    async with lab.spine.pool.acquire() as conn:
        await network_store.note_held(conn, node_id=holder.id, sha256s=[bytes.fromhex(DATA_SHA256)])
    network = await lab.create(by)
    options = lab.options(seats=1, data=(DataRef(DATA_SHA256, size_bytes=7),))
    plan = await plan_service.plan_network(
        lab.spine.pool, lab.spine.leases.prices, lab.spine.settings, by, network.id, options
    )
    assert [(seat.node_id, seat.fetched_bytes) for seat in plan.seats] == [(holder.id, 0)]
    view = await lab.start(by, network, seats=1)
    at = lab.open_owner()
    await at.look()
    assert at.run(view.row.id).seats["seat-0"].node_id == holder.id


async def test_what_a_pnode_holds_is_kept_newest_first_and_bounded(lab):
    node = await lab.enrol_pnode()
    hashes = [hashlib.sha256(bytes([n])).digest() for n in range(70)]
    async with lab.spine.pool.acquire() as conn:
        for sha256 in [*hashes, hashes[0]]:
            await network_store.note_held(conn, node_id=node.id, sha256s=[sha256])
    held = await lab.spine.fetch_value("SELECT held_sha256s FROM pnodes")
    assert len(held) == 64
    assert held[:2] == [hashes[0], hashes[69]]


async def test_a_plan_names_pnodes_bytes_and_speed_and_tells_names_to_their_owner_alone(lab):
    by = await lab.spine.sign_up(credits=100_000)
    own = await lab.enrol_pnode(owner=by)
    await lab.enrol_pnode()
    network = await lab.create(by, make_mlp(micro_batches=1))
    plan = await plan_service.plan_network(
        lab.spine.pool, lab.spine.leases.prices, lab.spine.settings, by, network.id, lab.options(seats=2)
    )
    names = {seat.node_id: seat.node_name for seat in plan.seats}
    assert names[own.id] == "node"
    assert [name for node_id, name in names.items() if node_id != own.id] == [""]
    assert sum(edge.cut for edge in plan.edges) == 1
    assert all(edge.bytes_per_step > 0 for edge in plan.edges)
    assert 0 < plan.samples_per_second < plan.samples_per_second_one_machine
    assert "one machine" in plan.warnings[0]


# What runs leave behind


async def make_run(lab: RunLab):
    by = await lab.spine.sign_up(credits=100_000)
    return by, (await lab.start(by)).row.id


async def test_losses_are_kept_bit_by_bit(lab):
    _, run_id = await make_run(lab)
    losses = [0.1, 1e-310, -0.0, 3.0, 1.7976931348623157e308]
    metrics = [Metric(step, 1, bits_of(loss), 1.0) for step, loss in enumerate(losses, start=1)]
    async with lab.spine.pool.acquire() as conn:
        await run_store.write_metrics(conn, run_id, metrics)
        found = await run_store.list_metrics(conn, run_id, after=0, limit=10)
    assert [metric.loss_bits for metric in found] == [bits_of(loss) for loss in losses]


async def test_a_step_is_overwritten_by_a_later_epoch_alone(lab):
    _, run_id = await make_run(lab)
    async with lab.spine.pool.acquire() as conn:
        assert await run_store.write_metrics(conn, run_id, [Metric(1, 2, 7, 1.0)]) == []
        assert await run_store.write_metrics(conn, run_id, [Metric(1, 1, 8, 1.0)]) == []
        assert await run_store.write_metrics(conn, run_id, [Metric(1, 3, 7, 1.0)]) == []
        assert await run_store.write_metrics(conn, run_id, [Metric(1, 4, 9, 1.0)]) == [1]
        [metric] = await run_store.list_metrics(conn, run_id, after=0, limit=10)
    assert (metric.epoch, metric.loss_bits) == (4, 9)


async def test_lines_and_steps_share_one_count_and_can_be_read_from_anywhere(lab):
    by, run_id = await make_run(lab)
    async with lab.spine.pool.acquire() as conn:
        for step in (1, 2, 3):
            await run_store.write_metrics(conn, run_id, [Metric(step, 1, step, 1.0)])
            await run_store.insert_lines(conn, run_id, [NewLine(FeedKind.STATE, 1, step, f"line {step}")])
    lines, _ = await run_service.read_feed(lab.spine.pool, by, run_id, after=0)
    assert [(line.kind.value, line.step) for line in lines[1:]] == [
        ("step", 1),
        ("state", 1),
        ("step", 2),
        ("state", 2),
        ("step", 3),
        ("state", 3),
    ]
    rest, _ = await run_service.read_feed(lab.spine.pool, by, run_id, after=lines[3].id)
    assert rest == lines[4:]


async def test_a_seat_reads_its_runs_contents_and_no_others(lab):
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(4):
        await lab.enrol_pnode()
    at = lab.open_owner()
    seats = []
    for _ in range(2):
        run_id = (await lab.start(by)).row.id
        await at.look()
        await lab.set_going(at, run_id)
        seats.append(await get_seat(lab.spine.pool, at.run(run_id).seats["seat-0"].attempt_id))
    first, second = seats
    part = await lab.put_part(at.run(first.run_id).seats["seat-0"].attempt_id, first.run_id, "a", 1, 1)
    assert await run_blobs.get_blob_size(lab.spine.pool, first, part.sha256.hex()) == part.size_bytes
    assert await run_blobs.get_blob_size(lab.spine.pool, first, DATA_SHA256) == 7
    with pytest.raises(NotFound):
        await run_blobs.get_blob_size(lab.spine.pool, second, part.sha256.hex())
    secret = await lab.upload(by, b"not for hosts")
    with pytest.raises(NotFound):
        await run_blobs.get_blob_size(lab.spine.pool, first, secret)


async def test_a_seat_of_a_run_that_is_not_there_cannot_be_placed(lab):
    async with lab.spine.pool.acquire() as conn:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await conn.execute(
                "INSERT INTO run_seats (run_id, seat, slice_index) VALUES ($1, 'seat-0', 0)", entropy.new_id()
            )


# Data from elsewhere

PUBLIC = "93.184.216.34"


def serve(lab: RunLab, pages: dict[str, str | bytes], addresses: dict[str, list[str]] | None = None):
    """A fetcher whose internet is these pages (a text redirects), and what it asked for."""
    asked: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.host, request.headers["host"]))
        page = pages.get(f"https://{request.headers['host']}{request.url.path}")
        if isinstance(page, str):
            return httpx.Response(302, headers={"location": page})
        return httpx.Response(404) if page is None else httpx.Response(200, stream=httpx.ByteStream(page))

    async def resolve(host: str, port: int) -> list[str]:
        return (addresses or {}).get(host, [PUBLIC])

    return Fetcher(lab.blobs, resolve=resolve, transport=httpx.MockTransport(answer)), asked


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.3.4",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:0:a00:1::",
        "::10.0.0.1",
        "not an address",
    ],
)
async def test_data_at_a_private_address_is_never_fetched(lab, address):
    assert not is_public(address)
    fetcher, asked = serve(lab, {}, {"data.example": [PUBLIC, address]})
    with pytest.raises(DataRefused, match=r"private or special network.*upload the file"):
        await fetcher.fetch("https://data.example/x", DATA_SHA256, size_bytes_max=100)
    assert asked == []


@pytest.mark.parametrize("address", [PUBLIC, "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_control_the_internet_is_public(address):
    assert is_public(address)


async def test_what_was_looked_at_is_what_is_dialled_under_the_name_that_was_asked_for(lab):
    """A name that means something else a moment later leads nowhere else."""
    fetcher, asked = serve(lab, {"https://data.example/x": b"samples"})
    assert await fetcher.fetch("https://data.example/x", DATA_SHA256, size_bytes_max=100) == 7
    assert asked == [(PUBLIC, "data.example")]
    assert lab.blobs.has(DATA_SHA256)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("https://inside.example/x", "private or special network"),
        ("http://data.example/x", "Only https"),
        ("//inside.example/x", "private or special network"),
        ("file:///etc/passwd", "Only https"),
        ("/loop", "redirects more than"),
    ],
)
async def test_a_redirect_is_judged_like_an_address(lab, location, said):
    pages: dict[str, str | bytes] = {f"https://data.example{path}": location for path in ("/x", "/loop")}
    fetcher, asked = serve(lab, pages, {"inside.example": ["10.1.2.3"]})
    with pytest.raises(DataRefused, match=said):
        await fetcher.fetch("https://data.example/x", DATA_SHA256, size_bytes_max=100)
    assert {host for host, _ in asked} == {PUBLIC}


async def test_what_comes_with_another_hash_or_too_large_is_not_kept(lab):
    fetcher, _ = serve(lab, {"https://data.example/x": b"poison!"})
    with pytest.raises(InvalidRequest, match="hash to"):
        await fetcher.fetch("https://data.example/x", DATA_SHA256, size_bytes_max=100)
    with pytest.raises(InvalidRequest, match="may have 3 bytes"):
        await fetcher.fetch("https://data.example/x", DATA_SHA256, size_bytes_max=3)
    with pytest.raises(DataRefused, match="status 404"):
        await fetcher.fetch("https://data.example/absent", DATA_SHA256, size_bytes_max=100)
    assert not lab.blobs.has(DATA_SHA256)


@pytest.mark.parametrize(
    "uri",
    ["http://a.example/", "ftp://a.example/", "https://", "https://user:secret@a.example/", "https://a b/", "x", ""],
)
def test_what_is_no_https_address_is_refused_by_its_form(uri):
    assert not is_address(uri)


async def test_a_run_fetches_its_data_once_and_owns_it_then(lab):
    by = await lab.spine.sign_up(credits=100_000)
    network = await lab.create(by)
    fetcher, asked = serve(lab, {"https://data.example/x": b"samples"})
    options = lab.options(data=(DataRef(DATA_SHA256, uri="https://data.example/x"),))
    for _ in range(2):
        view = await run_service.start_run(
            lab.spine.pool, lab.spine.leases.prices, lab.spine.settings, fetcher, by, network.id, options
        )
    assert view.row.data[0].size_bytes == 7
    assert len(asked) == 1
