"""Which PNodes take the vacant seats of a run, and which VNodes go where: asked by its owner, in its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from computepool.core.ids import NodeId
from computepool.core.networks.allocation import Question, Unplaceable, choose_placement
from computepool.core.networks.partition import Host
from computepool.core.networks.placement import SeatId
from computepool.core.networks.rejoin import list_home, list_idle
from computepool.core.networks.run import NobodyFits, Run, SeatFill, SeatsFilled
from computepool.core.networks.spec import Exactness
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
    # A seat that is filled again while the others go on: nobody waits for it, and nothing moves yet.
    is_return = bool(run.locations) and not any(seat.is_vacant for seat in run.taken_seats)
    if is_return and not any(seat.is_vacant for seat in list_idle(run)):
        return SeatsFilled((), {})
    found = await seat_service.find_pnodes(
        conn,
        prices,
        owned.terms,
        account_id=owned.account_id,
        avoided={node_id: each.boot_id for node_id, each in run.avoided.items() if each.until > now},
        data_bytes=owned.data_bytes,
        asks_trust=owned.spec.trusts_first,
        silence_seconds=settings.lease_seconds,
    )
    staying = [seat.node_id for seat in run.seats.values() if seat.node_id is not None]
    hosts = await network_store.list_hosts(conn, staying)
    question = _to_return(owned) if is_return else _to_question(owned, hosts)
    # A large network takes a while to cut: others are heard meanwhile.
    answer = await asyncio.to_thread(choose_placement, question, found.pnodes)
    if isinstance(answer, Unplaceable):
        return SeatsFilled((), {}) if is_return else NobodyFits(answer.reasons)
    fills = await seat_service.lease_seats(
        conn,
        prices,
        owned.terms,
        account_id=owned.account_id,
        job_id=owned.job_id,
        slice_indexes=owned.slice_indexes,
        chosen=answer.pnodes,
        candidates=found.candidates,
        boots=found.boots,
        lease_seconds=settings.lease_seconds,
    )
    return SeatsFilled(tuple(fills), {}) if is_return else _to_filled(run, answer.pnodes.keys(), answer.moves, fills)


def _to_question(owned: OwnedRun, hosts: Mapping[NodeId, Host]) -> Question:
    """What is to be placed, and what the hosts that stay have left."""
    run, sizes = owned.run, {need.part: need.memory_bytes for need in owned.needs}
    if not run.locations:
        vacant = dict.fromkeys(run.seats, ())
        return Question(
            owned.needs, vacant, run.exact, run.numeric_class, owned.links, trusted_first=owned.spec.trusts_first
        )
    # Those too that have nothing to do yet.
    staying = {
        id: hosts[seat.node_id]
        for id, seat in sorted(run.seats.items())
        if seat.node_id is not None and seat.node_id in hosts
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
        trusted_first=owned.spec.trusts_first,
    )


def _to_return(owned: OwnedRun) -> Question:
    """Who could take back what one idle seat had. Of the run's class: nobody gives exactness up for speed."""
    run = owned.run
    idle = [seat.id for seat in list_idle(run) if seat.is_vacant][:1]
    return Question(
        needs=owned.needs,
        vacant={seat: list_home(run, seat) for seat in idle},
        exact=Exactness.REQUIRED,
        numeric_class=run.numeric_class,
        links=owned.links,
        trusted_first=owned.spec.trusts_first,
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
