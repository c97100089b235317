"""A node that claims to have saved what it has not: in its own name, with its own lease, while its job runs.

Speaks as the agent does, with the key in the agent's folder. Every one of these must earn nothing: most are refused
at once, and nonsense of a plausible age, which no hub can tell from work, is found out by those who begin with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from computepool.core.errors import InvalidRequest
from computepool.node.attempt_folder import AttemptFolder
from computepool.node.hub_client import HubClient
from computepool.node.identity import Identity
from computepool.node.state_dir import StateDir
from computepool.wire.attempts import Checkpoint, OutputFile
from tests.support.agent_process import AgentProcess

# Above every number of the honest runner: what is refused must not stand in the way of what it saves later.
NUMBER = 1_000_000
CONTENT = b"not a second of work"


def _name(content: bytes) -> OutputFile:
    return OutputFile(path="state.json", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


FORGERIES = {
    "empty": Checkpoint(number=NUMBER, run_seconds=1.0, files=()),
    "files that nobody sent": Checkpoint(number=NUMBER, run_seconds=1.0, files=(_name(b"never sent"),)),
    "more time than there was": Checkpoint(number=NUMBER, run_seconds=36_000.0, files=(_name(CONTENT),)),
}


# The hub has no reason to refuse it. No program reads it as its own.
NONSENSE = Checkpoint(number=NUMBER, run_seconds=1.0, files=(_name(CONTENT),))


async def send_forgeries(hub_url: str, agent: AgentProcess, attempt_id: UUID) -> dict[str, str]:
    """What the hub said to each; raises if one was accepted."""
    answers: dict[str, str] = {}
    async with _speak_as(hub_url, agent, attempt_id) as (hub, lease_secret):
        for name, forged in FORGERIES.items():
            try:
                answer = await hub.save_checkpoint(attempt_id, lease_secret, forged)
            except InvalidRequest as refusal:
                answers[name] = refusal.message
                continue
            assert not answer.accepted, f"a checkpoint was accepted: {name}"
            answers[name] = f"{len(answer.missing)} files are missing"
    return answers


async def save_nonsense(hub_url: str, agent: AgentProcess, attempt_id: UUID) -> int:
    """In the place of all that was saved before. Returns the seconds that it is good for, until somebody begins."""
    async with _speak_as(hub_url, agent, attempt_id) as (hub, lease_secret):
        answer = await hub.save_checkpoint(attempt_id, lease_secret, NONSENSE)
    assert answer.accepted, answer
    return answer.saved_seconds


@asynccontextmanager
async def _speak_as(hub_url: str, agent: AgentProcess, attempt_id: UUID) -> AsyncIterator[tuple[HubClient, str]]:
    """In the agent's name, with the one file sent that some forgeries really have."""
    state = StateDir(agent.state_dir)
    assignment = AttemptFolder(state.attempts / str(attempt_id)).find_assignment()
    assert assignment is not None
    hub = HubClient(hub_url, agent_version="forger")
    hub.sign_in_as(Identity(state))
    try:
        file = _name(CONTENT)
        await hub.put_output(
            attempt_id, assignment.lease_secret, sha256=file.sha256, size_bytes=file.size_bytes, body=_read_content
        )
        yield hub, assignment.lease_secret
    finally:
        await hub.close()


async def _read_content() -> AsyncIterator[bytes]:
    yield CONTENT
