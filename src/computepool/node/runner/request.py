"""What the agent asks of a runner: one attempt, as it stands in request.json. Refuses what it cannot trust."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.sandbox.backends import default_name
from computepool.node.sandbox.port import InputFile, Limits

ATTEMPT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CHECKPOINT_SECONDS = 300.0


class InvalidAttempt(ValueError):
    """The request breaks a rule; the message names it."""


class _Fields(NamedTuple):
    attempt_id: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    inputs: tuple[InputFile, ...]
    limits: Limits
    isolation: IsolationLevel
    slot: str
    lease_seconds: float  # without a sign of life from the agent for this long, the job is stopped
    agent_alive_path: str  # a file the agent touches; only changes of its time of modification count
    backend: str  # which of the tested sandboxes
    image: str | None
    devices: tuple[str, ...]
    environment: str | None
    egress: tuple[str, ...]
    checkpoint_seconds: float  # how often what the job saves is taken out
    secrets: tuple[str, ...]  # names in env whose values are removed from what the job prints
    restored: Mapping[str, str]  # hashes of the inputs that are the last checkpoint, by their path in its folder


class AttemptRequest(_Fields):
    """One attempt, checked when it is made. Becomes and comes from JSON field by field, so that agent and
    runner may differ in age."""

    __slots__ = ()

    def __new__(
        cls,
        *,
        attempt_id: str,
        command: tuple[str, ...],
        env: Mapping[str, str],
        inputs: tuple[InputFile, ...],
        limits: Limits,
        isolation: IsolationLevel,
        slot: str,
        lease_seconds: float,
        agent_alive_path: str,
        backend: str = "",
        image: str | None = None,
        devices: tuple[str, ...] = (),
        environment: str | None = None,
        egress: tuple[str, ...] = (),
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        secrets: tuple[str, ...] = (),
        restored: Mapping[str, str] = MappingProxyType({}),
    ) -> AttemptRequest:
        request = super().__new__(
            cls,
            attempt_id,
            command,
            env,
            inputs,
            limits,
            isolation,
            slot,
            lease_seconds,
            agent_alive_path,
            backend or default_name(isolation),
            image,
            devices,
            environment,
            egress,
            checkpoint_seconds,
            secrets,
            restored,
        )
        request._check()
        return request

    def _check(self) -> None:
        """Raises InvalidAttempt for what no runner could do or no kernel would take."""
        if not ATTEMPT_ID.fullmatch(self.attempt_id):
            raise InvalidAttempt(f"{self.attempt_id!r} cannot name files and groups")
        if not self.command or not self.command[0] or any("\0" in word for word in self.command):
            raise InvalidAttempt("the command must have a first word, and no word may hold a zero byte")
        for name, value in self.env.items():
            if not ENV_NAME.fullmatch(name) or "\0" in value:
                raise InvalidAttempt(f"{name!r} is not a usable environment variable")
        for name, limit in self.limits._asdict().items():
            if limit <= 0:
                raise InvalidAttempt(f"limit {name} must be above zero")
        if self.checkpoint_seconds <= 0:
            raise InvalidAttempt("checkpoint_seconds must be above zero")
        if len({file.path for file in self.inputs}) != len(self.inputs):
            raise InvalidAttempt("two inputs have the same path")

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt_id": self.attempt_id,
            "command": list(self.command),
            "env": dict(self.env),
            "inputs": [file._asdict() for file in self.inputs],
            "limits": self.limits._asdict(),
            "isolation": self.isolation.value,
            "slot": self.slot,
            "lease_seconds": self.lease_seconds,
            "agent_alive_path": self.agent_alive_path,
            "backend": self.backend,
            "image": self.image,
            "devices": list(self.devices),
            "environment": self.environment,
            "egress": list(self.egress),
            "checkpoint_seconds": self.checkpoint_seconds,
            "secrets": list(self.secrets),
            "restored": dict(self.restored),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> AttemptRequest:
        try:
            return cls(
                attempt_id=str(content["attempt_id"]),
                command=tuple(str(word) for word in content["command"]),
                env={str(name): str(value) for name, value in content["env"].items()},
                inputs=tuple(
                    InputFile(str(file["path"]), str(file["source"]), bool(file.get("executable", False)))
                    for file in content["inputs"]
                ),
                limits=_limits_from_json(content["limits"]),
                isolation=IsolationLevel(content["isolation"]),
                slot=str(content["slot"]),
                lease_seconds=float(content["lease_seconds"]),
                agent_alive_path=str(content["agent_alive_path"]),
                backend=str(content.get("backend", "")),
                image=_text_or_none(content.get("image")),
                devices=tuple(str(path) for path in content.get("devices", ())),
                environment=_text_or_none(content.get("environment")),
                egress=tuple(str(target) for target in content.get("egress", ())),
                checkpoint_seconds=float(content.get("checkpoint_seconds", CHECKPOINT_SECONDS)),
                secrets=tuple(str(name) for name in content.get("secrets", ())),
                restored={str(path): str(sha256) for path, sha256 in content.get("restored", {}).items()},
            )
        except InvalidAttempt:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InvalidAttempt(f"the request cannot be read: {type(error).__name__} {error}") from error


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _limits_from_json(content: Mapping[str, Any]) -> Limits:
    return Limits(
        memory_bytes=int(content["memory_bytes"]),
        pids_max=int(content["pids_max"]),
        cpu_cores=float(content["cpu_cores"]),
        disk_bytes=int(content["disk_bytes"]),
        wall_seconds=float(content["wall_seconds"]),
        log_bytes=int(content["log_bytes"]),
    )
