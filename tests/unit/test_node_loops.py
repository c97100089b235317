"""The pace of calls, the log's way to the hub, the choice of walls and the shape of log lines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from computepool.core.errors import HubUnavailable, StaleLease
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import journal, patience
from computepool.node.claim_loop import Pace
from computepool.node.config import Poll
from computepool.node.log_shipping import PIECE_BYTES, LogShipper
from computepool.node.runner_end import wait_for_end
from computepool.node.sandbox.port import Report
from computepool.node.threads import finish_in_thread
from computepool.node.walls import NoSandbox, choose
from computepool.wire.attempts import LogAnswer


def wait_after(
    pace: Pace, *, poll: Poll = Poll.LONG, held: float = 30.0, work: bool = False, told: float | None = None
) -> float:
    return pace.wait_after_answer(brought_work=work, poll=poll, held_seconds=held, told=told)


def test_a_held_call_is_followed_by_the_next_at_once() -> None:
    assert wait_after(Pace()) == 0


def test_calls_that_come_back_at_once_and_empty_slow_down() -> None:
    pace = Pace()
    waits = [wait_after(pace, held=0.01) for _ in range(10)]
    assert 0.5 <= waits[0] <= 1.5
    assert 15 <= waits[-1] <= 45
    assert wait_after(pace, held=0.01, work=True) == 0
    assert wait_after(pace, held=0.01) <= 1.5


def test_a_short_poller_keeps_to_what_the_hub_said() -> None:
    assert wait_after(Pace(), poll=Poll.SHORT, held=0.01, told=41.37) == 41.37


def test_a_short_poller_without_word_waits_ten_to_sixty_seconds() -> None:
    pace = Pace()
    waits = [wait_after(pace, poll=Poll.SHORT, held=0.01) for _ in range(6)]
    assert 5 <= waits[0] <= 10
    assert 30 <= waits[-1] <= 60
    assert wait_after(pace, poll=Poll.SHORT, held=0.01, work=True) == 0
    assert wait_after(pace, poll=Poll.SHORT, held=0.01) <= 10


def test_failures_are_retried_later_and_later_and_success_forgets_them() -> None:
    pace, error = Pace(), HubUnavailable("away")
    waits = [pace.wait_after_failure(error) for _ in range(8)]
    assert waits[0] <= 1.5
    assert 15 <= waits[-1] <= 45
    wait_after(pace)
    assert pace.wait_after_failure(error) <= 1.5


class LogHub:
    """Takes pieces of log like a hub: appends what is new, up to a limit."""

    def __init__(self, *, limit: int = 10**9) -> None:
        self.log = b""
        self.pieces: list[int] = []
        self.trouble: list[Exception] = []
        self._limit = limit

    async def send_log(self, attempt_id: UUID, lease_secret: str, *, offset: int, piece: bytes) -> LogAnswer:
        if self.trouble:
            raise self.trouble.pop(0)
        self.pieces.append(len(piece))
        if 0 <= offset <= len(self.log):
            fresh = piece[len(self.log) - offset :]
            self.log += fresh[: max(0, self._limit - len(self.log))]
        return LogAnswer(next_offset=len(self.log))


def make_shipper(hub: Any, path: Path) -> LogShipper:
    return LogShipper(hub, attempt_id=uuid4(), lease_secret="s", path=path)


async def test_a_long_log_is_sent_in_pieces(tmp_path: Path) -> None:
    hub, path = LogHub(), tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 3_000)
    await make_shipper(hub, path).finish()
    assert hub.log == path.read_bytes()
    assert max(hub.pieces) == PIECE_BYTES


async def test_a_restarted_agent_goes_on_where_the_hub_says(tmp_path: Path) -> None:
    hub, path = LogHub(), tmp_path / "log"
    path.write_bytes(b"0123456789")
    hub.log = b"01234"
    await make_shipper(hub, path).finish()
    assert hub.log == b"0123456789"


async def test_a_log_that_the_hub_has_enough_of_is_not_sent_for_ever(tmp_path: Path) -> None:
    hub, path = LogHub(limit=100), tmp_path / "log"
    path.write_bytes(b"x" * 1_000)
    await asyncio.wait_for(make_shipper(hub, path).finish(), 60)
    assert len(hub.log) == 100


async def test_a_log_waits_for_a_hub_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "wait_seconds", lambda *_, **__: 0.0)
    hub, path = LogHub(), tmp_path / "log"
    hub.trouble = [HubUnavailable("away"), HubUnavailable("away")]
    path.write_bytes(b"hello")
    await make_shipper(hub, path).finish()
    assert hub.log == b"hello"


async def test_a_refused_log_does_not_fail_the_attempt(tmp_path: Path) -> None:
    hub, path = LogHub(), tmp_path / "log"
    hub.trouble = [StaleLease("taken over")]
    path.write_bytes(b"hello")
    shipper = make_shipper(hub, path)
    await shipper.finish()
    await shipper.run()
    assert hub.pieces == []


async def test_a_job_that_printed_nothing_sends_nothing(tmp_path: Path) -> None:
    hub = LogHub()
    await make_shipper(hub, tmp_path / "log").finish()
    assert hub.pieces == []


async def test_the_end_of_a_process_is_noticed_without_polling() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "0.1")
    await asyncio.wait_for(wait_for_end(process.pid, or_event=asyncio.Event(), seconds_max=60), 30)
    await process.wait()


async def test_a_nudge_ends_the_wait() -> None:
    nudge = asyncio.Event()
    nudge.set()
    await asyncio.wait_for(wait_for_end(1, or_event=nudge, seconds_max=60), 30)
    assert not nudge.is_set()


async def test_work_in_a_thread_is_finished_before_its_caller_is_cancelled() -> None:
    began, go_on, finished = asyncio.Event(), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(5)
        finished.append(1)

    caller = asyncio.ensure_future(finish_in_thread(work))
    await began.wait()
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert finished == [1]


def test_the_strictest_walls_that_hold_are_offered() -> None:
    reports = (
        Report("bubblewrap", IsolationLevel.SANDBOXED, True),
        Report("podman", IsolationLevel.CONTAINER, True),
        Report("runsc", IsolationLevel.GVISOR, False, ("not installed",)),
    )
    walls = choose(reports)
    assert walls.level is IsolationLevel.CONTAINER
    # The lightest that is strict enough: a script without wishes is not put into a container.
    assert walls.find(IsolationLevel.SANDBOXED) == "bubblewrap"
    assert walls.find(IsolationLevel.CONTAINER) == "podman"
    assert walls.find(IsolationLevel.SANDBOXED, has_image=True) == "podman"
    assert walls.find(IsolationLevel.GVISOR) is None


def test_without_walls_no_work_is_taken_and_the_reasons_are_told() -> None:
    with pytest.raises(NoSandbox, match="bwrap is not installed"):
        choose((Report("bubblewrap", IsolationLevel.SANDBOXED, False, ("bwrap is not installed",)),))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"id": "a-1", "n": 3}, "event id=a-1 n=3"),
        ({"s": 1.23456, "none": None}, "event s=1.235"),
        ({"m": 'two words "and" quotes'}, 'event m="two words \\"and\\" quotes"'),
        ({"m": "a\nFAKE event"}, 'event m="a\\nFAKE event"'),
        ({"m": ""}, 'event m=""'),
        ({"m": "esc\x1b[31m"}, 'event m="esc\\x1b[31m"'),
    ],
)
def test_a_log_line_stays_one_line(fields: dict[str, object], line: str) -> None:
    assert journal.render("event", fields) == line
