"""What checking results needs of the hub."""

from __future__ import annotations

from dataclasses import dataclass, field

from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.services.blocked_inputs import BlockedInputs
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.transitions import OnEnd, ignore_end
from computepool.hub.store.connect import Pool


@dataclass(frozen=True, slots=True)
class Inspector:
    pool: Pool
    blobs: LocalBlobs
    prices: PriceBook
    settings: HubSettings
    # What is drawn with it nobody can know before.
    audit_key: bytes
    on_end: OnEnd = ignore_end
    # What the operator has blocked is not run again either.
    blocked_inputs: BlockedInputs = field(default_factory=BlockedInputs)
