"""Which PNodes take the vacant seats of a run, and which VNodes go where: asked by its owner, in its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from computepool.core.ids import NodeId
from computepool.core.networks.allocation import Question, Unplaceable, choose_placement
from computepool.core.networks.partition import Host
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import NobodyFits, Run, SeatFill, SeatsFilled
from computepool.hub.config import HubSettings
from computepool.hub.services import seats as seat_service
from computepool.hub.services.owned_runs import OwnedRun
from computepool.hub.services.prices import PriceBook
from computepool.hub.store import networks as network_store
from computepool.hub.store.connect import Connection


async def fill_seats(
    conn: Connection, prices: PriceBook, settings: HubSettings, owned: OwnedRun, *, now: float
) -> SeatsFilled | NobodyFits:
    """Writes the leases of those that are chosen."""
    run = owned.run
    found = await seat_service.find_pnodes(
        conn,
        prices,
        owned.terms,
        account_id=owned.account_id,
        avoided=[node_id for node_id, until in run.avoided.items() if until > now],
        data_bytes=owned.data_bytes,
        silence_seconds=settings.lease_seconds,
    )
    staying = [seat.node_id for seat in run.seats.values() if seat.node_id is not None]
    hosts = await network_store.list_hosts(conn, staying)
    # A large network takes a while to cut: others are heard meanwhile.
    answer = await asyncio.to_thread(choose_placement, _to_question(owned, hosts), found.pnodes)
    if isinstance(answer, Unplaceable):
        return NobodyFits(answer.reasons)
    fills = await seat_service.lease_seats(
        conn,
        prices,
        owned.terms,
        account_id=owned.account_id,
        job_id=owned.job_id,
        slice_indexes=owned.slice_indexes,
        chosen=answer.pnodes,
        candidates=found.candidates,
        lease_seconds=settings.lease_seconds,
    )
    return _to_filled(run, answer.pnodes.keys(), answer.moves, fills)


def _to_question(owned: OwnedRun, hosts: Mapping[NodeId, Host]) -> Question:
    """What is to be placed, and what the hosts that stay have left."""
    run, sizes = owned.run, {need.part: need.memory_bytes for need in owned.needs}
    if not run.locations:
        vacant = dict.fromkeys(run.seats, ())
        return Question(owned.needs, vacant, run.exact, run.numeric_class, owned.links)
    staying = {
        seat.id: hosts[seat.node_id] for seat in run.taken_seats if seat.node_id is not None and seat.node_id in hosts
    }
    used = {seat: sum(sizes[part] for part in run.list_parts(seat)) for seat in staying}
    return Question(
        needs=owned.needs,
        vacant={seat.id: run.list_parts(seat.id) for seat in run.taken_seats if seat.is_vacant},
        exact=run.exact,
        numeric_class=run.numeric_class,
        links=owned.links,
        survivors={
            seat: replace(host, memory_bytes=host.memory_bytes - used[seat]) for seat, host in staying.items()
        },
        placed={part: seat.id for seat in run.taken_seats if not seat.is_vacant for part in run.list_parts(seat.id)},
    )


def _to_filled(
    run: Run, chosen: Iterable[SeatId], moves: Mapping[tuple[str, int], SeatId], fills: Sequence[SeatFill]
) -> SeatsFilled | NobodyFits:
    """A seat whose slot was just taken by somebody else stays vacant; its VNodes are placed with the next try."""
    missed = set(chosen) - {fill.seat for fill in fills}
    if missed and not fills:
        return NobodyFits(("the slots that were chosen have just been taken; others are looked for",))
    kept = {part: seat for part, seat in moves.items() if not run.locations or seat not in missed}
    return SeatsFilled(tuple(fills), kept)
