"""What a hub remembers of keys and of limits is read again before its time is over, while nobody waits.

Safety first: what was forgotten does not come back, and no limit is passed. Beside each claim stands its control.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from computepool import entropy
from computepool.core.errors import AccountSuspended, LimitExceeded, Unauthenticated
from computepool.core.ids import KeyId
from computepool.hub.services import allowances as allowance_service
from computepool.hub.services import callers as caller_service
from computepool.hub.services.allowances import ALLOWANCE_SECONDS, NOTHING
from computepool.hub.services.callers import KEY_PREFIX, MEMORY_SECONDS, AccountCaller, Callers, hash_secret
from computepool.hub.store import accounts as account_store
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import keys as key_store
from computepool.hub.store.connect import create_pool
from computepool.wire.jobs import InputFile
from tests.support.builders import SHA256
from tests.support.postgres import wait_for
from tests.support.spine import Spine, open_spine

# When both have so little left that they are renewed, and are still good.
AGEING = 0.1
LIMIT = 5


class Clock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def seconds(self) -> float:
        return self.at


@dataclass
class Looks:
    """Stands around a look-up: notes who makes it, and holds it up before it reads or before it answers, or fails."""

    really: Callable[..., Any]
    tasks: list[asyncio.Task[Any] | None] = field(default_factory=list)
    read_count: int = 0
    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.may_read.set()
        self.may_answer.set()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.tasks.append(asyncio.current_task())
        await self.may_read.wait()
        if self.error is not None:
            raise self.error
        found = await self.really(*args, **kwargs)
        self.read_count += 1
        await self.may_answer.wait()
        return found

    @property
    def count(self) -> int:
        return len(self.tasks)

    @property
    def own_count(self) -> int:
        """Those that the test itself has waited for."""
        return self.tasks.count(asyncio.current_task())

    async def wait_until_read(self, count: int) -> None:
        await soon(lambda: self.read_count >= count, what=f"{count} reads")


async def soon(check: Callable[[], object], *, what: str) -> None:
    await wait_for(check, seconds=20, every=0.002, what=what)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(caller_service.clock, "seconds", clock.seconds)
    return clock


@pytest.fixture
async def spine(dsn: str, clock: Clock) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    """What nobody has caught, as the loop was told of it."""
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    return heard


# Keys


@dataclass(frozen=True)
class Holder:
    caller: AccountCaller
    key_id: KeyId
    secret: str = field(repr=False)


async def make_key(spine: Spine) -> Holder:
    caller, secret, key_id = await spine.sign_up(), KEY_PREFIX + entropy.new_secret(), KeyId(entropy.new_id())
    async with spine.pool.acquire() as conn:
        await key_store.insert_key(
            conn,
            id=key_id,
            account_id=caller.account_id,
            name="key",
            secret_sha256=hash_secret(secret),
            roles=caller.roles,
            expires_seconds=None,
        )
    return Holder(caller, key_id, secret)


async def revoke(spine: Spine, holder: Holder) -> None:
    async with spine.pool.acquire() as conn:
        assert await key_store.revoke_key(conn, id=holder.key_id, account_id=holder.caller.account_id)


async def suspend(spine: Spine, holder: Holder) -> None:
    async with spine.pool.acquire() as conn:
        await account_store.set_suspended(conn, id=holder.caller.account_id, suspended=True)


@pytest.fixture
def key_looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks(key_store.find_caller)
    monkeypatch.setattr(key_store, "find_caller", looks)
    return looks


@pytest.fixture
def callers(spine: Spine, key_looks: Looks) -> Callers:
    return Callers(spine.pool, spine.keyring)


async def settle(callers: Callers) -> None:
    await soon(lambda: not callers._renewals, what="the end of all renewals")


async def test_a_key_in_use_is_renewed_while_nobody_waits(spine, callers, clock, key_looks):
    holder = await make_key(spine)
    known = await callers.get_account(holder.secret)
    assert known.account_id == holder.caller.account_id
    key_looks.may_answer.clear()
    clock.at += MEMORY_SECONDS - AGEING
    assert callers.recall_account(holder.secret) == known
    await key_looks.wait_until_read(2)
    # Under way, and nobody is the slower for it.
    assert callers.recall_account(holder.secret) == known
    assert await callers.get_account(holder.secret) == known
    key_looks.may_answer.set()
    await settle(callers)
    # Longer than the first look was good for.
    clock.at += MEMORY_SECONDS - caller_service.RENEWAL_SECONDS - AGEING
    assert callers.recall_account(holder.secret) == known
    assert (key_looks.count, key_looks.own_count) == (2, 1)


async def test_a_key_in_steady_use_is_waited_for_once(spine, callers, clock, key_looks):
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    for _ in range(100):
        clock.at += caller_service.RENEWAL_SECONDS / 2
        assert callers.recall_account(holder.secret) is not None
        await settle(callers)
    assert key_looks.own_count == 1
    # Each is good for its time but for the last part of it.
    passed = 50 * caller_service.RENEWAL_SECONDS
    assert key_looks.count - 1 <= passed / (MEMORY_SECONDS - caller_service.RENEWAL_SECONDS)


async def test_control_without_renewals_a_key_in_steady_use_is_waited_for_again(
    spine, callers, clock, key_looks, monkeypatch
):
    monkeypatch.setattr(caller_service, "RENEWAL_SECONDS", 0.0)
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    clock.at += MEMORY_SECONDS - AGEING
    assert callers.recall_account(holder.secret) is not None
    clock.at += 2 * AGEING
    assert callers.recall_account(holder.secret) is None
    assert key_looks.count == 1


async def test_a_key_that_is_young_or_not_used_is_not_looked_up_again(spine, callers, clock, key_looks):
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    clock.at += MEMORY_SECONDS - caller_service.RENEWAL_SECONDS - AGEING
    assert callers.recall_account(holder.secret) is not None
    clock.at += caller_service.RENEWAL_SECONDS + AGEING
    assert callers.recall_account(holder.secret) is None
    assert not callers._renewals
    assert key_looks.count == 1


async def test_a_key_has_one_renewal_at_a_time(spine, callers, clock, key_looks):
    holders = [await make_key(spine) for _ in range(2)]
    for holder in holders:
        await callers.get_account(holder.secret)
    key_looks.may_answer.clear()
    clock.at += MEMORY_SECONDS - AGEING
    for _ in range(10):
        for holder in holders:
            assert callers.recall_account(holder.secret) is not None
        await asyncio.sleep(0)
    await key_looks.wait_until_read(4)
    key_looks.may_answer.set()
    await settle(callers)
    assert key_looks.count == 4


async def test_control_renewals_that_are_not_noted_pile_up(spine, callers, clock, key_looks):
    class Forgetful(dict):
        def __contains__(self, key: object) -> bool:
            return False

        def __delitem__(self, key: object) -> None:
            self.pop(key, None)

    callers._renewals = Forgetful()
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    key_looks.may_read.clear()
    clock.at += MEMORY_SECONDS - AGEING
    # As many as the pool has connections: the others would wait for one.
    for _ in range(5):
        callers.recall_account(holder.secret)
    await soon(lambda: key_looks.count == 6, what="a look for each use")
    key_looks.may_read.set()
    await key_looks.wait_until_read(6)
    await settle(callers)


@pytest.mark.parametrize(("end", "refusal"), [(revoke, Unauthenticated), (suspend, AccountSuspended)])
async def test_a_key_that_is_good_no_more_is_forgotten_by_its_renewal(
    spine, callers, clock, key_looks, complaints, end, refusal
):
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    await end(spine, holder)
    clock.at += MEMORY_SECONDS - AGEING
    # What is remembered counts until the answer is there.
    assert callers.recall_account(holder.secret) is not None
    await settle(callers)
    assert callers.recall_account(holder.secret) is None
    with pytest.raises(refusal):
        await callers.get_account(holder.secret)
    assert complaints == []


async def test_control_a_renewal_that_forgets_nothing_lets_a_revoked_key_in(spine, callers, clock, key_looks):
    """Until its time is over, and no longer."""

    class Keeping(dict):
        def pop(self, *args: object) -> None:
            pass

    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    callers._remembered = Keeping(callers._remembered)
    await revoke(spine, holder)
    clock.at += MEMORY_SECONDS - AGEING
    callers.recall_account(holder.secret)
    await settle(callers)
    assert callers.recall_account(holder.secret) is not None
    await settle(callers)
    clock.at += AGEING
    assert callers.recall_account(holder.secret) is None


async def test_a_renewal_that_fails_leaves_the_key_until_its_time_is_over(
    spine, callers, clock, key_looks, complaints, caplog
):
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    key_looks.error = OSError("the database is away")
    clock.at += MEMORY_SECONDS - 2 * AGEING
    with caplog.at_level(logging.WARNING, "computepool.callers"):
        assert callers.recall_account(holder.secret) is not None
        await settle(callers)
    assert "key_not_renewed" in caplog.text
    assert holder.secret not in caplog.text
    clock.at += AGEING
    assert callers.recall_account(holder.secret) is not None
    await settle(callers)
    # It was tried with each use.
    assert key_looks.count == 3
    clock.at += AGEING
    assert callers.recall_account(holder.secret) is None
    with pytest.raises(OSError, match="away"):
        await callers.get_account(holder.secret)
    key_looks.error = None
    assert (await callers.get_account(holder.secret)).account_id == holder.caller.account_id
    assert complaints == []


async def test_control_what_a_renewal_does_not_catch_is_complained_of(
    spine, callers, clock, key_looks, complaints, monkeypatch
):
    def fail(*args: object) -> None:
        raise RuntimeError("nobody catches this")

    monkeypatch.setattr(caller_service.log, "warning", fail)
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    key_looks.error = OSError("the database is away")
    clock.at += MEMORY_SECONDS - AGEING
    callers.recall_account(holder.secret)
    await settle(callers)
    key_looks.tasks.clear()
    gc.collect()
    assert [type(complaint["exception"]) for complaint in complaints] == [RuntimeError]


async def test_the_next_use_renews_a_key_whose_renewal_has_failed(spine, callers, clock, key_looks):
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    key_looks.error = OSError("the database is away")
    clock.at += MEMORY_SECONDS - AGEING
    callers.recall_account(holder.secret)
    await settle(callers)
    key_looks.error = None
    callers.recall_account(holder.secret)
    await settle(callers)
    clock.at += 2 * AGEING
    assert callers.recall_account(holder.secret) is not None


async def test_a_pool_that_is_gone_does_no_harm_to_those_who_are_remembered(spine, dsn, clock, complaints):
    pool = await create_pool(dsn, size_max=1)
    callers, holder = Callers(pool, spine.keyring), await make_key(spine)
    await callers.get_account(holder.secret)
    await pool.close()
    clock.at += MEMORY_SECONDS - AGEING
    for _ in range(2):
        assert callers.recall_account(holder.secret) is not None
        await settle(callers)
    clock.at += AGEING
    assert callers.recall_account(holder.secret) is None
    assert complaints == []


def forget_all(callers: Callers, holder: Holder) -> None:
    callers.forget_all()


def forget_account(callers: Callers, holder: Holder) -> None:
    callers.forget_account(holder.caller.account_id)


async def revoke_while_it_is_looked_up(
    spine: Spine,
    callers: Callers,
    clock: Clock,
    looks: Looks,
    *,
    forget: Callable[[Callers, Holder], None],
    is_renewal: bool,
) -> Holder:
    """The key is read, then revoked and forgotten, and then comes the answer."""
    holder = await make_key(spine)
    looking: asyncio.Task[AccountCaller] | None = None
    if is_renewal:
        await callers.get_account(holder.secret)
        looks.may_answer.clear()
        clock.at += MEMORY_SECONDS - AGEING
        callers.recall_account(holder.secret)
        await looks.wait_until_read(2)
    else:
        looks.may_answer.clear()
        looking = asyncio.create_task(callers.get_account(holder.secret))
        await looks.wait_until_read(1)
    await revoke(spine, holder)
    forget(callers, holder)
    looks.may_answer.set()
    await settle(callers)
    if looking is not None:
        # Whoever asked before the key was revoked is answered as of then.
        assert (await looking).account_id == holder.caller.account_id
    return holder


@pytest.mark.parametrize("is_renewal", [False, True], ids=["first look", "renewal"])
@pytest.mark.parametrize("forget", [forget_all, forget_account])
async def test_a_look_that_was_under_way_when_keys_were_forgotten_does_not_bring_one_back(
    spine, callers, clock, key_looks, forget, is_renewal
):
    holder = await revoke_while_it_is_looked_up(
        spine, callers, clock, key_looks, forget=forget, is_renewal=is_renewal
    )
    assert callers.recall_account(holder.secret) is None
    with pytest.raises(Unauthenticated):
        await callers.get_account(holder.secret)


@pytest.mark.parametrize("is_renewal", [False, True], ids=["first look", "renewal"])
@pytest.mark.parametrize("forget", [forget_all, forget_account])
async def test_control_a_hub_that_does_not_count_what_it_forgets_lets_a_revoked_key_in(
    spine, clock, key_looks, monkeypatch, forget, is_renewal
):
    never = property(lambda self: 0, lambda self, count: None)
    monkeypatch.setattr(Callers, "_forgotten_count", never, raising=False)
    callers = Callers(spine.pool, spine.keyring)
    holder = await revoke_while_it_is_looked_up(
        spine, callers, clock, key_looks, forget=forget, is_renewal=is_renewal
    )
    assert callers.recall_account(holder.secret) is not None


async def test_a_key_that_was_forgotten_while_it_was_renewed_is_remembered_when_it_is_used_again(
    spine, callers, clock, key_looks
):
    holder = await make_key(spine)
    await callers.get_account(holder.secret)
    key_looks.may_answer.clear()
    clock.at += MEMORY_SECONDS - AGEING
    callers.recall_account(holder.secret)
    await key_looks.wait_until_read(2)
    callers.forget_all()
    assert callers.recall_account(holder.secret) is None
    key_looks.may_answer.set()
    assert await callers.get_account(holder.secret) == callers.recall_account(holder.secret)
    await settle(callers)


# Allowances


@pytest.fixture
def usage_looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks(account_store.list_usage)
    monkeypatch.setattr(account_store, "list_usage", looks)
    return looks


async def end_renewal(spine: Spine) -> None:
    """Raises what it has raised."""
    assert spine.submissions.allowances._renewal is not None
    async with asyncio.timeout(20):
        await spine.submissions.allowances._renewal


async def count_slices(spine: Spine, by: AccountCaller) -> int:
    return await spine.fetch_value(
        "SELECT count(*) FROM slices JOIN jobs ON jobs.id = job_id WHERE jobs.account_id = $1", by.account_id
    )


async def fill_up(spine: Spine, by: AccountCaller) -> int:
    """Slices that there are when the hub takes no more, one by one."""
    for _ in range(3 * LIMIT):
        try:
            await spine.submit(by=by)
        except LimitExceeded:
            return await count_slices(spine, by)
    raise AssertionError("it takes any number")


async def test_an_ageing_allowance_is_read_again_while_no_submit_waits(spine, clock, usage_looks):
    caller = await spine.sign_up()
    await spine.submit(by=caller)
    usage_looks.may_answer.clear()
    clock.at += ALLOWANCE_SECONDS - AGEING
    async with asyncio.timeout(20):
        await spine.submit(by=caller)
        await usage_looks.wait_until_read(2)
        # Under way, and nobody is the slower for it, nor is it begun again.
        await spine.submit(by=caller)
    usage_looks.may_answer.set()
    await end_renewal(spine)
    # Longer than the first look was good for.
    clock.at += ALLOWANCE_SECONDS - allowance_service.RENEWAL_SECONDS - AGEING
    await spine.submit(by=caller)
    assert (usage_looks.count, usage_looks.own_count) == (2, 1)


async def test_control_without_renewals_a_submit_waits_for_a_look(spine, clock, usage_looks, monkeypatch):
    monkeypatch.setattr(allowance_service, "RENEWAL_SECONDS", 0.0)
    caller = await spine.sign_up()
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - AGEING
    await spine.submit(by=caller)
    clock.at += 2 * AGEING
    await spine.submit(by=caller)
    assert (usage_looks.count, usage_looks.own_count) == (2, 2)


async def test_a_young_allowance_is_not_read_again(spine, clock, usage_looks):
    caller = await spine.sign_up()
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - allowance_service.RENEWAL_SECONDS - AGEING
    await spine.submit(by=caller)
    assert spine.submissions.allowances._renewal is None
    assert usage_looks.count == 1


async def test_of_a_batch_those_are_read_again_that_are_ageing(spine, clock, usage_looks):
    old, young = await spine.sign_up(), await spine.sign_up()
    await spine.submit(by=old)
    clock.at += ALLOWANCE_SECONDS - AGEING
    await spine.submit(by=young)
    first = spine.submissions.allowances._known[young.account_id]
    await spine.submit_all(spine.submission(young), spine.submission(old))
    await end_renewal(spine)
    assert spine.submissions.allowances._known[young.account_id] is first
    clock.at += 2 * AGEING
    await spine.submit_all(spine.submission(young), spine.submission(old))
    assert (usage_looks.count, usage_looks.own_count) == (3, 2)


async def submit_while_it_is_read(spine: Spine, clock: Clock, looks: Looks, *, before_reading: bool) -> AccountCaller:
    """Four slices of five: one at first, one by the submit that finds the allowance old, and two while it is read."""
    caller = await spine.sign_up(queued_slices_max=LIMIT)
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - AGEING
    looks.may_read.clear()
    looks.may_answer.clear()
    await spine.submit(by=caller)
    await soon(lambda: looks.count == 2, what="the renewal")
    if before_reading:
        await spine.submit(by=caller, slice_count=2)
        looks.may_read.set()
        await looks.wait_until_read(2)
    else:
        looks.may_read.set()
        await looks.wait_until_read(2)
        await spine.submit(by=caller, slice_count=2)
    looks.may_answer.set()
    await end_renewal(spine)
    return caller


@pytest.fixture
def forgetting_what_was_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    really = allowance_service._Allowance

    def forget(usage, good_until, taken=NOTHING, *, fresh=False):
        return really(usage, good_until, fresh=fresh)

    monkeypatch.setattr(allowance_service, "_Allowance", forget)


async def test_what_is_let_in_after_the_read_is_counted(spine, clock, usage_looks):
    caller = await submit_while_it_is_read(spine, clock, usage_looks, before_reading=False)
    with pytest.raises(LimitExceeded, match="4 unfinished slices; with 2 more"):
        await spine.submit(by=caller, slice_count=2)
    assert await fill_up(spine, caller) == LIMIT


async def test_control_a_renewal_that_forgets_what_was_let_in_meanwhile_passes_the_limit(
    spine, clock, usage_looks, forgetting_what_was_let_in
):
    caller = await submit_while_it_is_read(spine, clock, usage_looks, before_reading=False)
    assert await fill_up(spine, caller) == LIMIT + 2


async def test_what_is_counted_twice_refuses_nobody(spine, clock, usage_looks):
    caller = await submit_while_it_is_read(spine, clock, usage_looks, before_reading=True)
    allowance = spine.submissions.allowances._known[caller.account_id]
    assert allowance.usage.open_slices == 4
    assert allowance.usage.open_slices + allowance.taken.slice_count > LIMIT
    assert usage_looks.own_count == 1
    await spine.submit(by=caller)
    # It stood before the limit, and was judged by a look of its own.
    assert usage_looks.own_count == 2
    assert await fill_up(spine, caller) == LIMIT


async def test_control_a_refusal_by_what_is_remembered_hits_the_innocent(spine, clock, usage_looks, monkeypatch):
    really = allowance_service._Allowance

    def trust(usage, good_until, taken=NOTHING, *, fresh=False):
        return really(usage, good_until, taken, fresh=True)

    monkeypatch.setattr(allowance_service, "_Allowance", trust)
    caller = await submit_while_it_is_read(spine, clock, usage_looks, before_reading=True)
    assert await fill_up(spine, caller) == LIMIT - 1


async def test_the_submit_that_finds_an_allowance_ageing_is_counted_though_it_is_written_after_the_read(
    spine, clock, usage_looks, monkeypatch
):
    """It is let in before the renewal begins and written after it has read: neither look may lose it."""
    caller = await spine.sign_up(queued_slices_max=LIMIT)
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - AGEING
    insert = job_store.insert_jobs

    async def insert_late(*args: Any, **kwargs: Any) -> Any:
        await usage_looks.wait_until_read(2)
        return await insert(*args, **kwargs)

    with monkeypatch.context() as late:
        late.setattr(job_store, "insert_jobs", insert_late)
        await spine.submit(by=caller, slice_count=3)
    await end_renewal(spine)
    assert await fill_up(spine, caller) == LIMIT


async def test_an_account_that_was_forgotten_while_it_was_read_is_asked_for_anew(spine, clock, usage_looks):
    caller = await lower_limit_while_it_is_read(spine, clock, usage_looks)
    with pytest.raises(LimitExceeded, match="limit of 2"):
        await spine.submit(by=caller)


async def test_control_a_renewal_that_brings_back_what_was_forgotten_passes_the_new_limit(spine, clock, usage_looks):
    class Undying(dict):
        """Answers a renewal as if nothing had been forgotten."""

        def pop(self, key, default=None):
            self.forgotten = {key: super().pop(key, default)}

        def get(self, key, default=None):
            return super().get(key) or self.forgotten[key]

    spine.submissions.allowances._known = Undying()
    caller = await lower_limit_while_it_is_read(spine, clock, usage_looks)
    await spine.submit(by=caller)
    assert await count_slices(spine, caller) == 3


async def lower_limit_while_it_is_read(spine: Spine, clock: Clock, looks: Looks) -> AccountCaller:
    """To the two slices that there are, as the hub hears of it."""
    caller = await spine.sign_up(queued_slices_max=LIMIT)
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - AGEING
    looks.may_answer.clear()
    await spine.submit(by=caller)
    await looks.wait_until_read(2)
    await spine.fetch("UPDATE accounts SET queued_slices_max = 2 WHERE id = $1", caller.account_id)
    spine.submissions.allowances.forget(caller.account_id)
    looks.may_answer.set()
    await end_renewal(spine)
    return caller


@pytest.mark.parametrize("all_of_them", [False, True], ids=["one", "all"])
async def test_an_account_that_is_forgotten_before_its_renewal_begins_does_it_no_harm(
    spine, clock, usage_looks, monkeypatch, all_of_them
):
    """A task begins when those before it have had their turn: the hub may have heard of a change by then."""
    caller = await spine.sign_up()
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - AGEING

    def hear_of_change(*args: object) -> None:
        if all_of_them:
            spine.submissions.allowances.forget_all()
        else:
            spine.submissions.allowances.forget(caller.account_id)

    with monkeypatch.context() as change:
        # Asked after the account was judged, and before the submit waits for anything.
        change.setattr(spine.bench, "take_slot", hear_of_change)
        await spine.submit(by=caller)
    await end_renewal(spine)
    await spine.submit(by=caller)


@pytest.mark.parametrize("all_of_them", [False, True], ids=["one", "all"])
async def test_an_account_that_is_forgotten_while_its_files_are_looked_for_can_submit(
    spine, monkeypatch, all_of_them
):
    """Between the look at its allowance and the use of it the submit waits, and the hub may hear of a change."""
    caller = await spine.sign_up()
    async with spine.pool.acquire() as conn, conn.transaction():
        await artifact_store.record_artifact(
            conn, account_id=caller.account_id, sha256=bytes.fromhex(SHA256), size_bytes=3
        )
    really = artifact_store.list_present

    async def hear_of_change(*args: Any) -> Any:
        found = await really(*args)
        if all_of_them:
            spine.submissions.allowances.forget_all()
        else:
            spine.submissions.allowances.forget(caller.account_id)
        return found

    monkeypatch.setattr(artifact_store, "list_present", hear_of_change)
    await spine.submit(by=caller, files=(InputFile(path="data", sha256=SHA256, size_bytes=3),))


async def test_a_renewal_that_fails_does_no_harm_and_the_next_submit_reads_for_itself(
    spine, clock, usage_looks, complaints, caplog
):
    caller = await spine.sign_up(queued_slices_max=LIMIT)
    await spine.submit(by=caller)
    usage_looks.error = OSError("the database is away")
    clock.at += ALLOWANCE_SECONDS - AGEING
    with caplog.at_level(logging.WARNING, "computepool.submissions"):
        await spine.submit(by=caller)
        await end_renewal(spine)
    assert "allowances_not_renewed" in caplog.text
    # What was remembered still counts, and the next one tries again.
    await spine.submit(by=caller)
    await end_renewal(spine)
    assert (usage_looks.count, usage_looks.own_count) == (3, 1)
    clock.at += 2 * AGEING
    with pytest.raises(OSError, match="away"):
        await spine.submit(by=caller)
    usage_looks.error = None
    await spine.submit(by=caller)
    assert await fill_up(spine, caller) == LIMIT
    assert complaints == []


async def test_an_allowance_that_grew_old_while_it_was_renewed_is_read_by_the_submit_that_needs_it(
    spine, clock, usage_looks
):
    """A renewal that hangs holds nobody up, and what it brings at last is older than what is known by then."""
    caller = await spine.sign_up(queued_slices_max=LIMIT)
    await spine.submit(by=caller)
    clock.at += ALLOWANCE_SECONDS - AGEING
    usage_looks.may_answer.clear()
    await spine.submit(by=caller)
    await usage_looks.wait_until_read(2)
    clock.at += 2 * AGEING
    submitting = asyncio.create_task(spine.submit(by=caller, slice_count=2))
    await usage_looks.wait_until_read(3)
    usage_looks.may_answer.set()
    await submitting
    await end_renewal(spine)
    assert await fill_up(spine, caller) == LIMIT
