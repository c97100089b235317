"""Which results are checked, decided as they arrive: a newcomer's are kept back, of a trusted node some are drawn.

What a job delivers whose runs differ by themselves nobody can check; for as many of them its node is watched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from computepool.core.ids import AttemptId
from computepool.core.jobs.lease import Attempt
from computepool.core.trust.validation import ResultState, audit_rate, draw_audit, first_state, is_audited
from computepool.hub.services.reports import Report
from computepool.hub.store import validation as store
from computepool.hub.store.connect import Connection
from computepool.hub.store.validation import CheckedReport, NewCheck, NewWatch

# Of one node at a time.
WATCHES_WAITING_MAX = 20


class Intake:
    """The results of one batch whose jobs have them checked."""

    def __init__(self, checked: Mapping[AttemptId, CheckedReport], *, key: bytes, now: datetime | None) -> None:
        self._checked = checked
        self._key = key
        self._now = now
        self.opened: list[NewCheck] = []
        self.watches: list[NewWatch] = []

    def is_withheld(self, attempt_id: AttemptId) -> bool:
        """Whether the result is kept back until somebody else has got the same."""
        known = self._checked.get(attempt_id)
        if known is None or known.nondeterministic or self._now is None:
            return False
        state = first_state(known.verify, known.trust, has_comparator=True, now=self._now)
        return state is ResultState.VERIFYING

    def take(self, attempt: Attempt, result_sha256: bytes | None, *, withheld: bool) -> None:
        """After the result is in: which ones are audited is drawn from what was committed."""
        known = self._checked.get(attempt.id)
        if known is None or result_sha256 is None or self._now is None:
            return
        drawn = is_audited(audit_rate(known.trust, now=self._now), draw_audit(self._key, attempt.id, result_sha256))
        if known.nondeterministic:
            if drawn:
                self.watches.append(NewWatch(attempt.id, attempt.job_id, attempt.node_id))
        elif withheld or drawn:
            self.opened.append(
                NewCheck(attempt.id, attempt.job_id, attempt.slice_index, attempt.node_id, known.verify, withheld)
            )

    async def write(self, conn: Connection) -> None:
        if self.opened:
            await store.insert_checks(conn, self.opened)
        if self.watches:
            await store.insert_watches(conn, self.watches, waiting_max=WATCHES_WAITING_MAX)


async def open_intake(conn: Connection, reports: Sequence[Report], *, key: bytes, now: datetime | None) -> Intake:
    delivered = [report.attempt_id for report in reports if report.completion.cause is None]
    return Intake(await store.list_checked(conn, delivered) if delivered else {}, key=key, now=now)
