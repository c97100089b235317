"""Tells the hub how attempts ended. What ends while a call is under way goes out together in the next one.

Each call carries one receipt for all its results and asks for the next work in the same breath. It is repeated
until the hub has answered; a refusal goes to the attempt that it concerns and to no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.errors import ComputePoolError, InvalidRequest, NodeRemoved, NotFound, StaleBoot
from computepool.node import journal, patience, tokens
from computepool.node.hub_client import HubClient, from_body
from computepool.node.identity import Identity
from computepool.wire.attempts import Claim, CompleteBatch, CompleteOutcome, CompleteRequest, Completion, NextAnswer

BATCH_MAX = 64
# Half of what a hub reads in one call. A completion with thousands of outputs is long, and goes alone if need be.
BATCH_BYTES_MAX = 4_000_000
# The hub refuses a receipt from the future, and its Date header has whole seconds only.
RECEIPT_AGE_SECONDS = 2


class WorkTaker(Protocol):
    """Who decides what may be asked for, and begins what comes."""

    def find_claim(self, completed: Collection[UUID]) -> Claim | None: ...

    def accept(self, answer: NextAnswer) -> None: ...


@dataclass(eq=False)
class Report:
    completion: Completion
    size_bytes: int
    answered: asyncio.Future[CompleteOutcome]
    # A call that told it together with others was refused as a whole: whose fault it is shows one by one.
    is_alone: bool = False

    def settle(self, outcome: CompleteOutcome) -> ComputePoolError | None:
        """Hands the answer on. Returns the error if it is one that asks for another try."""
        if self.answered.done():
            # Whoever asked has gone: the hub stopped the attempt meanwhile.
            return None
        if outcome.error is None:
            self.answered.set_result(outcome)
            return None
        error = from_body(outcome.error)
        if patience.is_worth_repeating(error):
            return error
        self.refuse(error)
        return None

    def refuse(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class Reporter:
    def __init__(self, hub: HubClient, identity: Identity, work: WorkTaker, *, boot_id: UUID) -> None:
        self._hub = hub
        self._identity = identity
        self._work = work
        self._boot_id = boot_id
        # As many as there are attempts.
        self._waiting: list[Report] = []
        self._sending: asyncio.Future[None] | None = None
        # False at a hub that is older than the call for many.
        self._has_batches = True

    async def report(self, completion: Completion) -> CompleteOutcome:
        """Returns when the hub has answered, however long that takes. Raises its refusal of this completion."""
        size_bytes = len(msgspec.json.encode(completion))
        report = Report(completion, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(report)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_all())
        return await report.answered

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        failure_count = 0
        while reports := self._list_next():
            trouble = await self._send(reports)
            if trouble is None:
                failure_count = 0
                continue
            failure_count += 1
            wait = patience.wait_seconds(trouble, failure_count)
            journal.warning(
                "completion_delayed", attempts=len(self._waiting), reason=trouble.message, wait_seconds=wait
            )
            # Not cut short by another end: a hub in trouble is not to be asked more often because jobs end.
            await asyncio.sleep(wait)

    def _list_next(self) -> list[Report]:
        """What goes into the next call, oldest first."""
        self._waiting = [report for report in self._waiting if not report.answered.done()]
        chosen = self._waiting[:1]
        if not chosen or chosen[0].is_alone or not self._has_batches:
            return chosen
        size_bytes = chosen[0].size_bytes
        for report in self._waiting[1:BATCH_MAX]:
            size_bytes += report.size_bytes
            if report.is_alone or size_bytes > BATCH_BYTES_MAX:
                break
            chosen.append(report)
        return chosen

    async def _send(self, reports: Sequence[Report]) -> ComputePoolError | None:
        """One call. Returns what went wrong if it, or a part of it, is to be repeated."""
        try:
            outcomes, brought = await self._call(reports)
        except ComputePoolError as error:
            return self._judge_refusal(reports, error)
        except Exception as error:
            # Whatever broke here must not leave an attempt waiting for ever.
            for report in reports:
                report.refuse(error)
            return None
        troubles = [report.settle(outcome) for report, outcome in zip(reports, outcomes, strict=True)]
        if brought is not None:
            self._begin(brought)
        return next((trouble for trouble in troubles if trouble is not None), None)

    async def _call(self, reports: Sequence[Report]) -> tuple[list[CompleteOutcome], NextAnswer | None]:
        # First the token: its answer tells whether clocks and keys agree, and hence what may be claimed.
        await self._hub.get_ready()
        completions = tuple(report.completion for report in reports)
        receipt = self._sign(completions)
        claim = self._work.find_claim({each.attempt_id for each in completions})
        if len(completions) == 1:
            told = msgspec.structs.asdict(completions[0])
            answer = await self._hub.complete(
                CompleteRequest(**told, boot_id=self._boot_id, receipt=receipt, claim=claim)
            )
            return [CompleteOutcome(accepted=answer.accepted, repeated=answer.repeated)], answer.next
        together = await self._hub.complete_batch(
            CompleteBatch(boot_id=self._boot_id, completions=completions, receipt=receipt, claim=claim)
        )
        if len(together.answers) != len(completions):
            raise InvalidRequest("The hub gave another number of answers than it was asked for.")
        return together.answers, together.next

    def _judge_refusal(self, reports: Sequence[Report], error: ComputePoolError) -> ComputePoolError | None:
        if patience.is_worth_repeating(error):
            return error
        if len(reports) == 1 or isinstance(error, (StaleBoot, NodeRemoved)):
            for report in reports:
                report.refuse(error)
            return None
        journal.warning("completions_told_one_by_one", attempts=len(reports), code=error.code, reason=error.message)
        if isinstance(error, NotFound):
            self._has_batches = False
        for report in reports:
            report.is_alone = True
        return None

    def _sign(self, completions: Sequence[Completion]) -> str:
        identity = self._identity
        return tokens.make_receipt(
            identity.key,
            node_id=identity.node_id,
            hub_id=identity.hub_id,
            completions=completions,
            now_seconds=clock.unix_seconds() + self._hub.clock_skew_seconds - RECEIPT_AGE_SECONDS,
        )

    def _begin(self, brought: NextAnswer) -> None:
        try:
            self._work.accept(brought)
        except Exception as error:
            # A fault in what came along must not spoil what was asked; the hub sends it again.
            journal.error("claim_broke", trace=error)
