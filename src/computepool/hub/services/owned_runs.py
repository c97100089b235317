"""What the owner of a run knows of it beyond the rules: its spec, its terms, its data, and what it has just heard.

Here also stands what an owner and its hosts say to each other: orders go down, what was heard comes up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, RunId
from computepool.core.networks.epochs import list_locations
from computepool.core.networks.needs import Need, list_links, list_needs
from computepool.core.networks.partition import Link
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.run import Event, Run, SendDrop, SendProbe, SendRun
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import from_json
from computepool.hub.services.run_audits import AuditOrder
from computepool.hub.services.runs import to_terms
from computepool.hub.services.seats import SeatTerms
from computepool.hub.store.run_audits import AuditRow
from computepool.hub.store.runs import DataItem, LoadedRun, Metric, Part, RunRow

log = logging.getLogger("computepool.networks")


@dataclass(frozen=True, slots=True)
class PrepareOrder:
    """What a host is to build, and from what."""

    run_id: RunId
    seat: SeatId
    epoch: int
    # As canonical JSON.
    spec: str
    locations: tuple[Location, ...]
    # The step that the weights are of; 0: fresh, from the seed.
    checkpoint_step: int
    parts: tuple[Part, ...]
    data: tuple[DataItem, ...]


Order = PrepareOrder | SendRun | SendDrop | SendProbe | AuditOrder


class Post(Protocol):
    """Where orders go: the sessions of hosts."""

    def send(self, attempt_id: AttemptId, order: Order) -> bool:
        """False: no session of this attempt is open here."""

    def close(self, attempt_id: AttemptId) -> None:
        """Whoever it is must ask anew who owns its run."""


# Whether a host can be dialled and proves that it is the one that holds this attempt.
Dial = Callable[[str, AttemptId, NodeId], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Heard:
    """An event, with what is to be written if it counts."""

    event: Event
    metric: Metric | None = None
    part: Part | None = None
    # What audits came to, of steps that are rejected.
    audits: tuple[AuditRow, ...] = ()


@dataclass(slots=True)
class OwnedRun:
    run: Run
    spec: NetworkSpec
    spec_json: str
    needs: tuple[Need, ...]
    # Between the needs.
    links: tuple[Link, ...]
    account_id: AccountId
    job_id: JobId
    terms: SeatTerms
    data: tuple[DataItem, ...]
    slice_indexes: Mapping[SeatId, int]
    row: RunRow
    inbox: list[Heard] = field(default_factory=list)
    # Decides what is in the inbox, one batch after the other.
    draining: asyncio.Task[None] | None = None

    @property
    def data_bytes(self) -> dict[bytes, int]:
        return {bytes.fromhex(item.sha256): item.size_bytes for item in self.data}

    def know(self, run: Run) -> None:
        """What was written is what is known from now on."""
        before, self.run = self.run, run
        if (before.epoch, before.state, before.message) != (run.epoch, run.state, run.message):
            log.info(
                "run_changed run_id=%s epoch=%d state=%s step=%d message=%s",
                run.id,
                run.epoch,
                run.state.value,
                run.step,
                run.message,
            )

    def write_order(self, seat: SeatId, parts: Sequence[Part]) -> PrepareOrder:
        run = self.run
        mine = {vnode_id for vnode_id, _ in run.list_parts(seat)}
        return PrepareOrder(
            run_id=run.id,
            seat=seat,
            epoch=run.epoch,
            spec=self.spec_json,
            locations=list_locations(run),
            checkpoint_step=run.from_step,
            parts=tuple(part for part in parts if part.vnode_id in mine),
            data=self.data,
        )


def to_owned(loaded: LoadedRun, *, now: float) -> OwnedRun:
    row, spec = loaded.row, from_json(loaded.spec)
    run = Run(
        id=row.id,
        vnode_ids=tuple(vnode.id for vnode in spec.vnodes),
        loss=spec.loss,
        steps=row.steps,
        seats=loaded.seats,
        replicas=spec.replicas,
        exact=spec.exact,
        serves=bool(row.options.get("serves")),
        state=row.state,
        epoch=row.epoch,
        locations=loaded.locations,
        step=row.step,
        checkpoint_step=row.checkpoint_step,
        reported=loaded.reported,
        reports_from_epoch=row.reports_from_epoch,
        numeric_class=row.numeric_class,
        inexact_from_step=row.inexact_from_step,
        recoveries=row.recoveries,
        message=row.message,
        ends_at=now + loaded.seconds_left,
    )
    return OwnedRun(
        run=run,
        spec=spec,
        spec_json=loaded.spec,
        needs=tuple(list_needs(spec)),
        links=tuple(list_links(spec)),
        account_id=row.account_id,
        job_id=row.job_id,
        terms=to_terms(row.options),
        data=row.data,
        slice_indexes=loaded.slice_indexes,
        row=row,
    )
