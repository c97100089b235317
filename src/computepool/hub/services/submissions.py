"""Submitting: many jobs in one statement, each taken or refused on its own, some of them leased as they are born."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

import msgspec

from computepool import clock
from computepool.core.errors import (
    ComputePoolError,
    Forbidden,
    IdempotencyMismatch,
    InvalidRequest,
    InvalidSpec,
    LimitExceeded,
)
from computepool.core.ids import AccountId, AttemptId, JobId, ShapeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import (
    JobSpec,
    find_class_refusal,
    list_faults,
)
from computepool.core.jobs.state import JobState
from computepool.core.ledger import verbs
from computepool.core.ledger.amount import AMOUNT_MAX
from computepool.core.ledger.charging import PriceMode
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting
from computepool.core.placement.price import SlicePrice, format_credits
from computepool.core.placement.rounds import Head, Run, Wish, queue_order
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.weights import Split
from computepool.hub.services.allowances import NOTHING, Allowances, Want, to_credit_refusal
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.job_specs import to_spec
from computepool.hub.services.leases import GRANTS_MAX, Leases, Order, size_order
from computepool.hub.services.prices import PriceBook
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import job_secrets as secret_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import ledger
from computepool.hub.store import shapes as shape_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.ids import new_id
from computepool.hub.store.jobs import IdempotencyRow, Inserted, Job, NewJob
from computepool.wire import jobs as wire

IDEMPOTENCY_KEY_LENGTH_MAX = 200
# Kinds of slots that one account may have work waiting for at once. Each is a run of the queue to look at.
SHAPES_PER_ACCOUNT_MAX = 64
# Slices of one job that dispatch is told of one by one; it looks for the others when it gets there.
HEADS_TOLD_MAX = 64
SHAPES_REMEMBERED_MAX = 10_000


class Submission(NamedTuple):
    """A checked request to run something, on its way into the database."""

    account_id: AccountId
    # As it is stored and shown: without the values of secrets.
    request: wire.JobSpec
    spec: JobSpec
    shape: Shape
    # The most that a slice can cost.
    reserve_microcredits: int
    idempotency_key: str | None
    # Where each slice has a fixed price.
    slice_price: SlicePrice | None = None

    @property
    def hold_microcredits(self) -> int:
        return self.spec.slice_count * self.reserve_microcredits


class Placing(Protocol):
    """What dispatch says while jobs are on their way."""

    def is_waiting(self, account_id: AccountId, shape_id: ShapeId) -> bool: ...

    def count_shapes(self, account_id: AccountId) -> int: ...

    def is_apart(self, account_id: AccountId) -> bool:
        """Whether slots may be free for this account that are not for others, or not at that price."""

    def take_slot(self, shape: Shape, wish: Wish, account_id: AccountId) -> Candidate | None:
        """A free slot for a slice that nobody waits in front of; it is the caller's from now on."""

    def give_slot(self, candidate: Candidate) -> None:
        """The slot was not used after all."""

    def expected_seconds(self, account_id: AccountId) -> float: ...


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a batch came to."""

    # In the order of the submissions.
    answers: list[Job | ComputePoolError]
    # Leases that jobs were born with.
    grants: list[Grant]
    # Where slices are queued now, how many, and which are the first of them.
    runs: dict[Run, Shape]
    counts: Mapping[Run, int]
    heads: Mapping[Run, Sequence[Head]]


def check_submission(
    caller: AccountCaller,
    request: wire.JobSpec,
    prices: PriceBook,
    *,
    idempotency_key: str | None,
    secrets_isolation: IsolationLevel = IsolationLevel.CONTAINER,
) -> Submission:
    """Everything that can be said about a request without looking anything up."""
    spec = to_spec(request)
    faults = [
        *list_faults(spec, now=clock.now(), secrets_isolation=secrets_isolation),
        *_list_kind_faults(request.kind, prices),
    ]
    if faults:
        raise InvalidSpec("The job cannot be taken: " + "; ".join(faults) + ".", faults=faults)
    refusal = find_class_refusal(spec.priority_class, caller.priority_class_max)
    if refusal is not None:
        raise Forbidden(refusal)
    if idempotency_key is not None and not 1 <= len(idempotency_key) <= IDEMPOTENCY_KEY_LENGTH_MAX:
        raise InvalidRequest(f"An idempotency key has 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} characters.")
    fixed = None if spec.price.mode is PriceMode.PER_SECOND else prices.fix_price(spec)
    if fixed is None:
        shape = prices.fill_ceiling(spec.requirements)
        reserve = prices.reserve(shape, spec.wall_seconds)
    else:
        shape = to_shape(replace(spec.requirements, slice_price=fixed))
        reserve = fixed.ceiling_microcredits
    if spec.slice_count * reserve > AMOUNT_MAX:
        raise InvalidSpec(
            f"The job could cost {format_credits(spec.slice_count * reserve)} credits, more than any job may. Set a "
            "lower ceiling or wall limit, or submit fewer slices.",
            faults=["the job could cost more than any job may"],
        )
    return Submission(caller.account_id, _hide_secrets(request), spec, shape, reserve, idempotency_key, fixed)


class Submissions:
    """Remembers shapes, which never change."""

    def __init__(self, pool: Pool, leases: Leases, split: Split, *, lease_seconds: float) -> None:
        self._pool = pool
        self._leases = leases
        self._split = split
        self._lease_seconds = lease_seconds
        self._shape_ids: dict[Shape, ShapeId] = {}
        self.allowances = Allowances(pool)

    async def submit(self, submissions: Sequence[Submission], placing: Placing) -> Submitted:
        """Many submits in one transaction, judged in the order of their arrival."""
        # A hub without nodes grants nothing, and must not remember every job that it takes in.
        self._leases.forget_oldest()
        async with self._pool.acquire() as conn:
            await self._load_shapes(conn, {s.shape for s in submissions})
            answers: dict[int, Job | ComputePoolError] = {}
            answers.update(await self._list_refusals(conn, submissions, placing))
            fresh = {i: self._to_new_job(s) for i, s in enumerate(submissions) if i not in answers}
            for i, job in fresh.items():
                self._remember(job, submissions[i])
            newborn = _Newborn(placing)
            try:
                newborn.take_slots(fresh, submissions, self._leases)
                inserted = await self._insert_all(conn, fresh, newborn, answers)
                grants = [grant for grant in newborn.grants if grant.id in inserted.leased]
                leased = Counter(grant.job_id for grant in grants)
                for i, job in fresh.items():
                    if job.id in inserted.created_at:
                        answers[i] = _to_job(job, submissions[i], inserted.created_at[job.id], leased[job.id])
                answers |= await _answer_used_keys(conn, submissions, answers)
            except BaseException:
                # Whoever hears of this does not hear of the leases: the node is told when it is next looked up.
                newborn.give_back(set())
                raise
            newborn.give_back(inserted.leased)
        queued: dict[Run, _Queued] = {}
        runs: dict[Run, Shape] = {}
        leases = {(grant.job_id, grant.slice_index) for grant in grants}
        for i, job in fresh.items():
            if job.id in inserted.created_at and leased[job.id] < job.slice_count:
                run = _run_of(job)
                runs[run] = submissions[i].shape
                queued.setdefault(run, _Queued()).add(job, run, inserted.created_at[job.id], leases, leased[job.id])
        return Submitted(
            [answers[i] for i in range(len(submissions))],
            grants,
            runs,
            {run: found.count for run, found in queued.items()},
            {run: found.list_heads() for run, found in queued.items()},
        )

    async def _insert_all(
        self,
        conn: Connection,
        fresh: dict[int, NewJob],
        newborn: _Newborn,
        answers: dict[int, Job | ComputePoolError],
    ) -> Inserted:
        """Without those that their accounts cannot pay for: they are answered, and the others written again."""
        while True:
            try:
                return await self._insert(conn, list(fresh.values()), newborn.grants)
            except _Unpaid as unpaid:
                for i in [i for i, job in fresh.items() if job.id in unpaid.job_ids]:
                    answers[i] = to_credit_refusal(fresh.pop(i).hold_microcredits)
                newborn.give_back_jobs(unpaid.job_ids)

    async def _insert(self, conn: Connection, jobs: Sequence[NewJob], grants: Sequence[Grant]) -> Inserted:
        """Jobs, their secrets and what they hold, at once or not at all."""
        holds = [_to_hold(job) for job in jobs if job.reserve_microcredits]
        try:
            if not any(job.sealed for job in jobs):
                return await self._insert_rows(conn, jobs, grants, holds)
            async with conn.transaction():
                return await self._insert_sealed(conn, jobs, grants, holds)
        except ledger.Unpostable:
            pass
        async with conn.transaction():
            inserted = await self._insert_sealed(conn, jobs, grants, ())
            await _post_each(conn, [hold for hold in holds if hold.job_id in inserted.created_at])
        return inserted

    async def _insert_sealed(
        self, conn: Connection, jobs: Sequence[NewJob], grants: Sequence[Grant], holds: Sequence[Posting]
    ) -> Inserted:
        inserted = await self._insert_rows(conn, jobs, grants, holds)
        sealed = {job.id: job.sealed for job in jobs if job.sealed and job.id in inserted.created_at}
        if sealed:
            await secret_store.insert_secrets(conn, sealed)
        return inserted

    async def _insert_rows(
        self, conn: Connection, jobs: Sequence[NewJob], grants: Sequence[Grant], holds: Sequence[Posting]
    ) -> Inserted:
        return await job_store.insert_jobs(
            conn,
            jobs,
            grants,
            rate_card_version=self._leases.prices.card.version,
            lease_seconds=self._lease_seconds,
            holds=holds,
        )

    # What is looked up before

    async def _load_shapes(self, conn: Connection, shapes: Set[Shape]) -> None:
        unknown = {shape for shape in shapes if shape not in self._shape_ids}
        if unknown:
            if len(self._shape_ids) + len(unknown) > SHAPES_REMEMBERED_MAX:
                self._shape_ids.clear()
                unknown = set(shapes)
            self._shape_ids.update(await shape_store.get_or_insert_shapes(conn, unknown))

    async def _list_refusals(
        self, conn: Connection, submissions: Sequence[Submission], placing: Placing
    ) -> dict[int, ComputePoolError]:
        await self.allowances.load(conn, {s.account_id for s in submissions})
        present = await _list_present(conn, submissions)
        refusals: dict[int, ComputePoolError] = {}
        let_in: dict[AccountId, Want] = {}
        for i, submission in enumerate(submissions):
            account_id, before = submission.account_id, let_in.get(submission.account_id, NOTHING)
            want = Want(submission.spec.slice_count, submission.hold_microcredits)
            refusal = (
                _find_missing(submission, present)
                or self._find_shape_refusal(submission, placing)
                or await self.allowances.let_in(conn, account_id, want, in_batch=before)
            )
            if refusal is not None:
                refusals[i] = refusal
            else:
                let_in[account_id] = before.add(want)
        return refusals

    def _find_shape_refusal(self, submission: Submission, placing: Placing) -> LimitExceeded | None:
        account_id, shape_id = submission.account_id, self._shape_ids[submission.shape]
        if placing.count_shapes(account_id) < SHAPES_PER_ACCOUNT_MAX or placing.is_waiting(account_id, shape_id):
            return None
        return LimitExceeded(
            f"You have work waiting for {SHAPES_PER_ACCOUNT_MAX} different kinds of slots. Want for the same "
            "requirements in more of your jobs, or wait until some have started.",
            retry_after_seconds=30,
        )

    # What is written

    def _to_new_job(self, submission: Submission) -> NewJob:
        spec, request = submission.spec, submission.request
        job_id = JobId(new_id())
        raw = msgspec.json.encode(request)
        return NewJob(
            id=job_id,
            account_id=submission.account_id,
            name=spec.name,
            spec=raw.decode(),
            shape_id=self._shape_ids[submission.shape],
            priority=spec.priority,
            priority_class=spec.priority_class,
            prefer=spec.prefer,
            weight_set=self._split.choose(job_id),
            slice_count=spec.slice_count,
            retries=spec.retries,
            wall_seconds=spec.wall_seconds,
            deadline_at=spec.deadline_at,
            expires_at=spec.expires_at,
            key=submission.idempotency_key,
            request_sha256=_digest(request) if submission.idempotency_key is not None else None,
            reserve_microcredits=submission.reserve_microcredits,
            slice_base_microcredits=submission.slice_price.base_microcredits if submission.slice_price else None,
            sealed=self._leases.seal(job_id, spec.secrets),
            verify=spec.checked_by,
        )

    def _remember(self, job: NewJob, submission: Submission) -> None:
        order = Order(
            job.account_id,
            submission.request,
            job.wall_seconds,
            Wish(job.prefer, job.weight_set),
            size_order(len(job.spec) + len(job.sealed or b"")),
            slice_price=submission.slice_price,
            sealed=job.sealed,
            reserve_microcredits=job.reserve_microcredits,
        )
        self._leases.remember(job.id, order)


class _Queued:
    """What a batch has queued in one run."""

    def __init__(self) -> None:
        self.count = 0
        self._jobs = 0
        self._heads: list[Head] = []

    def add(
        self, job: NewJob, run: Run, created_at: datetime, leases: Set[tuple[JobId, int]], leased_count: int
    ) -> None:
        self.count += job.slice_count - leased_count
        self._jobs += 1
        # One after the other, as they are written.
        queued_at = created_at + timedelta(microseconds=len(self._heads))
        for i in range(min(job.slice_count, leased_count + HEADS_TOLD_MAX)):
            if (job.id, i) not in leases:
                self._heads.append(Head(job.id, i, run, job.priority, queued_at, None, 0))

    def list_heads(self) -> Sequence[Head]:
        """In the order of the queue. Of several jobs all or none: what is left out of one may belong in front of
        another."""
        if self._jobs == 1:
            return self._heads
        return sorted(self._heads, key=queue_order) if len(self._heads) == self.count else ()


class _Newborn:
    """Slots taken for slices that are not written yet."""

    def __init__(self, placing: Placing) -> None:
        self._placing = placing
        self._candidates: dict[AttemptId, Candidate] = {}
        self.grants: list[Grant] = []

    def take_slots(self, jobs: Mapping[int, NewJob], submissions: Sequence[Submission], leases: Leases) -> None:
        """In the order of arrival; a shape that found nothing is not asked for again, but by those who may have slots
        that others may not."""
        barren: set[tuple[ShapeId, Wish, AccountId | None]] = set()
        for i, job in jobs.items():
            wish = leases.wish_of(job.id)
            asked = (job.shape_id, wish, job.account_id if self._placing.is_apart(job.account_id) else None)
            for slice_index in range(min(job.slice_count, GRANTS_MAX - len(self.grants))):
                if asked in barren:
                    break
                candidate = self._placing.take_slot(submissions[i].shape, wish, job.account_id)
                if candidate is None:
                    barren.add(asked)
                    break
                self._lease(job, slice_index, candidate, submissions[i].shape, leases)

    def _lease(self, job: NewJob, slice_index: int, candidate: Candidate, shape: Shape, leases: Leases) -> None:
        grant = leases.plan(
            job.id,
            job.account_id,
            candidate,
            shape.ceiling_microcredits_per_hour,
            slice_index=slice_index,
            number=1,
            expected_seconds=self._placing.expected_seconds,
        )
        self.grants.append(grant)
        self._candidates[grant.id] = candidate

    def give_back_jobs(self, job_ids: Set[JobId]) -> None:
        """These jobs are not written after all."""
        for grant in [grant for grant in self.grants if grant.job_id in job_ids]:
            self.grants.remove(grant)
            self._placing.give_slot(self._candidates.pop(grant.id))

    def give_back(self, leased: Set[AttemptId]) -> None:
        """Slots whose slice was not leased: its key was used before, or another hub had filled the slot."""
        for attempt_id, candidate in self._candidates.items():
            if attempt_id not in leased:
                self._placing.give_slot(candidate)


class _Unpaid(Exception):
    """Some jobs of a batch are not covered by their accounts."""

    def __init__(self, job_ids: Set[JobId]) -> None:
        self.job_ids = job_ids


async def _post_each(conn: Connection, holds: Sequence[Posting]) -> None:
    """Raises `_Unpaid` with those that cannot be posted."""
    outcomes = await ledger.post(conn, holds, writes_jobs=False)
    pairs = zip(holds, outcomes, strict=True)
    refused = {hold.job_id for hold, outcome in pairs if hold.job_id and isinstance(outcome, Refusal)}
    if refused:
        raise _Unpaid(refused)


def _to_hold(job: NewJob) -> Posting:
    hold = verbs.hold(job_id=job.id, submitter_id=job.account_id, amount=job.hold_microcredits)
    assert isinstance(hold, Posting)
    return hold


async def _answer_used_keys(
    conn: Connection, submissions: Sequence[Submission], answers: Mapping[int, Job | ComputePoolError]
) -> dict[int, Job | ComputePoolError]:
    """A key that was used before answers for its submission, also where the limits would have refused it."""
    keyed = {
        i: (s.account_id, s.idempotency_key)
        for i, s in enumerate(submissions)
        if s.idempotency_key is not None and not isinstance(answers.get(i), Job)
    }
    if not keyed:
        return {}
    known = await job_store.list_idempotent(conn, list(keyed.values()))
    same = {i: known[key].job_id for i, key in keyed.items() if _is_same(known.get(key), submissions[i])}
    jobs = await job_store.find_jobs(conn, set(same.values())) if same else {}
    found: dict[int, Job | ComputePoolError] = {i: jobs[job_id] for i, job_id in same.items()}
    for i, key in keyed.items():
        if key in known and i not in same:
            found[i] = IdempotencyMismatch(
                "This idempotency key was used for another job. Use a new key for a new job.",
                job_id=str(known[key].job_id),
            )
    return found


def _is_same(known: IdempotencyRow | None, submission: Submission) -> bool:
    return known is not None and known.request_sha256 == _digest(submission.request)


async def _list_present(conn: Connection, submissions: Iterable[Submission]) -> dict[tuple[AccountId, bytes], int]:
    wanted = [(s.account_id, bytes.fromhex(file.sha256)) for s in submissions for file in s.spec.files]
    return await artifact_store.list_present(conn, wanted) if wanted else {}


def _find_missing(submission: Submission, present: Mapping[tuple[AccountId, bytes], int]) -> InvalidSpec | None:
    # One content may stand under several names, each with a size of its own to be checked.
    faults = []
    for file in submission.spec.files:
        size_bytes = present.get((submission.account_id, bytes.fromhex(file.sha256)))
        if size_bytes is None:
            faults.append(f"{file.path} was not uploaded: PUT /v1/artifacts/{file.sha256} first")
        elif size_bytes != file.size_bytes:
            faults.append(f"{file.path} has {size_bytes} bytes, not {file.size_bytes}")
    return InvalidSpec("The job cannot be taken: " + "; ".join(faults) + ".", faults=faults) if faults else None


def _to_job(job: NewJob, submission: Submission, created_at: datetime, leased_count: int) -> Job:
    """The row as it was just written; reading it back would cost a round trip and say the same."""
    return Job(
        id=job.id,
        account_id=job.account_id,
        name=job.name,
        spec={"requirements": submission.request.requirements, "kind": submission.request.kind},
        shape_id=job.shape_id,
        priority=job.priority,
        slice_count=job.slice_count,
        retries=job.retries,
        wall_seconds=job.wall_seconds,
        state=JobState.RUNNING if leased_count else JobState.QUEUED,
        succeeded_count=0,
        failed_count=0,
        cancelled_count=0,
        created_at=created_at,
        started_at=created_at if leased_count else None,
        finished_at=None,
        expires_at=job.expires_at,
        priority_class=job.priority_class,
        prefer=job.prefer,
        weight_set=job.weight_set,
        deadline_at=job.deadline_at,
        run_seconds_sum=0.0,
        held_remaining=job.hold_microcredits,
        reserve_microcredits=job.reserve_microcredits,
        charged_microcredits=0,
        slice_base_microcredits=job.slice_base_microcredits,
        leased_count=leased_count,
        running_count=0,
        verify=job.verify,
    )


def _run_of(job: NewJob) -> Run:
    return Run(job.shape_id, job.priority_class, job.account_id)


def _digest(request: wire.JobSpec) -> bytes:
    return hashlib.sha256(msgspec.json.encode(request, order="deterministic")).digest()


def _hide_secrets(request: wire.JobSpec) -> wire.JobSpec:
    """The names stay: they tell what the job was given, and a repeated submit from another one."""
    if not request.secrets:
        return request
    return msgspec.structs.replace(request, secrets=dict.fromkeys(sorted(request.secrets), ""))


def _list_kind_faults(kind: str, prices: PriceBook) -> list[str]:
    known = prices.card.kinds
    return [] if kind in known else [f"kind {kind[:64]!r} is unknown; there are {', '.join(sorted(known))}"]
