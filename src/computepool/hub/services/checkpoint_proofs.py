"""Whether somebody could go on from a checkpoint: what is left out of a slice, what that comes to, whose pay waits.

Nothing of this is asked when a result comes in. A failure on a checkpoint is looked at as it is reported; what was
left out is judged when its slice has ended, and proof is looked for when the pay is due.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.checkpoint_proofs import (
    Doubt,
    Lack,
    Story,
    Try,
    Verdict,
    find_doubt,
    find_lack,
    is_blamed,
    judge,
)
from computepool.core.jobs.lease import Attempt, Report
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptState
from computepool.core.ledger.dispute import DisputeOrigin, DisputeRefused
from computepool.core.ledger.earning import EarningState
from computepool.hub.services.disputes import freeze_earnings, take_back
from computepool.hub.services.links import load_links
from computepool.hub.services.standings import count_validated
from computepool.hub.store import checkpoint_proofs as store
from computepool.hub.store import credits as credit_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store.checkpoint_proofs import StoredStory, StoredTry
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.slices import SliceKey

log = logging.getLogger("computepool.trust")

REASON_FORGED = "two others could not go on from its checkpoint, and the slice was delivered without it"
REASON_UNDECIDED = "others could not go on from its checkpoint, and it is not certain why"


# While a failure is judged


class Doubts:
    """What the failures of one batch say about the checkpoints that they began with. Their slices are locked."""

    def __init__(self, stories: Mapping[SliceKey, Story]) -> None:
        self._stories = stories
        self._left_out: list[tuple[Attempt, AccountId, Doubt]] = []

    def find(self, attempt: Attempt, report: Report) -> Doubt | None:
        story = self._stories.get((attempt.job_id, attempt.slice_index))
        if story is None or attempt.state not in ATTEMPT_LIVE:
            return None
        *before, newest = story.tries
        if newest.number != attempt.number:
            return None
        failed = replace(newest, state=AttemptState.FAILED, cause=report.cause, exit_code=report.exit_code)
        return find_doubt(replace(story, tries=(*before, failed)), failed)

    def take(self, attempt: Attempt, submitter_id: AccountId, doubt: Doubt) -> None:
        """The slice is queued again; whoever takes it begins without what is left out."""
        if doubt.left_out:
            self._left_out.append((attempt, submitter_id, doubt))

    async def write(self, conn: Connection) -> None:
        for attempt, submitter_id, doubt in self._left_out:
            key = (attempt.job_id, attempt.slice_index)
            await store.leave_out(conn, key, numbers=doubt.left_out, after=attempt.number, back_to=doubt.back_to)
            await _tell(conn, "checkpoint_left_out", submitter_id, key, attempts=list(doubt.left_out))
            log.warning(
                "checkpoint_left_out job_id=%s slice=%d attempts=%s", *key, ",".join(map(str, doubt.left_out))
            )


async def open_doubts(conn: Connection, failed: Iterable[Attempt]) -> Doubts:
    """Of attempts that failed by their program's own word. The first of a slice began with nothing."""
    keys = {(attempt.job_id, attempt.slice_index) for attempt in failed if attempt.number > 1}
    if not keys:
        return Doubts({})
    known = await _load(conn, keys)
    return Doubts({key: told.story for key, told in known.items() if await _is_whole(conn, key, told.story)})


async def _is_whole(conn: Connection, key: SliceKey, story: Story) -> bool:
    """Whether the slice goes on from what its story says: a hub of yesterday leaves no story of what it accepts."""
    base = story.bases[story.tries[-1].number]
    return base is not None and await store.find_kept_number(conn, key) == base.number


# When the pay is due


async def find_lacks(conn: Connection, wanted: Mapping[AttemptId, SliceKey]) -> dict[AttemptId, Lack]:
    """Of attempts that ended without a result and have saved: what their pay waits for, if anything."""
    if not wanted:
        return {}
    known = await _load(conn, set(wanted.values()))
    lacks = {
        stored.id: find_lack(told.story, saved)
        for told in known.values()
        for stored, saved in told.pairs()
        if stored.id in wanted
    }
    return {id: lack for id, lack in lacks.items() if lack is not None}


# When the slice has ended


async def judge_due(pool: Pool, *, limit: int) -> int:
    """What was left out of slices that have ended. What fails is logged, and tried again with the next turn."""
    async with pool.acquire() as conn:
        unjudged = await store.list_unjudged(conn, limit=limit)
        known = await _load(conn, {key for key, _ in unjudged})
        resuming = await _list_resuming(conn, {job_id for job_id, _ in known})
    count = 0
    for key, number in unjudged:
        told = known[key]
        story = replace(told.story, can_resume=key[0] in resuming)
        stored, saved = next(pair for pair in told.pairs() if pair[1].number == number)
        try:
            verdict = judge(story, saved)
            if verdict is not None:
                blamed = stored.node_id if verdict is Verdict.FORGED and is_blamed(story, saved) else None
                count += await _apply(pool, key, told, stored, verdict, blamed)
        except Exception:
            log.exception("checkpoint_verdict_failed attempt_id=%s", stored.id)
    return count


async def _apply(
    pool: Pool, key: SliceKey, told: _Told, stored: StoredTry, verdict: Verdict, blamed: NodeId | None
) -> bool:
    """The pay first, which is safe to try twice; then the verdict with the node's standing, together and once."""
    if verdict is Verdict.FORGED:
        await _take_pay_back(pool, stored.id)
    elif verdict is Verdict.UNDECIDED:
        await _freeze_pay(pool, stored.id)
    async with pool.acquire() as conn, conn.transaction():
        if not await store.set_verdict(conn, stored.id, verdict):
            return False
        if blamed is not None:
            await count_validated(conn, [(blamed, False, False)], now=await hub_store.get_now(conn))
        await _tell(conn, f"checkpoint_{verdict.value}", told.submitter_id, key, attempts=[stored.known.number])
    log.info("checkpoint_judged attempt_id=%s verdict=%s", stored.id, verdict.value)
    return True


async def _take_pay_back(pool: Pool, attempt_id: AttemptId) -> None:
    try:
        async with pool.acquire() as conn, conn.transaction():
            await take_back(conn, attempt_id, origin=DisputeOrigin.AUDIT, reason=REASON_FORGED, by=None)
    except DisputeRefused as refusal:
        if refusal.details.get("reason") != "unpaid":
            raise


async def _freeze_pay(pool: Pool, attempt_id: AttemptId) -> None:
    async with pool.acquire() as conn, conn.transaction():
        earning = await credit_store.lock_earning(conn, attempt_id)
        if earning is not None and earning.state is EarningState.PENDING:
            await freeze_earnings(conn, [earning], origin=DisputeOrigin.AUDIT, reason=REASON_UNDECIDED)


# Stories


@dataclass(frozen=True, slots=True)
class _Told:
    story: Story
    stored: Sequence[StoredTry]
    # The account itself, whoever stands for it in the story.
    submitter_id: AccountId

    def pairs(self) -> Iterator[tuple[StoredTry, Try]]:
        return zip(self.stored, self.story.tries, strict=True)


async def _load(conn: Connection, keys: Collection[SliceKey]) -> dict[SliceKey, _Told]:
    """Of those in which anything was saved; with everybody who is linked taken for one."""
    stored = await store.list_stories(conn, keys) if keys else {}
    found = {key: told for key, told in stored.items() if any(each.known.has_saved for each in told.tries)}
    links = await load_links(conn) if found else {}
    return {key: _to_told(told, links) for key, told in found.items()}


def _to_told(stored: StoredStory, links: Mapping[AccountId, AccountId]) -> _Told:
    tries = tuple(
        replace(each.known, owner_id=links.get(each.known.owner_id, each.known.owner_id)) for each in stored.tries
    )
    submitter_id = links.get(stored.submitter_id, stored.submitter_id)
    return _Told(Story(stored.slice_state, submitter_id, tries), stored.tries, stored.submitter_id)


async def _list_resuming(conn: Connection, job_ids: Collection[JobId]) -> set[JobId]:
    """Jobs whose program has gone on from a checkpoint of somebody else."""
    if not job_ids:
        return set()
    links = await load_links(conn)
    resumed = await store.list_resumed(conn, job_ids)
    return {job_id for job_id, one, other in resumed if links.get(one, one) != links.get(other, other)}


async def _tell(conn: Connection, kind: str, submitter_id: AccountId, key: SliceKey, *, attempts: list[int]) -> None:
    job_id, slice_index = key
    body = {"slices": [[slice_index, slice_index]], "attempts": attempts}
    await event_store.record_events(conn, [NewEvent(kind=kind, account_id=submitter_id, job_id=job_id, body=body)])
