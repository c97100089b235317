"""The life of a top-up: cash that comes in for credits, and may be taken back long after they were spent."""

from __future__ import annotations

from enum import Enum

from computepool.core.payments.life import Life, Step


class TopUpState(str, Enum):
    REQUESTED = "requested"
    PAID = "paid"
    FAILED = "failed"  # not the end: cash that arrives all the same counts
    REFUNDED = "refunded"
    CHARGED_BACK = "charged_back"
    PAID_BACK_TWICE = "paid_back_twice"  # refunded by us and charged back by the bank, in whatever order


class TopUpWord(str, Enum):
    OPENED = "opened"  # the provider waits for the person to pay
    PAID = "paid"
    FAILED = "failed"
    REFUNDED = "refunded"
    CHARGED_BACK = "charged_back"


TopUpStep = Step[TopUpState, TopUpWord]

S, W = TopUpState, TopUpWord
TOP_UP_LIFE = Life(
    transitions={
        (S.REQUESTED, W.PAID): S.PAID,
        (S.REQUESTED, W.FAILED): S.FAILED,
        (S.FAILED, W.PAID): S.PAID,
        (S.PAID, W.REFUNDED): S.REFUNDED,
        (S.PAID, W.CHARGED_BACK): S.CHARGED_BACK,
        (S.REFUNDED, W.CHARGED_BACK): S.PAID_BACK_TWICE,
        (S.CHARGED_BACK, W.REFUNDED): S.PAID_BACK_TWICE,
    },
    implied={W.REFUNDED: W.PAID, W.CHARGED_BACK: W.PAID},
    old_news={
        S.REQUESTED: frozenset({W.OPENED}),
        S.FAILED: frozenset({W.OPENED, W.FAILED}),
        # A first try that failed is told late, after the second that did not.
        S.PAID: frozenset({W.OPENED, W.FAILED, W.PAID}),
        S.REFUNDED: frozenset({W.OPENED, W.FAILED, W.PAID, W.REFUNDED}),
        S.CHARGED_BACK: frozenset({W.OPENED, W.FAILED, W.PAID, W.CHARGED_BACK}),
        S.PAID_BACK_TWICE: frozenset(W),
    },
)
