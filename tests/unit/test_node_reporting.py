"""How ends reach the hub, alone or together, and how the next work comes back with the answer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from computepool.core.errors import InvalidRequest, StaleBoot, StaleLease
from computepool.core.jobs.cause import Cause
from computepool.node import patience, reporter
from computepool.node.claim_loop import ClaimLoop
from computepool.node.reporter import BATCH_MAX, Reporter
from computepool.node.rhythm import Rhythm
from computepool.wire.attempts import Claim, CompleteOutcome, Completion, Controls, NextAnswer
from tests.support.agent_world import (
    Answer,
    Body,
    Line,
    Runners,
    World,
    accept,
    bring,
    hang_up,
    id_of,
    make_order,
    refuse,
    until,
)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(patience, "wait_seconds", lambda *_, **__: 0.0)
    return Line()


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    return Runners(monkeypatch)


class NoWork:
    """Wants none."""

    def find_claim(self, completed: object) -> Claim | None:
        return None

    def accept(self, answer: NextAnswer) -> None:
        raise AssertionError("nothing was claimed")


def make_reporter(world: World) -> Reporter:
    return Reporter(world.hub, world.identity, NoWork(), boot_id=world.around.boot_id)


def make_end(*, cause: Cause | None = None, message: str = "") -> Completion:
    exit_code = 0 if cause is None else 1
    return Completion(
        attempt_id=uuid4(),
        lease_secret="s",
        exit_code=exit_code,
        cause=cause,
        message=message,
        result_sha256="ab" * 32,
    )


async def begin_to_tell(told: Reporter, line: Line, ends: list[Completion]) -> list[asyncio.Task[CompleteOutcome]]:
    """Leaves the first end under way, and the others waiting for its call to end."""
    line.open.clear()
    call_count = len(line.calls)
    telling = [asyncio.create_task(told.report(ends[0]))]
    await until(lambda: len(line.calls) > call_count)
    telling += [asyncio.create_task(told.report(end)) for end in ends[1:]]
    await asyncio.sleep(0)
    return telling


async def tell_together(told: Reporter, line: Line, ends: list[Completion]) -> list[CompleteOutcome | BaseException]:
    """The first end is on its way alone while the others come to their end."""
    telling = await begin_to_tell(told, line, ends)
    line.open.set()
    return await asyncio.wait_for(asyncio.gather(*telling, return_exceptions=True), 5)


def sizes(line: Line) -> list[int]:
    """How many ends each call told."""
    return [len(call.get("completions", [call])) for call in line.calls]


def ids_of(call: Body) -> list[str]:
    return [each["attempt_id"] for each in call["completions"]]


def answer_each(**errors: str) -> Answer:
    """Refuses the ends with these messages, each with its code, and accepts the others."""

    def answer(body: Body) -> httpx.Response:
        if "completions" not in body:
            return accept(body)
        found = [errors.get(each["message"]) for each in body["completions"]]
        refused = [
            {"error": {"code": code, "message": "no", "retryable": code == "hub_unavailable"}} for code in found
        ]
        return httpx.Response(
            200,
            json={"answers": [r if r["error"]["code"] else {"accepted": True} for r in refused]},
        )

    return answer


async def test_what_ends_while_a_call_is_under_way_is_told_together(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    ends = [make_end() for _ in range(5)]
    answers = await tell_together(make_reporter(world), line, ends)
    assert answers == [CompleteOutcome(accepted=True)] * 5
    assert sizes(line) == [1, 4]
    assert ids_of(line.told) == [str(end.attempt_id) for end in ends[1:]]
    assert line.told["boot_id"] == str(world.around.boot_id)
    assert line.told["claim"] is None
    await world.close()


async def test_what_ends_at_the_same_moment_is_told_in_one_call(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    told = make_reporter(world)
    await asyncio.gather(*(told.report(make_end()) for _ in range(8)))
    assert sizes(line) == [8]
    await world.close()


async def test_one_receipt_covers_the_successes_of_a_call_and_nothing_else(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    ends = [make_end(), make_end(), make_end(cause=Cause.EXIT_CODE), make_end()]
    await tell_together(make_reporter(world), line, ends)
    claims = world.read_receipt(line.told["receipt"])
    assert (claims["iss"], claims["aud"]) == (str(world.identity.node_id), str(world.identity.hub_id))
    assert set(claims["results"]) == {str(ends[1].attempt_id), str(ends[3].attempt_id)}
    assert claims["results"][str(ends[1].attempt_id)] == {
        "result_sha256": "ab" * 32,
        "run_seconds": 0.0,
        "exit_code": 0,
    }
    await world.close()


async def test_a_call_without_a_success_has_no_receipt(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    await tell_together(make_reporter(world), line, [make_end(cause=Cause.TIMED_OUT) for _ in range(3)])
    assert [call["receipt"] for call in line.calls] == ["", ""]
    await world.close()


async def test_a_hub_that_was_away_hears_everything_in_one_call(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    told = make_reporter(world)
    line.answers = [hang_up]
    telling = [asyncio.ensure_future(told.report(make_end())) for _ in range(7)]
    await until(lambda: len(line.calls) > 3)
    assert not any(each.done() for each in telling)
    line.calls.clear()
    line.answers = [accept]
    await asyncio.wait_for(asyncio.gather(*telling), 5)
    assert sizes(line)[-1] == 7
    await world.close()


async def test_a_call_tells_at_most_64_ends(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    await tell_together(make_reporter(world), line, [make_end() for _ in range(2 * BATCH_MAX + 2)])
    assert sizes(line) == [1, 64, 64, 1]
    await world.close()


async def test_a_call_is_never_longer_than_a_hub_would_read(
    tmp_path: Path, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "BATCH_BYTES_MAX", 5_000)
    world = World(tmp_path, line)
    ends = [make_end(), *(make_end(message="x" * 2_000) for _ in range(4)), make_end(message="x" * 9_000)]
    await tell_together(make_reporter(world), line, ends)
    assert sizes(line) == [1, 2, 2, 1]
    await world.close()


async def test_a_refusal_of_one_spoils_no_other(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    line.answers = [answer_each(late="stale_lease", wrong="invalid_request")]
    ends = [make_end(message=text) for text in ("first", "late", "good", "wrong", "good")]
    answers = await tell_together(make_reporter(world), line, ends)
    good = CompleteOutcome(accepted=True)
    assert [answers[0], answers[2], answers[4]] == [good] * 3
    assert (type(answers[1]), type(answers[3])) == (StaleLease, InvalidRequest)
    assert sizes(line) == [1, 4]
    await world.close()


async def test_only_what_the_hub_could_not_take_is_told_again(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    line.answers = [accept, answer_each(busy="hub_unavailable"), answer_each(busy="hub_unavailable"), accept]
    ends = [make_end(message=text) for text in ("first", "good", "busy", "good", "busy")]
    answers = await tell_together(make_reporter(world), line, ends)
    assert answers == [CompleteOutcome(accepted=True)] * 5
    assert sizes(line) == [1, 4, 2, 2]
    assert ids_of(line.told) == [str(ends[2].attempt_id), str(ends[4].attempt_id)]
    await world.close()


async def test_an_older_hub_without_the_call_for_many_is_told_one_by_one(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    told = make_reporter(world)
    line.answers = [accept, refuse(404, "not_found"), accept]
    answers = await tell_together(told, line, [make_end() for _ in range(4)])
    assert answers == [CompleteOutcome(accepted=True)] * 4
    assert sizes(line) == [1, 3, 1, 1, 1]
    line.calls.clear()
    await tell_together(told, line, [make_end() for _ in range(3)])
    assert sizes(line) == [1, 1, 1], "once is enough to know"
    await world.close()


async def test_a_call_that_is_refused_as_a_whole_is_told_one_by_one_to_find_the_culprit(
    tmp_path: Path, line: Line
) -> None:
    def refuse_nonsense(body: Body) -> httpx.Response:
        ends = body.get("completions", [body])
        if any(each["message"] == "nonsense" for each in ends):
            return httpx.Response(400, json={"code": "invalid_request", "message": "no"})
        return accept(body)

    world = World(tmp_path, line)
    told = make_reporter(world)
    line.answers = [refuse_nonsense]
    answers = await tell_together(told, line, [make_end(message=text) for text in ("first", "good", "nonsense")])
    assert [type(each) for each in answers] == [CompleteOutcome, CompleteOutcome, InvalidRequest]
    line.calls.clear()
    await tell_together(told, line, [make_end() for _ in range(3)])
    assert sizes(line) == [1, 2], "the call itself is not given up"
    await world.close()


async def test_too_few_answers_are_not_guessed_at(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    line.answers = [accept, lambda body: httpx.Response(200, json={"answers": [{"accepted": True}]}), accept]
    answers = await tell_together(make_reporter(world), line, [make_end() for _ in range(3)])
    assert answers == [CompleteOutcome(accepted=True)] * 3
    assert sizes(line) == [1, 2, 1, 1]
    await world.close()


async def test_a_replaced_agent_learns_so_for_every_end(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    line.answers = [accept, refuse(409, "stale_boot")]
    answers = await tell_together(make_reporter(world), line, [make_end() for _ in range(3)])
    assert [type(each) for each in answers] == [CompleteOutcome, StaleBoot, StaleBoot]
    assert sizes(line) == [1, 2]
    await world.close()


async def test_an_end_that_nobody_waits_for_any_more_is_not_told(tmp_path: Path, line: Line) -> None:
    world = World(tmp_path, line)
    told = make_reporter(world)
    ends = [make_end() for _ in range(3)]
    telling = await begin_to_tell(told, line, ends)
    telling[1].cancel()
    await asyncio.gather(telling[1], return_exceptions=True)
    line.open.set()
    await asyncio.gather(telling[0], telling[2])
    assert [each["attempt_id"] for each in line.completions] == [str(ends[0].attempt_id), str(ends[2].attempt_id)]
    await world.close()


async def test_an_agent_that_ends_leaves_no_call_behind(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    world.holdings.accept(world.assign())
    await until(lambda: runners.started)
    line.open.clear()
    runners.finish(exit_code=0)
    await until(lambda: line.calls)
    assert len(asyncio.all_tasks()) > 1
    await world.close()
    assert len(asyncio.all_tasks()) == 1


async def start(world: World, runners: Runners, *slots: str) -> list[UUID]:
    """Attempts that run in these slots."""
    orders = [make_order(slot=slot) for slot in slots]
    before = len(runners.started)
    world.holdings.accept(world.sign(*orders))
    await until(lambda: len(runners.started) == before + len(slots))
    return [order.attempt_id for order in orders]


async def test_a_completion_claims_the_slots_that_are_free_once_it_counts(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line, cpu_slots=4)
    first, second, third = await start(world, runners, "cpu:0", "cpu:1", "cpu:2")
    line.open.clear()
    runners.finish(attempt_id=first, exit_code=0)
    await until(lambda: line.calls)
    runners.finish(attempt_id=second, exit_code=0)
    assert line.told["claim"] == {"free_slots": ["cpu:0", "cpu:3"], "running": [str(second), str(third)]}
    assert world.holdings.free_slots == ("cpu:3",), "the slot is offered elsewhere only when it is really free"
    await world.close()


async def test_what_a_claim_brings_starts_when_the_slot_is_swept(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    following = world.assign(slot="cpu:0")
    line.answers = [bring(following), accept]
    runners.finish(attempt_id=first, exit_code=0)
    await until(lambda: len(runners.started) == 2)
    second = id_of(following)
    assert runners.diary == [("started", str(first)), ("cleaned", str(first)), ("started", str(second))]
    assert world.holdings.running == (second,)
    assert world.holdings.changed.is_set(), "the open call is made anew, to list the new attempt"
    runners.finish(attempt_id=second, exit_code=0)
    await world.settle()
    assert [each["cause"] for each in line.completions] == [None, None]
    await world.close()


async def test_what_two_calls_bring_is_started_once(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    following = world.assign(slot="cpu:0")
    line.answers = [bring(following), accept]
    runners.finish(attempt_id=first, exit_code=0)
    await until(lambda: id_of(following) in world.holdings.running)
    # The open call did not list it, so the hub sent it there too, under a token of its own.
    world.holdings.accept(world.sign(make_order(attempt_id=id_of(following))))
    world.holdings.accept(following)
    await until(lambda: len(runners.started) == 2)
    runners.finish(attempt_id=id_of(following), exit_code=0)
    await world.settle()
    assert len(line.completions) == 2
    assert len(runners.started) == 2
    await world.close()


async def test_work_for_a_slot_whose_completion_was_not_answered_yet_waits_for_it(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    """The hub took the completion and gave the slot away; that answer got lost, and the open call was quicker."""
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    line.open.clear()
    runners.finish(attempt_id=first, exit_code=0)
    await until(lambda: line.calls)
    following = world.assign(slot="cpu:0")
    world.holdings.accept(following)
    await asyncio.sleep(0.05)
    assert len(runners.started) == 1
    assert world.holdings.running == (first, id_of(following))
    line.open.set()
    await until(lambda: len(runners.started) == 2)
    assert len(line.completions) == 1
    await world.close()


async def test_a_slot_is_never_filled_twice(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    (first, second) = await start(world, runners, "cpu:0", "cpu:1")
    crowd = world.sign(*(make_order(slot=slot) for slot in ("cpu:0", "cpu:0", "cpu:1")))
    line.answers = [bring(crowd), accept]
    runners.finish(attempt_id=first, exit_code=0)
    await until(lambda: len(line.completions) == 3)
    await until(lambda: len(runners.started) == 3)
    kept, *refused = [str(each.attempt_id) for each in crowd.assignments]
    assert set(runners.started) == {str(first), str(second), kept}
    told = {each["attempt_id"]: each["cause"] for each in line.completions}
    assert told == {str(first): None, **dict.fromkeys(refused, "sandbox_refused")}
    # The last of them is forgotten once its completion is answered.
    await until(lambda: world.holdings.running == (second, UUID(kept)))
    await world.close()


@pytest.mark.parametrize("controls", [Controls(pause=True), Controls(drain=True)])
async def test_a_node_that_takes_no_more_claims_nothing(
    controls: Controls, tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    world.holdings.obey(controls)
    runners.finish(attempt_id=first, exit_code=0)
    await world.settle()
    assert line.told["claim"] is None
    await world.close()


async def test_a_node_that_is_about_to_end_claims_nothing(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    world.holdings.leave()
    runners.finish(attempt_id=first, exit_code=0)
    await world.settle()
    assert line.told["claim"] is None
    await world.close()


async def test_a_node_that_could_not_believe_a_token_claims_nothing(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    world.hub.has_trusted_keys = False
    runners.finish(attempt_id=first, exit_code=0)
    await world.settle()
    assert line.told["claim"] is None
    await world.close()


async def test_a_new_start_introduces_itself_before_it_claims(tmp_path: Path, line: Line, runners: Runners) -> None:
    """A claim does not list what it completes: taken for all that a new start holds, it would be wrong."""
    first = World(tmp_path, line)
    left = await start(first, runners, "cpu:0", "cpu:1")
    await first.close()
    second = World(tmp_path, line)
    second.adopt_all()
    runners.finish(attempt_id=left[0], exit_code=0)
    await until(lambda: line.calls)
    assert line.told["claim"] is None
    second.holdings.obey(Controls())
    runners.finish(attempt_id=left[1], exit_code=0)
    await second.settle()
    assert line.told["claim"] == {"free_slots": ["cpu:0", "cpu:1"], "running": []}
    await second.close()


async def test_controls_that_come_with_a_claim_are_obeyed(tmp_path: Path, line: Line, runners: Runners) -> None:
    world = World(tmp_path, line)
    first, second = await start(world, runners, "cpu:0", "cpu:1")
    line.answers = [bring(NextAnswer(controls=Controls(stop={second: Cause.CANCELLED}, pause=True)))]
    runners.finish(attempt_id=first, exit_code=0)
    await world.settle()
    assert runners.stops == ["cancelled"]
    assert [each["attempt_id"] for each in line.completions] == [str(first)]
    assert world.holdings.free_slots == ()
    await world.close()


async def test_a_fault_in_what_came_along_does_not_spoil_the_completion(
    tmp_path: Path, line: Line, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")

    def break_down(answer: NextAnswer) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(world.holdings, "accept", break_down)
    line.answers = [bring(world.assign())]
    runners.finish(attempt_id=first, exit_code=0)
    await world.settle()
    assert len(line.completions) == 1
    await world.close()


async def test_an_attempt_does_not_keep_its_forerunners_alive(tmp_path: Path, line: Line, runners: Runners) -> None:
    """One slot may run a million jobs, each brought by the completion of the one before."""
    world = World(tmp_path, line)
    (first,) = await start(world, runners, "cpu:0")
    forerunner = weakref.ref(world.holdings._attempts[first])
    line.answers = [bring(world.assign(slot="cpu:0"))]
    runners.finish(attempt_id=first, exit_code=0)
    await until(lambda: len(runners.started) == 2)
    gc.collect()
    assert forerunner() is None
    await world.close()


async def test_the_open_call_is_made_anew_when_a_claim_was_answered(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world = World(tmp_path, line)
    loop = ClaimLoop(world.hub, world.holdings, Rhythm(), world.around.config, boot_id=world.around.boot_id)
    claiming = asyncio.ensure_future(loop.run())
    await until(lambda: line.parked)
    assert line.nexts[-1]["free_slots"] == ["cpu:0", "cpu:1"]
    given = world.assign(slot="cpu:0")
    line.answer_parked(given)
    await until(lambda: len(line.nexts) == 2)
    assert (line.nexts[-1]["free_slots"], line.nexts[-1]["running"]) == (["cpu:1"], [str(id_of(given))])
    following = world.assign(slot="cpu:0")
    line.answers = [bring(following), accept]
    await until(lambda: runners.started)
    runners.finish(attempt_id=id_of(given), exit_code=0)
    await until(lambda: line.nexts[-1]["running"] == [str(id_of(following))])
    assert line.nexts[-1]["free_slots"] == ["cpu:1"]
    await until(lambda: len(runners.started) == 2)
    runners.finish(attempt_id=id_of(following), exit_code=0)
    await until(lambda: line.nexts[-1]["free_slots"] == ["cpu:0", "cpu:1"])
    assert line.nexts[-1]["running"] == []
    assert len(line.nexts) == 4, "once per change, and never because nothing happened"
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await world.close()


async def test_a_machine_that_fails_its_own_check_offers_no_slot_and_does_again_once_mended(
    tmp_path: Path, line: Line, runners: Runners
) -> None:
    world, doubts = World(tmp_path, line), ["The disk is full."]
    loop = ClaimLoop(
        world.hub,
        world.holdings,
        Rhythm(),
        world.around.config,
        boot_id=world.around.boot_id,
        find_doubt=lambda: doubts[0] if doubts else None,
    )
    claiming = asyncio.ensure_future(loop.run())
    await until(lambda: line.parked)
    assert line.nexts[-1]["free_slots"] == []
    doubts.clear()
    world.holdings.changed.set()
    await until(lambda: line.nexts[-1]["free_slots"] == ["cpu:0", "cpu:1"])
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await world.close()
