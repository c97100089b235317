"""Accounts, keys and sign-in."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from computepool.core.accounts.roles import Role, SignUp
from computepool.core.jobs.order import PriorityClass
from computepool.wire.nodes import HubKey


class HubView(msgspec.Struct, frozen=True, kw_only=True):
    hub_id: UUID
    version: str
    demo: bool
    sign_up: SignUp
    beat_seconds: float
    lease_seconds: float
    hub_keys: list[HubKey]
    # Where gRPC is to be dialled, as host:port; empty when this hub has none.
    rpc_address: str = ""
    rpc_tls: bool = False
    # Whether it serves the dashboard.
    site: bool = False
    # Where its operator says that it is, ISO-2.
    country: str | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    queued_slices_max: int
    stored_bytes_max: int
    calls_per_minute_max: int
    # In 30 days, by the operator's word; absent: as many as others.
    new_nodes_max: int | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    email: str
    name: str
    roles: list[Role]
    limits: Limits
    stored_bytes: int
    created_at: datetime
    suspended_at: datetime | None = None
    # Its part of the fleet while others wait too, against theirs.
    fair_weight: float = 1.0
    # The highest class that its jobs may ask for.
    priority_class_max: PriorityClass = PriorityClass.NORMAL


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What strangers see of an account."""

    pseudonym: str
    # Whether it is listed among those who lend, under its pseudonym.
    on_leaderboard: bool
    # Whether strangers may read the names of its jobs.
    shows_titles: bool


class ChangeProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is absent stays as it is."""

    # 3 to 30 letters, digits, spaces and - _ . between them; empty: one is made for you again.
    pseudonym: str | None = None
    on_leaderboard: bool | None = None
    shows_titles: bool | None = None


class AccountPage(msgspec.Struct, frozen=True, kw_only=True):
    accounts: list[Account]


class ChangeAccount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator may change; what is absent stays as it is."""

    roles: tuple[Role, ...] | None = None
    queued_slices_max: int | None = None
    stored_bytes_max: int | None = None
    calls_per_minute_max: int | None = None
    fair_weight: float | None = None
    priority_class_max: PriorityClass | None = None
    # How many new nodes it may bring in 30 days.
    new_nodes_max: int | None = None


class SignUpRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    email: str
    name: str = ""
    password: str | None = None
    invite: str | None = None


class SignInRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a one-time link's token, or email and password."""

    link_token: str | None = None
    email: str | None = None
    password: str | None = None


class SetPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    password: str


class SignInLink(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    path: str
    expires_at: datetime


class CreateInvite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    roles: tuple[Role, ...] = (Role.SUBMITTER, Role.OWNER)
    expires_seconds: int = 7 * 86_400


class Invite(msgspec.Struct, frozen=True, kw_only=True):
    invite: str
    expires_at: datetime


class CreateKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    # Which of the account's roles the key may act in; all of them when empty.
    roles: tuple[Role, ...] = ()
    expires_seconds: int | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    roles: list[Role]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is shown here once and never again."""

    key: Key
    secret: str


class KeyPage(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[Key]


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    account: Account
    key: CreatedKey


class RotatedKeys(msgspec.Struct, frozen=True, kw_only=True):
    hub_keys: list[HubKey]
    # From this moment on job tokens are signed by the newest key.
    signs_from: datetime
