"""The hub's API for people, one method per call, keyword arguments only.

Holds no rules: what is right is decided by the hub, and its refusals come back as the same classes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from computepool import entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import InvalidSpec
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import CHECKPOINT_SECONDS, SCRIPT_FILE_NAME
from computepool.core.jobs.state import JobState
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.offers import DEFAULT_KIND, Audience
from computepool.core.placement.weights import Preference
from computepool.core.trust.comparators.kinds import ComparatorKind
from computepool.core.trust.validation import Verify
from computepool.sdk.config import resolve_settings
from computepool.sdk.credits import CreditsClient, OperatorCredits
from computepool.sdk.files import LocalFile, collect_files, describe_file, read_packages, read_script
from computepool.sdk.jobs import JobHandle, fetch_receipts
from computepool.sdk.sizes import parse_credits, parse_size
from computepool.sdk.transport import Transport, many_at_once
from computepool.wire.accounts import (
    Account,
    AccountPage,
    ChangeAccount,
    CreatedKey,
    CreateKey,
    HubView,
    Key,
    KeyPage,
    SignedIn,
    SignInLink,
    SignInRequest,
    SignUpRequest,
)
from computepool.wire.artifacts import Artifact
from computepool.wire.jobs import BY_THE_SECOND, Compare, InputFile, Job, JobPage, JobPrice, JobSpec, Requirements
from computepool.wire.market import Quote, QuoteRequest
from computepool.wire.nodes import Node, NodeChange, NodePage, SetOffer
from computepool.wire.placement import Experiment
from computepool.wire.receipts import JobReceipts
from computepool.wire.trust import NodeTrust, Vouch
from computepool.wire.why import NodeWhy

if TYPE_CHECKING:
    from computepool.sdk.books import BooksClient
    from computepool.sdk.disputes import DisputesClient
    from computepool.sdk.live import LiveClient
    from computepool.sdk.market import MarketClient
    from computepool.sdk.operator import OperatorClient

_PAGE_LENGTH = 100
# Of hours: no schedule any more.
ALWAYS = "always"

Choice = TypeVar("Choice", bound=Enum)
Credits = int | float | str | Decimal


class Client:
    """`patience_seconds` is how long a call goes on trying while the hub is away; `on_trouble` hears of each try."""

    def __init__(
        self,
        hub_url: str | None = None,
        key: str | None = None,
        *,
        patience_seconds: float = 60.0,
        on_trouble: Callable[[str], None] | None = None,
        transport: Transport | None = None,
    ) -> None:
        if transport is None:
            settings = resolve_settings(hub_url=hub_url, key=key)
            transport = Transport(
                hub_url=settings.hub_url,
                key=settings.key,
                patience_seconds=patience_seconds,
                on_trouble=on_trouble,
            )
        self._transport = transport

    @property
    def hub_url(self) -> str:
        return self._transport.hub_url

    @property
    def credits(self) -> CreditsClient:
        """What one has and earns, paying in, cashing out: `client.credits.get().available_microcredits`."""
        return CreditsClient(self._transport)

    @property
    def books(self) -> BooksClient:
        """Statements, why a node was paid what it was paid, and the operator's audit and close of a day."""
        # Most programs submit and fetch: they need not wait for it.
        from computepool.sdk.books import BooksClient

        return BooksClient(self._transport)

    @property
    def disputes(self) -> DisputesClient:
        """Doubting the pay for an attempt of one's job, and what became of it; for operators the decision."""
        from computepool.sdk.disputes import DisputesClient

        return DisputesClient(self._transport)

    @property
    def market(self) -> MarketClient:
        """What slots cost now and did before, and what a machine would earn."""
        from computepool.sdk.market import MarketClient

        return MarketClient(self._transport)

    @property
    def live(self) -> LiveClient:
        """The grid as everybody sees it, the leaderboard, and what strangers see of oneself."""
        from computepool.sdk.live import LiveClient

        return LiveClient(self._transport)

    @property
    def operator(self) -> OperatorClient:
        """The operator's word against inputs and accounts."""
        from computepool.sdk.operator import OperatorClient

        return OperatorClient(self._transport)

    @property
    def operator_credits(self) -> OperatorCredits:
        """The operator's side of cash."""
        return OperatorCredits(self._transport)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get_hub(self) -> HubView:
        return self._transport.call("GET", "/v1/hub", HubView)

    def sign_up(
        self, *, email: str, name: str = "", password: str | None = None, invite: str | None = None
    ) -> SignedIn:
        body = SignUpRequest(email=email, name=name, password=password, invite=invite)
        return self._transport.call("POST", "/v1/accounts", SignedIn, body=body)

    def sign_in(
        self, *, email: str | None = None, password: str | None = None, link_token: str | None = None
    ) -> SignedIn:
        body = SignInRequest(email=email, password=password, link_token=link_token)
        return self._transport.call("POST", "/v1/sign-in", SignedIn, body=body)

    def get_account(self) -> Account:
        return self._transport.call("GET", "/v1/accounts/me", Account)

    def accounts(self) -> Iterator[Account]:
        """All accounts of the hub, for its operator, fetched page by page."""
        after = UUID(int=0)
        while True:
            params = {"after": str(after), "limit": _PAGE_LENGTH}
            page = self._transport.call("GET", "/v1/accounts", AccountPage, params=params).accounts
            yield from page
            if len(page) < _PAGE_LENGTH:
                return
            after = page[-1].id

    def change_account(
        self,
        *,
        account_id: UUID,
        fair_weight: float | None = None,
        priority_class_max: PriorityClass | str | None = None,
        queued_slices_max: int | None = None,
        stored_bytes_max: int | None = None,
        calls_per_minute_max: int | None = None,
        new_nodes_max: int | None = None,
    ) -> Account:
        """An operator's grants and limits for an account; what is None stays as it is."""
        granted = None
        if priority_class_max is not None:
            granted = _choose(PriorityClass, priority_class_max, "a priority class")
        body = ChangeAccount(
            fair_weight=fair_weight,
            priority_class_max=granted,
            queued_slices_max=queued_slices_max,
            stored_bytes_max=stored_bytes_max,
            calls_per_minute_max=calls_per_minute_max,
            new_nodes_max=new_nodes_max,
        )
        return self._transport.call("PATCH", f"/v1/accounts/{account_id}", Account, body=body, repeatable=True)

    def get_experiment(self, *, days: float = 7.0) -> Experiment:
        """How two sets of placement weights compare, for the hub's operator."""
        return self._transport.call("GET", "/v1/placement/experiment", Experiment, params={"days": days})

    def create_sign_in_link(self, *, account_id: UUID | None = None) -> SignInLink:
        """A one-time link to the dashboard: one's own at a demo hub, anybody's for an operator."""
        path = "/v1/sign-in-links" if account_id is None else f"/v1/accounts/{account_id}/sign-in-links"
        return self._transport.call("POST", path, SignInLink, body={})

    def create_key(
        self, *, name: str = "", roles: Sequence[Role] = (), expires_seconds: int | None = None
    ) -> CreatedKey:
        body = CreateKey(name=name, roles=tuple(roles), expires_seconds=expires_seconds)
        return self._transport.call("POST", "/v1/keys", CreatedKey, body=body)

    def list_keys(self) -> list[Key]:
        return self._transport.call("GET", "/v1/keys", KeyPage).keys

    def revoke_key(self, *, key_id: UUID) -> None:
        self._transport.delete(f"/v1/keys/{key_id}")

    def submit(
        self,
        *,
        script: Path | str | None = None,
        command: Sequence[str] = (),
        files: Sequence[Path | str] = (),
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        requirements: Sequence[str] | Path | str = (),
        image: str | None = None,
        egress: Sequence[str] = (),
        kind: str = DEFAULT_KIND,
        slices: int = 1,
        gpu: bool = False,
        vram: int | str = 0,
        ram: int | str | None = None,
        cores: int = 1,
        disk: int | str | None = None,
        tiers: Sequence[str] = (),
        regions: Sequence[str] = (),
        isolation: IsolationLevel | str | None = None,
        max_price: Credits | None = None,
        price_per_slice: Credits | None = None,
        max_price_per_slice: Credits | None = None,
        prefer: Preference | str = Preference.VALUE,
        retries: int = 2,
        wall_seconds: int = 3_600,
        checkpoint_seconds: int = CHECKPOINT_SECONDS,
        verify: Verify | str = Verify.AUDIT,
        compare: Compare | str | None = None,
        priority: int = 0,
        priority_class: PriorityClass | str = PriorityClass.NORMAL,
        deadline_at: datetime | None = None,
        expires_at: datetime | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Hand a job to the hub. `script` is run by python3 unless `command` says otherwise.

            client.submit(script="train.py", files=["data"], vram="16GB", slices=8)
            client.submit(script="train.py", gpu=True, max_price=40, prefer="cheapest")
            client.submit(script="render.py", slices=100, price_per_slice="2.5", max_price_per_slice=6)
            client.submit(command=["sh", "-c", "nproc > $COMPUTEPOOL_OUTPUT_DIR/cores"])

        `files` are paths of files or folders; those that the hub has already are not sent again. `kind` is what the
        job is, of the kinds of the rate card; owners choose what they take.
        `secrets` are environment too, which the hub keeps encrypted and shows to nobody but the nodes that run the
        job; logs are without them. Such a job asks for isolation `container` unless you say otherwise.
        `requirements` are Python packages, as a list or the path of a requirements file: the node installs them, from
        wheels alone, before the paid time begins. `image` is a container image by its digest, `name@sha256:...`.
        `egress` names hosts that the job wants to reach, `host:port`; the node's owner must allow each.
        What the job keeps in `$COMPUTEPOOL_CHECKPOINT_DIR` is saved every `checkpoint_seconds`; after the loss of its
        machine it goes on from there elsewhere.
        `compare` says when two results of a slice are the same, so that others can check them: `"exact"`, `"numeric"`
        or `"numeric:1e-3"` (a relative tolerance), or `"command:python3 same.py"`: that command finds the two results
        below `one/` and `other/`, beside `files`, and ends with 0 if they agree, with 1 if not.
        Then `verify` is `"audit"` (some slices, and all of newcomers, are run again elsewhere), `"quorum"` (each runs
        until two strangers agree) or `"none"`. Further runs cost, too.
        `max_price` is the most that an hour of a slot may cost, in credits. `price_per_slice` is a fixed price
        instead: for each slice that is delivered, times tier and region of the slot that takes it, and at most
        `max_price_per_slice`; `"card"` takes the rate card's for this `kind` of job.
        `deadline_at` is a wish: as it comes near, the slices move to the front of one's own; at `expires_at`
        unfinished ones fail.
        Submitting twice with one `idempotency_key` gives the same job; a new key is made when none is given,
        so that a lost answer never makes a second job.
        """
        source = None if script is None else read_script(script)
        if isolation is None:
            is_plain = image is None and not secrets
            isolation = IsolationLevel.SANDBOXED if is_plain else IsolationLevel.CONTAINER
        needed = _requirements(
            gpu=gpu,
            vram=vram,
            ram=ram,
            cores=cores,
            disk=disk,
            tiers=tiers,
            regions=regions,
            isolation=isolation,
            max_price=max_price,
        )
        local = collect_files(files, has_script=script is not None)
        spec = JobSpec(
            name=name or _name_of(script, command),
            script=source,
            command=tuple(command),
            files=tuple(many_at_once(self._send_file, local)),
            env=dict(env or {}),
            secrets=dict(secrets or {}),
            requirements=needed,
            image=image,
            packages=read_packages(requirements),
            egress=tuple(egress),
            kind=kind,
            slice_count=slices,
            retries=retries,
            wall_seconds=wall_seconds,
            priority=priority,
            priority_class=_choose(PriorityClass, priority_class, "a priority class"),
            prefer=_choose(Preference, prefer, "a preference"),
            deadline_at=deadline_at,
            expires_at=expires_at,
            price=_price(price_per_slice, max_price_per_slice),
            checkpoint_seconds=checkpoint_seconds,
            verify=_choose(Verify, verify, "a way to verify"),
            compare=read_compare(compare) if isinstance(compare, str) else compare,
        )
        return self.submit_spec(spec, idempotency_key=idempotency_key)

    def quote(
        self,
        *,
        kind: str = DEFAULT_KIND,
        slices: int = 1,
        gpu: bool = False,
        vram: int | str = 0,
        ram: int | str | None = None,
        cores: int = 1,
        disk: int | str | None = None,
        tiers: Sequence[str] = (),
        regions: Sequence[str] = (),
        isolation: IsolationLevel | str = IsolationLevel.SANDBOXED,
        max_price: Credits | None = None,
        price_per_slice: Credits | None = None,
        max_price_per_slice: Credits | None = None,
        wall_seconds: int = 3_600,
        expected_seconds: int | None = None,
    ) -> Quote:
        """What such a job would cost, how much a submit would set aside, where and when it could run.

            client.quote(vram="16GB", slices=8, expected_seconds=600).cost.likely_microcredits

        A forecast: nothing is held by it.
        """
        requirements = _requirements(
            gpu=gpu,
            vram=vram,
            ram=ram,
            cores=cores,
            disk=disk,
            tiers=tiers,
            regions=regions,
            isolation=isolation,
            max_price=max_price,
        )
        body = QuoteRequest(
            requirements=requirements,
            kind=kind,
            slice_count=slices,
            wall_seconds=wall_seconds,
            expected_seconds=expected_seconds,
            price=_price(price_per_slice, max_price_per_slice),
        )
        return self._transport.call("POST", "/v1/quotes", Quote, body=body, repeatable=True)

    def submit_spec(self, spec: JobSpec, *, idempotency_key: str | None = None) -> JobHandle:
        """Submit a description as the wire knows it; its files must be at the hub already."""
        header = {"Idempotency-Key": idempotency_key or str(entropy.new_id())}
        job = self._transport.call("POST", "/v1/jobs", Job, body=spec, headers=header, repeatable=True)
        return JobHandle(self._transport, job)

    def get_job(self, *, job_id: UUID | str) -> JobHandle:
        return JobHandle(self._transport, self._transport.call("GET", f"/v1/jobs/{UUID(str(job_id))}", Job))

    def get_receipts(self, *, job_id: UUID | str) -> JobReceipts:
        """What nodes have signed for a job's results: all of it for one's own job, else what one's own nodes have."""
        return fetch_receipts(self._transport, UUID(str(job_id)))

    def list_jobs(
        self, *, limit: int = _PAGE_LENGTH, cursor: str | None = None, state: JobState | None = None
    ) -> JobPage:
        """One page, newest first; hand its `cursor` back for the next."""
        params = {"limit": limit, "cursor": cursor, "state": state.value if state else None}
        return self._transport.call("GET", "/v1/jobs", JobPage, params=params)

    def upload(self, *, path: Path | str) -> Artifact:
        """Store one file at the hub by its hash."""
        file = describe_file(LocalFile(Path(path), Path(path).name))
        self._store(file, Path(path))
        return Artifact(sha256=file.sha256, size_bytes=file.size_bytes)

    def _send_file(self, local: LocalFile) -> InputFile:
        file = describe_file(local)
        self._store(file, local.source)
        return file

    def _store(self, file: InputFile, source: Path) -> None:
        path = f"/v1/artifacts/{file.sha256}"
        if self._transport.exists(path):
            return
        stored = self._transport.upload(path, source, Artifact)
        if stored.sha256 != file.sha256:
            raise InvalidSpec(f"{source} changed while it was being sent. Try again.")

    def list_nodes(self, *, limit: int = _PAGE_LENGTH, cursor: str | None = None) -> NodePage:
        return self._transport.call("GET", "/v1/nodes", NodePage, params={"limit": limit, "cursor": cursor})

    def nodes(self) -> Iterator[Node]:
        """All of one's nodes, fetched page by page."""
        for page in self._transport.pages("/v1/nodes", NodePage, {"limit": _PAGE_LENGTH}):
            yield from page.nodes

    def get_node(self, *, node_id: UUID) -> Node:
        return self._transport.call("GET", f"/v1/nodes/{node_id}", Node)

    def trust_node(self, *, node_id: UUID, vouched: bool | None = None) -> NodeTrust:
        """How far a node's results are relied on. The operator may vouch for it, or stop."""
        if vouched is None:
            return self._transport.call("GET", f"/v1/nodes/{node_id}/trust", NodeTrust)
        body = Vouch(vouched=vouched)
        return self._transport.call("PUT", f"/v1/operator/nodes/{node_id}/vouch", NodeTrust, body=body)

    def why_node(self, *, node_id: UUID) -> NodeWhy:
        """Why one's node has no work, and what it would need."""
        return self._transport.call("GET", f"/v1/nodes/{node_id}/why", NodeWhy)

    def change_node(self, *, node_id: UUID, change: NodeChange) -> Node:
        return self._transport.call("POST", f"/v1/nodes/{node_id}/{change.value}", Node, repeatable=True)

    def set_floor(self, *, node_id: UUID, credits_per_hour: Credits) -> Node:
        """The least that a slot of one's node is lent for."""
        return self.set_offer(node_id=node_id, floor=credits_per_hour)

    def set_offer(
        self,
        *,
        node_id: UUID,
        floor: Credits | None = None,
        hours: str | None = None,
        zone: str | None = None,
        min_seconds: int | None = None,
        kinds: Sequence[str] | None = None,
        pool: Sequence[str] | str | None = None,
    ) -> Node:
        """The conditions at which one's node is lent; what is None stays as it is.

            client.set_offer(node_id=id, hours="mon-fri 19-7, sat-sun", zone="Europe/Berlin", floor=8)
            client.set_offer(node_id=id, min_seconds=60, kinds=["ml"], pool=["friend@example.org"])
            client.set_offer(node_id=id, hours="always", kinds=[], pool="anyone")

        `floor` is in credits per hour. `hours` are whole hours on the clock of `zone`. `min_seconds` is held against
        the wall limit of slices. `pool` is `"anyone"`, `"own"`, or the accounts to lend it to, by id or e-mail.
        """
        now = self.get_node(node_id=node_id).offer
        keep_hours = now.hours if hours is None else None if hours == ALWAYS else hours
        audience, accounts = _to_audience(pool) if pool is not None else (now.audience, tuple(map(str, now.accounts)))
        body = SetOffer(
            floor_microcredits_per_hour=now.floor_microcredits_per_hour if floor is None else parse_credits(floor),
            hours=keep_hours,
            zone=(zone or now.zone) if keep_hours is not None else None,
            seconds_min=now.seconds_min if min_seconds is None else min_seconds,
            kinds=tuple(now.kinds if kinds is None else kinds),
            audience=audience,
            accounts=accounts,
        )
        return self._transport.call("PUT", f"/v1/nodes/{node_id}/offer", Node, body=body, repeatable=True)


def _to_audience(pool: Sequence[str] | str) -> tuple[Audience, tuple[str, ...]]:
    if not isinstance(pool, str):
        return Audience.NAMED, tuple(pool)
    if pool == Audience.NAMED.value:
        raise InvalidSpec("A pool of named accounts is given by their ids or e-mail addresses, in a list.")
    return _choose(Audience, pool, "a pool"), ()


def _requirements(
    *,
    gpu: bool,
    vram: int | str,
    ram: int | str | None,
    cores: int,
    disk: int | str | None,
    tiers: Sequence[str],
    regions: Sequence[str],
    isolation: IsolationLevel | str,
    max_price: Credits | None,
) -> Requirements:
    level = _choose(IsolationLevel, isolation, "an isolation level")
    given: dict[str, Any] = {}
    if ram is not None:
        given["ram_bytes"] = parse_size(ram)
    if disk is not None:
        given["disk_bytes"] = parse_size(disk)
    if max_price is not None:
        given["ceiling_microcredits_per_hour"] = parse_credits(max_price)
    return Requirements(
        gpu=gpu,
        vram_bytes=parse_size(vram),
        cores=cores,
        tiers=tuple(tiers),
        regions=tuple(regions),
        isolation=level,
        **given,
    )


def _price(price_per_slice: Credits | None, max_price_per_slice: Credits | None) -> JobPrice:
    if price_per_slice is None and max_price_per_slice is None:
        return BY_THE_SECOND
    if price_per_slice is None:
        raise InvalidSpec(
            "max_price_per_slice goes with price_per_slice: name a price, or `card` for the rate card's."
        )
    return JobPrice(
        mode=PriceMode.PER_SLICE,
        microcredits_per_slice=None if price_per_slice == "card" else parse_credits(price_per_slice),
        ceiling_microcredits_per_slice=None if max_price_per_slice is None else parse_credits(max_price_per_slice),
    )


def read_compare(text: str) -> Compare:
    """exact, exact:anywhere, numeric, numeric:1e-3 (a relative tolerance), or command:python3 same.py"""
    kind, _, detail = text.partition(":")
    try:
        if kind == ComparatorKind.NUMERIC.value and detail:
            return Compare(kind=ComparatorKind.NUMERIC, relative=float(detail))
        if text == "exact:anywhere":
            return Compare(anywhere=True)
        if kind == ComparatorKind.COMMAND.value and (command := tuple(shlex.split(detail))):
            return Compare(kind=ComparatorKind.COMMAND, command=command)
        if kind in (ComparatorKind.EXACT.value, ComparatorKind.NUMERIC.value) and not detail:
            return Compare(kind=ComparatorKind(kind))
    except ValueError:
        pass
    raise InvalidSpec(
        f"compare is {text!r}; write exact, exact:anywhere, numeric, numeric:1e-3 for a relative tolerance, "
        "or 'command:python3 same.py' for a command of yours."
    )


def _choose(kind: type[Choice], value: Choice | str, what: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise InvalidSpec(f"{value!r} is not {what}; there are {known}.") from None


def _name_of(script: Path | str | None, command: Sequence[str]) -> str:
    """What a person would call it: the script's name without its ending, or the program's."""
    if script is not None and "\n" not in str(script):
        return Path(script).stem or SCRIPT_FILE_NAME
    return (Path(command[0]).name if command else "") or "job"
