"""Accounts, keys and sign-in."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
from starlette.responses import Response

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.hub.http.routing import COOKIE, Access, Call, Routes, check_origin
from computepool.hub.services import accounts as service
from computepool.hub.services import profiles
from computepool.hub.services.accounts import LINK_SECONDS, SIGN_IN_KEY_SECONDS, NewKey
from computepool.hub.services.blocked_inputs import stop_jobs_of_suspended
from computepool.hub.services.profiles import Profile
from computepool.hub.store.accounts import Account
from computepool.hub.store.keys import Key
from computepool.wire import accounts as wire

routes = Routes()


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    after: UUID = UUID(int=0)
    limit: int = 100
    # A part of the address, the name or the pseudonym.
    q: str | None = None
    suspended: bool | None = None


@routes.add(
    "POST",
    "/v1/accounts",
    Access.PUBLIC,
    body=wire.SignUpRequest,
    answer=wire.SignedIn,
    status=201,
    public_per_minute=600,
)
async def sign_up(call: Call) -> wire.SignedIn:
    """Make an account. The answer holds its first API key, shown this once."""
    body: wire.SignUpRequest = call.body
    account, key = await service.sign_up(
        call.hub.pool,
        call.hub.settings,
        email=body.email,
        name=body.name,
        password=body.password,
        invite=body.invite,
    )
    return wire.SignedIn(account=to_account(account), key=to_created_key(key))


@routes.add("POST", "/v1/sign-in", Access.PUBLIC, body=wire.SignInRequest, answer=wire.SignedIn, public_per_minute=60)
async def sign_in(call: Call) -> Response:
    """Sign in by one-time link or by password. Browsers get a cookie as well."""
    body: wire.SignInRequest = call.body
    if call.find_header(b"origin") is not None:
        # Or a page from elsewhere could sign somebody in as somebody else.
        check_origin(call.hub, call.scope)
    if body.link_token is not None:
        account, key = await service.sign_in_by_link(call.hub.pool, body.link_token)
    elif body.email is not None and body.password is not None:
        account, key = await service.sign_in_by_password(call.hub.pool, email=body.email, password=body.password)
    else:
        raise InvalidRequest("Give link_token, or email and password.")
    signed_in = wire.SignedIn(account=to_account(account), key=to_created_key(key))
    response = Response(msgspec.json.encode(signed_in), media_type="application/json")
    set_cookie(response, key, secure=call.hub.settings.url.startswith("https"))
    return response


@routes.add("POST", "/v1/sign-out", Access.ACCOUNT, status=204)
async def sign_out(call: Call) -> Response:
    """Revoke the key that this call was made with."""
    await service.revoke_key(call.hub.pool, call.account, call.account.key_id)
    call.hub.callers.forget_all()
    response = Response(status_code=204)
    response.delete_cookie(COOKIE)
    return response


@routes.add("GET", "/v1/accounts/me", Access.ACCOUNT, answer=wire.Account)
async def get_me(call: Call) -> wire.Account:
    """The caller's account."""
    return to_account(await service.get_account(call.hub.pool, call.account.account_id))


@routes.add("GET", "/v1/accounts/me/profile", Access.ACCOUNT, answer=wire.Profile)
async def get_profile(call: Call) -> wire.Profile:
    """What strangers see of the caller."""
    return to_profile(await profiles.get_profile(call.hub.pool, call.hub.pseudonym_key, call.account.account_id))


@routes.add("PATCH", "/v1/accounts/me/profile", Access.ACCOUNT, body=wire.ChangeProfile, answer=wire.Profile)
async def change_profile(call: Call) -> wire.Profile:
    """Choose a pseudonym, leave or join the leaderboard, and say whether strangers may read names of jobs."""
    body: wire.ChangeProfile = call.body
    changed = await profiles.change_profile(
        call.hub.pool,
        call.hub.pseudonym_key,
        call.account,
        pseudonym=body.pseudonym,
        on_leaderboard=body.on_leaderboard,
        shows_titles=body.shows_titles,
    )
    return to_profile(changed)


@routes.add("PUT", "/v1/accounts/me/password", Access.ACCOUNT, body=wire.SetPassword, status=204)
async def set_password(call: Call) -> None:
    """Set or change the password."""
    await service.set_password(call.hub.pool, call.account, call.body.password)


@routes.add("POST", "/v1/sign-in-links", Access.ACCOUNT, answer=wire.SignInLink, status=201)
async def create_own_link(call: Call) -> wire.SignInLink:
    """A one-time link that opens a browser signed in as the caller."""
    return _to_link(await service.create_sign_in_link(call.hub.pool, call.account.account_id))


@routes.add("GET", "/v1/accounts", Access.OPERATOR, query=ListQuery, answer=wire.AccountPage)
async def list_accounts(call: Call) -> wire.AccountPage:
    """All accounts."""
    limit = max(1, min(call.query.limit, 500))
    query: ListQuery = call.query
    accounts = await service.list_accounts(
        call.hub.pool, after=query.after, limit=limit, words=query.q, suspended=query.suspended
    )
    return wire.AccountPage(accounts=[to_account(account) for account in accounts])


@routes.add("POST", "/v1/accounts/{account_id}/sign-in-links", Access.OPERATOR, answer=wire.SignInLink, status=201)
async def create_link(call: Call) -> wire.SignInLink:
    """A one-time sign-in link for somebody who asked the operator."""
    return _to_link(await service.create_sign_in_link(call.hub.pool, call.path["account_id"]))


@routes.add("PATCH", "/v1/accounts/{account_id}", Access.OPERATOR, body=wire.ChangeAccount, answer=wire.Account)
async def change_account(call: Call) -> wire.Account:
    """Change an account's limits, roles, or its part of the fleet and the highest priority class of its jobs."""
    body: wire.ChangeAccount = call.body
    account = await service.change_account(
        call.hub.pool,
        call.account,
        call.path["account_id"],
        roles=body.roles,
        queued_slices_max=body.queued_slices_max,
        stored_bytes_max=body.stored_bytes_max,
        calls_per_minute_max=body.calls_per_minute_max,
        fair_weight=body.fair_weight,
        priority_class_max=body.priority_class_max,
        new_nodes_max=body.new_nodes_max,
    )
    call.hub.callers.forget_all()
    return to_account(account)


@routes.add("POST", "/v1/accounts/{account_id}/suspend", Access.OPERATOR, answer=wire.Account)
async def suspend_account(call: Call) -> wire.Account:
    """Refuse everything this account asks for from now on, and stop its open jobs."""
    account = await _set_suspended(call, suspended=True)
    await stop_jobs_of_suspended(call.hub.pool, on_end=call.hub.on_end)
    call.hub.rounds.hear("controls")
    return account


@routes.add("POST", "/v1/accounts/{account_id}/resume", Access.OPERATOR, answer=wire.Account)
async def resume_account(call: Call) -> wire.Account:
    """Lift a suspension."""
    return await _set_suspended(call, suspended=False)


@routes.add("POST", "/v1/invites", Access.OPERATOR, body=wire.CreateInvite, answer=wire.Invite, status=201)
async def create_invite(call: Call) -> wire.Invite:
    """An invite for one new account."""
    body: wire.CreateInvite = call.body
    token = await service.create_invite(
        call.hub.pool, call.account, roles=body.roles, expires_seconds=body.expires_seconds
    )
    return wire.Invite(invite=token, expires_at=clock.now() + timedelta(seconds=body.expires_seconds))


@routes.add("POST", "/v1/keys", Access.ACCOUNT, body=wire.CreateKey, answer=wire.CreatedKey, status=201)
async def create_key(call: Call) -> wire.CreatedKey:
    """Make an API key. Its secret is in the answer, this once."""
    body: wire.CreateKey = call.body
    key = await service.create_key(
        call.hub.pool, call.account, name=body.name, roles=body.roles, expires_seconds=body.expires_seconds
    )
    return to_created_key(key)


@routes.add("GET", "/v1/keys", Access.ACCOUNT, answer=wire.KeyPage)
async def list_keys(call: Call) -> wire.KeyPage:
    """The caller's keys, without their secrets."""
    return wire.KeyPage(keys=[to_key(key) for key in await service.list_keys(call.hub.pool, call.account)])


@routes.add("DELETE", "/v1/keys/{key_id}", Access.ACCOUNT, status=204)
async def revoke_key(call: Call) -> None:
    """Revoke a key; every hub refuses it within seconds."""
    await service.revoke_key(call.hub.pool, call.account, call.path["key_id"])
    call.hub.callers.forget_all()


def set_cookie(response: Response, key: NewKey, *, secure: bool) -> None:
    response.set_cookie(
        COOKIE, key.secret, max_age=SIGN_IN_KEY_SECONDS, httponly=True, samesite="strict", secure=secure
    )


async def _set_suspended(call: Call, *, suspended: bool) -> wire.Account:
    account = await service.set_suspended(call.hub.pool, call.account, call.path["account_id"], suspended=suspended)
    call.hub.callers.forget_all()
    return to_account(account)


def _to_link(token: str) -> wire.SignInLink:
    expires_at = clock.now() + timedelta(seconds=LINK_SECONDS)
    return wire.SignInLink(token=token, path=f"/sign-in?token={token}", expires_at=expires_at)


def to_account(account: Account) -> wire.Account:
    return wire.Account(
        id=account.id,
        email=account.email,
        name=account.name,
        roles=sorted(account.roles),
        limits=wire.Limits(
            queued_slices_max=account.queued_slices_max,
            stored_bytes_max=account.stored_bytes_max,
            calls_per_minute_max=account.calls_per_minute_max,
            new_nodes_max=account.new_nodes_max,
        ),
        stored_bytes=account.stored_bytes,
        created_at=account.created_at,
        suspended_at=account.suspended_at,
        fair_weight=account.fair_weight,
        priority_class_max=account.priority_class_max,
    )


def to_profile(profile: Profile) -> wire.Profile:
    return wire.Profile(
        pseudonym=profile.pseudonym,
        on_leaderboard=profile.on_leaderboard,
        shows_titles=profile.shows_titles,
    )


def to_key(key: Key) -> wire.Key:
    return wire.Key(
        id=key.id,
        name=key.name,
        roles=sorted(key.roles),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )


def to_created_key(key: NewKey) -> wire.CreatedKey:
    return wire.CreatedKey(key=to_key(key.key), secret=key.secret)
