"""What a submitter's program imports: one client, and a handle per job.

    from computepool.sdk import Client

    job = Client().submit(script="train.py", slices=4, vram="16GB")
    job.wait()
    job.download("results")

Knows the hub only through its HTTP API. Every refusal is one of the classes in `computepool.core.errors`.
"""

from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.errors import AccountFrozen
from computepool.sdk.client import Client
from computepool.sdk.config import Settings, resolve_settings, save_settings
from computepool.sdk.credits import parse_amount
from computepool.sdk.files import DamagedDownload
from computepool.sdk.jobs import JobHandle
from computepool.sdk.sizes import format_size, parse_credits, parse_size

__all__ = [
    "AccountFrozen",
    "Client",
    "DamagedDownload",
    "InsufficientCredits",
    "JobHandle",
    "Settings",
    "format_size",
    "parse_amount",
    "parse_credits",
    "parse_size",
    "resolve_settings",
    "save_settings",
]
