"""Repeats a call until the hub answers it: 1, 2, 4 .. 30 s apart, or when the hub said so.

Refuses to repeat what the hub has answered: a refusal goes to the caller, who knows what it means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from computepool import entropy
from computepool.core.errors import ComputePoolError, Unauthenticated
from computepool.core.jobs.polling import retry_seconds
from computepool.node import journal

Answer = TypeVar("Answer")


async def until_answered(
    call: Callable[[], Awaitable[Answer]],
    *,
    what: str,
    give_up_on: tuple[type[ComputePoolError], ...] = (),
    **ids: object,
) -> Answer:
    """`give_up_on` names refusals that would otherwise be repeated."""
    failure_count = 0
    while True:
        try:
            return await call()
        except ComputePoolError as error:
            if not is_worth_repeating(error) or isinstance(error, give_up_on):
                raise
            failure_count += 1
            wait = wait_seconds(error, failure_count)
            journal.warning(f"{what}_delayed", **ids, reason=error.message, wait_seconds=wait)
        await asyncio.sleep(wait)


async def keep_calling(
    call: Callable[[], Awaitable[None]], *, every_seconds: float, is_over: Callable[[], bool]
) -> None:
    """Again and again until it is over or this is cancelled; after a failure when the hub may be there again."""
    failure_count = 0
    while not is_over():
        try:
            await call()
            failure_count, wait = 0, every_seconds
        except ComputePoolError as error:
            failure_count += 1
            wait = wait_seconds(error, failure_count)
        await asyncio.sleep(wait)


def is_worth_repeating(error: ComputePoolError) -> bool:
    """A refused token is renewed on the way; if that did not help, the hub may be in the middle of a change."""
    return error.retryable or isinstance(error, Unauthenticated)


def wait_seconds(error: ComputePoolError, failure_count: int, *, seconds_max: float = 30.0) -> float:
    """The hub's own word, if it gave one; never sooner than that, and never all agents at once."""
    told = float(error.details.get("retry_after_seconds", 0.0))
    jitter = entropy.jitter()
    return max(retry_seconds(failure_count, jitter=jitter, seconds_max=seconds_max), told * (1 + 0.25 * jitter))
