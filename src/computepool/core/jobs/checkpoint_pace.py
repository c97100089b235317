"""When the next checkpoint is due, so that the one before it is no older than one interval when it has arrived.

Counted from the moment at which the work was as it was saved last, not from the moment at which it was taken or had
arrived: what a slow line or a late look adds would otherwise be added again at every turn. Apart from the rules of
the hub, because the runner reads it and imports little; `computepool.job`, which stands alone inside of the sandbox,
repeats the numbers.
"""

from __future__ import annotations

# Saved with so much of the interval left, it has arrived when the interval is over.
LEAD_SHARE = 0.25
# Where saving takes longer than this part, the promise cannot be kept without doing little else than saving.
LEAD_SHARE_MAX = 0.5
# Until something was measured: one look of the runner and one of the agent, which come twice a second each.
FIRST_COST_SECONDS = 1.0


def find_lead_seconds(every_seconds: float, cost_seconds: float) -> float:
    """How long before the end of an interval the job is to save."""
    return min(LEAD_SHARE_MAX * every_seconds, max(LEAD_SHARE * every_seconds, cost_seconds))


def find_due_at(saved_at: float, *, every_seconds: float, cost_seconds: float) -> float:
    """`saved_at`: when the work was as the last checkpoint holds it; before the first one, when the job began."""
    return saved_at + every_seconds - find_lead_seconds(every_seconds, cost_seconds)


def learn_cost(known_seconds: float, last_seconds: float, *, every_seconds: float) -> float:
    """What the next one is expected to take: up at once, down by halves. A hub that was away is forgotten soon."""
    last = min(max(0.0, last_seconds), LEAD_SHARE_MAX * every_seconds)
    return max(last, (known_seconds + last) / 2)
