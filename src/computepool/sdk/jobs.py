"""A job in the submitter's hand: watch it, read it, stop it, fetch what it made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from computepool import clock
from computepool.core.jobs.state import JOB_TERMINAL, SLICE_TERMINAL, JobState, SliceState
from computepool.sdk.files import is_present, place_output, write_verified
from computepool.sdk.transport import many_at_once
from computepool.wire.jobs import Event, EventPage, Job, LogPage, OutputFile, Slice, SlicePage
from computepool.wire.receipts import JobReceipts
from computepool.wire.why import JobWhy

if TYPE_CHECKING:
    from computepool.sdk.transport import Transport

# Short jobs are noticed at once, long ones cost the hub little.
_LOOK_SECONDS_MIN = 0.25
_LOOK_SECONDS_MAX = 3.0
_PAGE_LENGTH = 200


class JobHandle:
    """`job` is what the hub said last; `refresh` asks again."""

    def __init__(self, transport: Transport, job: Job) -> None:
        self._transport = transport
        self.job = job

    @property
    def id(self) -> UUID:
        return self.job.id

    @property
    def state(self) -> JobState:
        return self.job.state

    @property
    def is_finished(self) -> bool:
        return self.job.state in JOB_TERMINAL

    def refresh(self) -> Job:
        self.job = self._transport.call("GET", self._path, Job)
        return self.job

    def wait(self, *, timeout: float | None = None, on_change: Callable[[Job], None] | None = None) -> Job:
        """Until the job has ended, well or not: look at its `state`. `TimeoutError` after `timeout` seconds.

        `on_change` is called with the first view and with every one that differs from the one before.
        """
        deadline = None if timeout is None else clock.seconds() + timeout
        pace, seen = _Pace(), None
        while True:
            job = self.refresh()
            if job != seen:
                pace.quicken()
                if on_change is not None:
                    on_change(job)
            if self.is_finished:
                return job
            seen, seconds = job, pace.next_seconds()
            if deadline is not None:
                left = deadline - clock.seconds()
                if left <= 0:
                    raise TimeoutError(f"Job {self.id} is still {job.state.value} after {timeout:g} s.")
                seconds = min(seconds, left)
            self._transport.sleep(seconds)

    def cancel(self) -> Job:
        """Asking twice, or for a job that has ended, does no harm."""
        self.job = self._transport.call("POST", f"{self._path}/cancel", Job, repeatable=True)
        return self.job

    def slices(self, *, state: SliceState | None = None) -> Iterator[Slice]:
        """All slices in order, with their attempts and outputs, fetched page by page as you go."""
        after: int | None = None
        while True:
            params = {"after": after, "limit": _PAGE_LENGTH, "state": state.value if state else None}
            page = self._transport.call("GET", f"{self._path}/slices", SlicePage, params=params)
            yield from page.slices
            if page.next_after is None:
                return
            after = page.next_after

    def get_slice(self, index: int) -> Slice:
        return self._transport.call("GET", f"{self._path}/slices/{index}", Slice)

    def why(self, *, slice: int | None = None) -> JobWhy:
        """Why it waits and the smallest change that would let it run; or where it ran, and how attempts ended.

        Tells of one slice: the one asked for, else the one that tells most.
        """
        return self._transport.call("GET", f"{self._path}/why", JobWhy, params={"slice": slice})

    def events(self) -> Iterator[Event]:
        """What happened to the job, in order."""
        after = 0
        while True:
            params = {"after": after, "limit": _PAGE_LENGTH}
            page = self._transport.call("GET", f"{self._path}/events", EventPage, params=params)
            yield from page.events
            if len(page.events) < _PAGE_LENGTH:
                return
            after = page.events[-1].id

    def receipts(self) -> JobReceipts:
        """What nodes have signed for its results so far. Keep it: `verify_receipts` checks it without a hub."""
        return fetch_receipts(self._transport, self.id)

    def logs(self, *, slice: int = 0, follow: bool = True, attempt: int | None = None) -> Iterator[str]:
        """Pieces of one slice's log as they come; begins with the newest attempt.

        With `follow` it goes on until the slice has ended, over retries too; without, it gives what is there.
        """
        number, offset, pace = attempt, 0, _Pace()
        while True:
            page = self._log_page(slice, number, offset)
            if page.text:
                yield page.text
            moved, offset = page.next_offset > offset, page.next_offset
            number = number if page.attempt_id is None else page.attempt_number
            if moved:
                pace.quicken()
                if page.complete or not follow:
                    continue  # A page has a limited length: there may be more behind it.
            elif not follow or (page.complete and attempt is not None):
                return
            elif page.complete or page.attempt_id is None:
                part = self.get_slice(slice)
                later = min((a.number for a in part.attempts if a.number > (number or 0)), default=None)
                if later is None and part.state in SLICE_TERMINAL:
                    return
                if later is not None and number is not None:
                    number, offset = later, 0
                    continue
            self._transport.sleep(pace.next_seconds())

    def download(self, dest: Path | str) -> list[Path]:
        """Every output of every slice that delivered, each checked against its hash.

        A job of one slice writes `dest/<path>`, a job of many `dest/<slice index>/<path>`.
        Files that are there already, unchanged, are not fetched again.
        """
        wanted = (
            (Path(dest) if self.job.slice_count == 1 else Path(dest, str(part.index)), output)
            for part in self.slices()
            for output in part.outputs
        )
        written: list[Path] = []
        while batch := list(islice(wanted, _PAGE_LENGTH)):
            written += many_at_once(lambda each: self._download_output(*each), batch)
        return written

    def _download_output(self, root: Path, output: OutputFile) -> Path:
        target = place_output(root, output)
        if is_present(target, output):
            return target
        path = f"/v1/artifacts/{output.sha256}"
        return self._transport.download(path, lambda pieces: write_verified(target, output, pieces))

    def _log_page(self, index: int, attempt: int | None, offset: int) -> LogPage:
        params = {"offset": offset, "attempt": attempt}
        return self._transport.call("GET", f"{self._path}/slices/{index}/logs", LogPage, params=params)

    @property
    def _path(self) -> str:
        return f"/v1/jobs/{self.job.id}"


def fetch_receipts(transport: Transport, job_id: UUID) -> JobReceipts:
    """All pages as one."""
    pages: list[JobReceipts] = []
    after: int | None = None
    while not pages or after is not None:
        params = {"after": after, "limit": _PAGE_LENGTH}
        pages.append(transport.call("GET", f"/v1/jobs/{job_id}/receipts", JobReceipts, params=params))
        after = pages[-1].next_after
    receipts = {receipt.id: receipt for page in pages for receipt in page.receipts}
    results = [result for page in pages for result in page.results]
    return msgspec.structs.replace(pages[-1], results=results, receipts=list(receipts.values()))


class _Pace:
    """How long to wait before looking again: ever longer, until something moves."""

    def __init__(self) -> None:
        self._seconds = _LOOK_SECONDS_MIN

    def quicken(self) -> None:
        self._seconds = _LOOK_SECONDS_MIN

    def next_seconds(self) -> float:
        seconds = self._seconds
        self._seconds = min(seconds * 1.5, _LOOK_SECONDS_MAX)
        return seconds
