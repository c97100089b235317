"""Who this node is: its key pair, and the hub that it enrolled with, whose keys it has pinned.

The private key never leaves the machine. Refuses to guess: a state directory belongs to one hub for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.node import files, tokens
from computepool.node.state_dir import StateDir
from computepool.wire.nodes import EnrolledNode, EnrolNode, HubKey


class WrongHub(Exception):
    """The hub that answers is not the one that this node belongs to."""


class Enrolment(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub answered when this node enrolled."""

    hub_url: str
    hub_id: UUID
    node_id: UUID
    hub_keys: list[HubKey]
    # What was declared: when it changes, the node must enrol again to be given fitting work.
    declared_sha256: str


class Identity:
    def __init__(self, state: StateDir) -> None:
        self._state = state
        self.key = _load_or_make_key(state)
        found = files.find_bytes(state.enrolment_path)
        self._enrolment = msgspec.json.decode(found, type=Enrolment) if found is not None else None

    @property
    def public_key_text(self) -> str:
        return tokens.to_key_text(self.key.public_key())

    @property
    def is_enrolled(self) -> bool:
        return self._enrolment is not None

    @property
    def node_id(self) -> UUID:
        return self._get_enrolment().node_id

    @property
    def hub_id(self) -> UUID:
        return self._get_enrolment().hub_id

    @property
    def hub_keys(self) -> Sequence[HubKey]:
        return self._get_enrolment().hub_keys

    def has_declared(self, request: EnrolNode) -> bool:
        return self._enrolment is not None and self._enrolment.declared_sha256 == _digest(request)

    def record_enrolment(self, hub_url: str, request: EnrolNode, answer: EnrolledNode) -> None:
        self.check_hub(answer.hub_id)
        self._store(
            Enrolment(
                hub_url=hub_url,
                hub_id=answer.hub_id,
                node_id=answer.node_id,
                hub_keys=answer.hub_keys,
                declared_sha256=_digest(request),
            )
        )

    def check_hub(self, hub_id: UUID) -> None:
        if self._enrolment is not None and self._enrolment.hub_id != hub_id:
            raise WrongHub(
                f"This node belongs to hub {self._enrolment.hub_id}, but hub {hub_id} answers. "
                f"To serve the new one, start with another --state-dir (or remove {self._state.root})."
            )

    def take_over_keys(self, signed: Sequence[str], *, now_seconds: float) -> bool:
        """Follows a rotation of the hub's keys. False when no pinned key vouches for the hub's present ones."""
        current = self._get_enrolment()
        if not signed:
            return True
        vouched = tokens.find_vouched_keys(
            signed, node_id=current.node_id, pinned=current.hub_keys, now_seconds=now_seconds
        )
        if vouched is None:
            return False
        if vouched != current.hub_keys:
            self._store(msgspec.structs.replace(current, hub_keys=vouched))
        return True

    def knows_one_of(self, hub_keys: Sequence[HubKey]) -> bool:
        pinned = {key.public_key for key in self.hub_keys}
        return any(key.public_key in pinned for key in hub_keys)

    def _get_enrolment(self) -> Enrolment:
        if self._enrolment is None:
            raise RuntimeError("this node has not enrolled yet")
        return self._enrolment

    def _store(self, enrolment: Enrolment) -> None:
        files.write_whole(self._state.enrolment_path, msgspec.json.format(msgspec.json.encode(enrolment)))
        self._enrolment = enrolment


def _load_or_make_key(state: StateDir) -> Ed25519PrivateKey:
    found = files.find_bytes(state.key_path)
    if found is not None:
        key = serialization.load_pem_private_key(found, password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{state.key_path} is not an Ed25519 key")
        return key
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files.write_whole(state.key_path, text)
    return key


def _digest(request: EnrolNode) -> str:
    """Free disk space changes with every start and is no reason to enrol again, unless it halved or doubled.

    Neither is a speed that was measured a little differently; that there is one where there was none is.
    """
    hardware, hosting = request.hardware, request.hosting
    coarse = msgspec.structs.replace(
        hardware,
        disk_bytes=1 << (hardware.disk_bytes.bit_length()),
        cpu_tflops=_blur(hardware.cpu_tflops),
        gpus=tuple(msgspec.structs.replace(gpu, tflops=_blur(gpu.tflops)) for gpu in hardware.gpus),
    )
    if hosting is not None:
        hosting = msgspec.structs.replace(hosting, flops_per_second=0.0)
    rounded = msgspec.to_builtins(msgspec.structs.replace(request, hardware=coarse, hosting=hosting))
    # Told with every token.
    del rounded["allows"]
    return hashlib.sha256(msgspec.json.encode(rounded)).hexdigest()


def _blur(tflops: float | None) -> float | None:
    return None if tflops is None else 1.0
