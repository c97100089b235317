"""Secrets of jobs: sealed as they come in, opened for a node that holds a lease, deleted when the job has ended.

AES-GCM under a key derived from the hub's lease key and the operator's own, bound to the job: a row that is moved to
another job does not open. Whoever reads this table alone reads nothing. The lease key is in the same database: what
keeps a stolen backup closed is the operator's, if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from computepool import entropy
from computepool.core.ids import JobId
from computepool.hub.services.keyring import Keyring
from computepool.hub.store import job_secrets as store
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.job_secrets")

# What the key is derived for; another form of sealing takes another name.
PURPOSE = b"computepool job secrets 1"
NONCE_BYTES = 12


def seal_secrets(keyring: Keyring, job_id: JobId, secrets: Mapping[str, str]) -> bytes | None:
    """What is stored; None if there are none."""
    if not secrets:
        return None
    nonce = entropy.new_bytes(NONCE_BYTES)
    return nonce + _cipher(keyring).encrypt(nonce, msgspec.json.encode(dict(secrets)), job_id.bytes)


def open_secrets(keyring: Keyring, job_id: JobId, sealed: bytes) -> dict[str, str]:
    """What a node is told. Nothing if it was not sealed by this hub for this job: the others must not wait for it."""
    try:
        raw = _cipher(keyring).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], job_id.bytes)
    except (InvalidTag, ValueError):
        log.error("secrets_not_opened job_id=%s", job_id)
        return {}
    return msgspec.json.decode(raw, type=dict[str, str])


async def delete_ended(pool: Pool, *, limit: int) -> int:
    """Those of jobs that have ended. Returns of how many jobs."""
    async with pool.acquire() as conn:
        return await store.delete_ended(conn, limit=limit)


def _cipher(keyring: Keyring) -> AESGCM:
    return AESGCM(keyring.derive_key(PURPOSE))
