"""What the schema of disputes refuses: each statement breaks one rule and no other. Account 1 and attempt 6 exist."""

from __future__ import annotations

from uuid import UUID

from computepool.core.ledger.dispute import DisputeOrigin, DisputeState

ENUMS = {"dispute_state": DisputeState, "dispute_origin": DisputeOrigin}

_SUBMITTER, _OWNER, _ATTEMPT = UUID(int=1), UUID(int=71), UUID(int=6)
_PEOPLE = (
    f"INSERT INTO accounts SELECT '{_OWNER}', 'owner@example.org', name, password_hash, roles, 1, 1, 1 FROM accounts"
)


def insert_dispute(**changes: object) -> str:
    """With the owner that it is about; a None is left out."""
    row: dict[str, object] = {
        "id": UUID(int=70),
        "attempt_id": _ATTEMPT,
        "submitter_id": _SUBMITTER,
        "owner_id": _OWNER,
        "origin": "submitter",
        "opened_by": _SUBMITTER,
        "reason": "the picture is black",
        **changes,
    }
    given = {name: value for name, value in row.items() if value is not None}
    values = ", ".join("now()" if value == "now()" else f"'{value}'" for value in given.values())
    return f"{_PEOPLE}; INSERT INTO disputes ({', '.join(given)}) VALUES ({values})"


_DECIDED = {"decided_at": "now()", "decided_by": _OWNER}

POSSIBLE = [
    insert_dispute(),
    insert_dispute(reason="x" * 300),
    insert_dispute(origin="receipt", opened_by=None),
    insert_dispute(state="upheld", note="x" * 300, **_DECIDED),
    # The hub itself has decided.
    insert_dispute(state="dismissed", decided_at="now()"),
]

# The rows of tests/integration/test_schema.py's table, for disputes.
IMPOSSIBLE = [
    ("disputes_reason_check", insert_dispute(reason="")),
    ("disputes_reason_check", insert_dispute(reason="x" * 301)),
    ("disputes_reason_check", insert_dispute(note="x" * 301)),
    ("disputes_opened_check", insert_dispute(opened_by=None)),
    ("disputes_opened_check", insert_dispute(origin="receipt")),
    ("disputes_opened_check", insert_dispute(origin="operator", opened_by=None)),
    ("disputes_decided_check", insert_dispute(state="upheld")),
    ("disputes_decided_check", insert_dispute(**_DECIDED)),
    ("disputes_decided_check", insert_dispute(decided_by=_OWNER)),
    ("disputes_sides_check", insert_dispute(owner_id=_SUBMITTER)),
]
