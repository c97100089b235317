"""The hub's settings: one frozen class, read once in `main.py`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import msgspec

from computepool.core.accounts.roles import SignUp
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.ledger.amount import AMOUNT_MAX
from computepool.core.payments.cash import CREDIT, CashTerms
from computepool.core.trust.identities import NEW_PER_OWNER_MAX
from computepool.hub.store.pooler import Pooler

PREFIX = "COMPUTEPOOL_HUB_"
# What an account gets in a demo, where nobody pays.
DEMO_WELCOME_MICROCREDITS = 1_000 * CREDIT
_CASH = CashTerms()


class LogLevel(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PaymentKind(str, Enum):
    MANUAL = "manual"
    WEBHOOK = "webhook"


def _meta(
    description: str,
    env: str | None = None,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
) -> msgspec.Meta:
    given = {"gt": above, "ge": least, "le": most, "pattern": pattern}
    bounds: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    meta: msgspec.Meta = msgspec.Meta(description=description, extra={"env": env} if env else None, **bounds)
    return meta


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    database_url: Annotated[
        str | None,
        _meta("PostgreSQL to use. Empty: the hub starts and owns an embedded one.", "DATABASE_URL"),
    ] = None
    database_pooler: Annotated[
        Pooler, _meta("What DATABASE_URL names: none (PostgreSQL itself), transaction (PgBouncer), auto (find out).")
    ] = Pooler.AUTO
    database_listen_url: Annotated[
        str, _meta("PostgreSQL itself, when DATABASE_URL names a pooler: news between hubs then comes at once.")
    ] = ""
    port: Annotated[int, _meta("Port to listen on.", "PORT", above=0)] = 8000
    host: Annotated[str, _meta("Address to listen on.")] = "127.0.0.1"
    workers: Annotated[int, _meta("Hub processes on this machine; they share the port.", above=0)] = 1
    public_url: Annotated[
        str,
        _meta("How people reach this hub: stands in links; its pages may use the cookie. Empty: host and port."),
    ] = ""
    data_dir: Annotated[
        str, _meta("Folder of the embedded database and of files. Empty: the place fit for the user.")
    ] = ""
    demo: Annotated[bool, _meta("A demo hub: sign-up is open and synthetic nodes are welcome.")] = False
    sign_up: Annotated[
        SignUp | None, _meta("Who may sign up: open, invite or closed. Empty: open in a demo, else invite.")
    ] = None
    operator_email: Annotated[str, _meta("E-mail of the operator account made at the first start.")] = (
        "operator@localhost"
    )
    operator_link: Annotated[
        bool, _meta("Print a fresh sign-in link for the operator at every start, not only at the first.")
    ] = False
    site_dir: Annotated[
        str, _meta("Folder of a dashboard packed by scripts/pack_site.py. Empty: the one in the package, if any.")
    ] = ""
    country: Annotated[
        str,
        _meta(
            "Where the hub stands on the map, as an ISO-2 code such as IN. Empty: nowhere.", pattern="^([A-Z]{2})?$"
        ),
    ] = ""
    beat_seconds: Annotated[float, _meta("How often a node must be heard.", above=0)] = 30.0
    lease_seconds: Annotated[float, _meta("How long a silent node keeps its leases.", above=0)] = 60.0
    reap_grace_seconds: Annotated[float, _meta("How long after a lease's end its slice is given away.", above=0)] = (
        5.0
    )
    beats_per_second_max: Annotated[
        float, _meta("With more nodes than this allows, the beat is stretched.", above=0)
    ] = 1000.0
    hardware_proof: Annotated[
        bool | None,
        _meta(
            "A card has the tier of its name only once its node has shown the speed. Empty: yes, but not in a demo."
        ),
    ] = None
    challenge_seconds: Annotated[
        float, _meta("How long one round of the work lasts by which a node shows its speed.", above=0, most=60)
    ] = 2.0
    challenge_again_seconds: Annotated[
        float,
        _meta(
            "How long a proven slot is left alone, on average, before it must show its speed again; drawn anew each "
            "time. 0: nobody is asked again.",
            least=0,
        ),
    ] = 3 * 86_400.0
    new_nodes_max: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        _meta(
            "How many new nodes one owner, or one network, may bring in 30 days. 0: as many as they like. Empty: 5, "
            "and no limit in a demo."
        ),
    ] = None
    node_token_seconds: Annotated[int, _meta("Life of a node's token.", above=0)] = 900
    secrets_isolation: Annotated[
        IsolationLevel,
        _meta("The least isolation that a job with secrets must ask for: sandboxed, container or gvisor."),
    ] = IsolationLevel.CONTAINER
    secrets_key: Annotated[
        str,
        _meta(
            "Mixed into the key that jobs' secrets are encrypted with; the same at all hubs. Empty: who has the "
            "database can open them."
        ),
    ] = ""
    job_token_seconds: Annotated[
        int, _meta("Within this time a node must have started what it was given.", above=0)
    ] = 600
    key_announce_seconds: Annotated[
        float, _meta("After a key rotation: how long the new key is known before it signs.", above=0)
    ] = 86_400.0
    queued_slices_max: Annotated[int, _meta("Default limit of unfinished slices per account.", above=0)] = 1_000_000
    stored_bytes_max: Annotated[int, _meta("Default limit of stored bytes per account.", above=0)] = 50_000_000_000
    calls_per_minute_max: Annotated[
        int, _meta("Default limit of calls per account and minute, per hub.", above=0)
    ] = 60_000
    log_bytes_max: Annotated[int, _meta("Bytes of log kept per attempt.", above=0)] = 1_048_576
    upload_bytes_max: Annotated[int, _meta("Largest single file.", above=0)] = 20_000_000_000
    pool_size_max: Annotated[int, _meta("Database connections of one hub process.", above=0)] = 10
    group_commit: Annotated[
        bool, _meta("Calls that wait share a transaction. Off only to measure what it is worth.")
    ] = True
    rpc_port: Annotated[int, _meta("Port of gRPC and of the relay between nodes. 0: off.", least=0, most=65_535)] = 0
    rpc_host: Annotated[str, _meta("Address that gRPC listens on.")] = "127.0.0.1"
    rpc_advertised_address: Annotated[
        str, _meta("How nodes and people reach gRPC, as host:port. Empty: RPC_HOST and RPC_PORT.")
    ] = ""
    rpc_tls_certificate_file: Annotated[
        str, _meta("gRPC over TLS: file with the certificate and its chain, as PEM. Empty: without TLS.")
    ] = ""
    rpc_tls_key_file: Annotated[str, _meta("gRPC over TLS: file with the certificate's private key, as PEM.")] = ""
    rpc_pool_size_max: Annotated[int, _meta("Database connections of the process that serves gRPC.", above=0)] = 5
    seat_token_seconds: Annotated[
        int, _meta("Life of the token with which a host of a network opens streams to others.", least=30)
    ] = 600
    relay_bytes_per_second_max: Annotated[
        int, _meta("What the relay carries for one run in a second; more waits.", least=1_000_000)
    ] = 50_000_000
    relay_bytes_in_flight_max: Annotated[
        int, _meta("What the relay holds of one run's frames at a time; more waits.", least=1_000_000)
    ] = 64_000_000
    network_audits: Annotated[
        bool, _meta("Whether hosts of networks are audited: parts of what they compute are replayed by others.")
    ] = True
    placement_file: Annotated[
        str, _meta("File with the weights of placement and the split that compares two sets. Empty: the shipped one.")
    ] = ""
    rate_card_file: Annotated[
        str, _meta("File with the rate card: base price, tiers, regions, fee. Empty: the shipped one.")
    ] = ""
    welcome_microcredits: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=AMOUNT_MAX)] | None,
        _meta("What a new account gets, as a top-up by the operator. Empty: 1,000 credits in a demo, else none."),
    ] = None
    holdback_seconds: Annotated[
        int,
        _meta(
            "How long what an owner has earned can be taken back before it is free; less after long service.",
            least=0,
            most=10**8,
        ),
    ] = 72 * 3_600
    payment_provider: Annotated[
        PaymentKind,
        _meta("Who moves cash: manual (the operator, by hand), or webhook (docs/reference/payment-provider.md)."),
    ] = PaymentKind.MANUAL
    payment_instructions: Annotated[
        str, _meta("By hand: where and how people pay, such as the number of a bank account.")
    ] = "Ask the operator of this hub where to pay."
    payment_name: Annotated[
        str,
        _meta(
            "Webhook: the provider's name in the books and in the address of its events. Another provider, another "
            "name.",
            pattern=r"^[a-z][a-z0-9-]{0,31}$",
        ),
    ] = "webhook"
    payment_url: Annotated[str, _meta("Webhook: the address that orders are sent to.")] = ""
    payment_secrets: Annotated[
        str, _meta("Webhook: the secret shared with the provider; several, with spaces between, while it is changed.")
    ] = ""
    payment_secrets_file: Annotated[str, _meta("Webhook: a file with these secrets, one a line, instead.")] = ""
    payment_call_seconds: Annotated[float, _meta("Webhook: how long an answer is waited for.", above=0, most=60)] = (
        20.0
    )
    payment_connect_seconds: Annotated[
        float, _meta("Webhook: how long a connection is waited for.", above=0, most=60)
    ] = 5.0
    cash_currency: Annotated[
        str, _meta("Currency of top-ups that name none, and of people who named no country.", pattern="^[A-Z]{3}$")
    ] = _CASH.currency
    cash_rates: Annotated[
        str,
        _meta(
            "Microcredits per paisa, cent or other minor unit, such as USD=850000 EUR=950000. What is not named has "
            "the rate of an example, good enough for a demo and for nothing else."
        ),
    ] = ""
    cash_rates_date: Annotated[
        str,
        _meta(
            "The day that these rates are of, such as 2026-01-31. After a week the operator is told to set new ones.",
            pattern=r"^(\d{4}-\d{2}-\d{2})?$",
        ),
    ] = ""
    top_up_microcredits_min: Annotated[int, _meta("Least that can be topped up.", above=0, most=AMOUNT_MAX)] = (
        _CASH.top_up_microcredits_min
    )
    top_up_microcredits_per_day_max: Annotated[
        int, _meta("Most that an account can top up in 24 hours.", above=0, most=AMOUNT_MAX)
    ] = _CASH.top_up_microcredits_per_day_max
    top_up_count_per_day_max: Annotated[
        int, _meta("Most top-ups that an account can ask for in 24 hours.", above=0)
    ] = _CASH.top_up_count_per_day_max
    payout_microcredits_per_day_max: Annotated[
        int, _meta("Most that an account can cash out in 24 hours.", above=0, most=AMOUNT_MAX)
    ] = _CASH.payout_microcredits_per_day_max
    payout_count_per_day_max: Annotated[
        int, _meta("Most payouts that an account can ask for in 24 hours.", above=0)
    ] = _CASH.payout_count_per_day_max
    payout_cool_off_seconds: Annotated[
        float, _meta("After payout details were changed: how long nothing can be cashed out.", least=0)
    ] = _CASH.cool_off_seconds
    log_level: Annotated[LogLevel, _meta("debug, info, warning or error.")] = LogLevel.INFO

    @property
    def sign_up_mode(self) -> SignUp:
        if self.sign_up is not None:
            return self.sign_up
        return SignUp.OPEN if self.demo else SignUp.INVITE

    @property
    def is_proof_demanded(self) -> bool:
        return not self.demo if self.hardware_proof is None else self.hardware_proof

    @property
    def is_proof_asked_again(self) -> bool:
        return self.is_proof_demanded and self.challenge_again_seconds > 0

    @property
    def new_nodes_limit(self) -> int | None:
        """None: there is none."""
        if self.new_nodes_max is None:
            return None if self.demo else NEW_PER_OWNER_MAX
        return self.new_nodes_max or None

    @property
    def welcome_amount(self) -> int:
        """Microcredits."""
        if self.welcome_microcredits is not None:
            return self.welcome_microcredits
        return DEMO_WELCOME_MICROCREDITS if self.demo else 0

    @property
    def rpc_address(self) -> str:
        """Where gRPC is to be dialled; empty when it is off."""
        if self.rpc_port == 0:
            return ""
        host = f"[{self.rpc_host}]" if ":" in self.rpc_host else self.rpc_host
        return self.rpc_advertised_address or f"{host}:{self.rpc_port}"

    @property
    def public_host(self) -> str | None:
        """Where people's browsers are, if a proxy in front cannot pass that on; None if nobody has said."""
        return self.public_url.rstrip("/").split("://")[-1] or None

    @property
    def url(self) -> str:
        return self.public_url.rstrip("/") or f"http://{self.host}:{self.port}"
