"""The hub's settings: one frozen class, read once in `main.py`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from computepool.core.accounts.roles import SignUp
from computepool.hub.store.pooler import Pooler

PREFIX = "COMPUTEPOOL_HUB_"


class LogLevel(str, Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _meta(description: str, env: str | None = None, *, above: float | None = None) -> msgspec.Meta:
    return msgspec.Meta(description=description, extra={"env": env} if env else None, gt=above)


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
    public_url: Annotated[str, _meta("How people reach this hub; used in printed links. Empty: host and port.")] = ""
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
    beat_seconds: Annotated[float, _meta("How often a node must be heard.", above=0)] = 30.0
    lease_seconds: Annotated[float, _meta("How long a silent node keeps its leases.", above=0)] = 60.0
    reap_grace_seconds: Annotated[float, _meta("How long after a lease's end its slice is given away.", above=0)] = (
        5.0
    )
    beats_per_second_max: Annotated[
        float, _meta("With more nodes than this allows, the beat is stretched.", above=0)
    ] = 1000.0
    node_token_seconds: Annotated[int, _meta("Life of a node's token.", above=0)] = 900
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
    placement_file: Annotated[
        str, _meta("File with the weights of placement and the split that compares two sets. Empty: the shipped one.")
    ] = ""
    log_level: Annotated[LogLevel, _meta("debug, info, warning or error.")] = LogLevel.INFO

    @property
    def sign_up_mode(self) -> SignUp:
        if self.sign_up is not None:
            return self.sign_up
        return SignUp.OPEN if self.demo else SignUp.INVITE

    @property
    def url(self) -> str:
        return self.public_url.rstrip("/") or f"http://{self.host}:{self.port}"
