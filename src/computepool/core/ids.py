"""Names for identifiers, so that a job's id is never handed in where a node's is meant."""

from __future__ import annotations

from typing import NewType
from uuid import UUID

AccountId = NewType("AccountId", UUID)
KeyId = NewType("KeyId", UUID)
NodeId = NewType("NodeId", UUID)
JobId = NewType("JobId", UUID)
AttemptId = NewType("AttemptId", UUID)
ShapeId = NewType("ShapeId", int)
SlotName = NewType("SlotName", str)
NetworkId = NewType("NetworkId", UUID)
RunId = NewType("RunId", UUID)
