"""Roles, and the rule that a credential never reaches further than its account."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Role(str, Enum):
    SUBMITTER = "submitter"
    OWNER = "owner"
    OPERATOR = "operator"


class SignUp(str, Enum):
    OPEN = "open"
    INVITE = "invite"
    CLOSED = "closed"


DEFAULT_ROLES = frozenset({Role.SUBMITTER, Role.OWNER})


def effective_roles(account: Iterable[Role], key: Iterable[Role]) -> frozenset[Role]:
    """A key made while the account had a role must not keep it alive after the account has lost it."""
    return frozenset(account) & frozenset(key)
