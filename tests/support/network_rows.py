"""What the schema of networks and runs refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from computepool.core.networks.audit import AuditOutcome
from computepool.core.networks.run import RunState

ENUMS = {"run_state": RunState, "audit_outcome": AuditOutcome}

_HASH = "'\\x" + "00" * 32 + "'"
# As in tests/integration/test_schema.py.
_ACCOUNT, _NODE = UUID(int=1), UUID(int=4)
NETWORK, RUN, JOB = UUID(int=21), UUID(int=22), UUID(int=23)

# One network, one run of one seat, one VNode on it.
ROWS = f"""
INSERT INTO networks (id, account_id, name, spec, digest, vnode_count, parameter_count)
VALUES ('{NETWORK}', '{_ACCOUNT}', 'net', '{{}}', {_HASH}, 1, 0);
INSERT INTO runs (id, network_id, account_id, job_id, steps, options, data, expires_at)
VALUES ('{RUN}', '{NETWORK}', '{_ACCOUNT}', '{JOB}', 10, '{{}}', '[]', now());
INSERT INTO run_seats (run_id, seat, slice_index) VALUES ('{RUN}', 'seat-0', 0), ('{RUN}', 'seat-1', 1);
INSERT INTO placements (run_id, vnode_id, replica, position, seat, incarnation)
VALUES ('{RUN}', 'a', 0, 0, 'seat-0', 2);
"""


def _set(table: str, values: str) -> str:
    return f"{ROWS}UPDATE {table} SET {values};"


def _insert(table: str, **values: Any) -> str:
    return f"{ROWS}INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))});"


def _pnode(**values: Any) -> str:
    given = {"node_id": f"'{_NODE}'", "numeric_class": "'avx2'", "memory_bytes": 1, "flops_per_second": 1.0}
    return _insert("pnodes", **{**given, **values})


def _checkpoint(**values: Any) -> str:
    return _insert("run_checkpoints", **{"run_id": f"'{RUN}'", "step": 1, **values})


def _part(**values: Any) -> str:
    given = {
        "run_id": f"'{RUN}'",
        "step": 1,
        "vnode_id": "'a'",
        "epoch": 1,
        "sha256": _HASH,
        "size_bytes": 0,
        "digest": "''",
    }
    return _checkpoint() + _insert("run_checkpoint_parts", **{**given, **values}).removeprefix(ROWS)


def _blob(**values: Any) -> str:
    return _insert("run_blobs", **{"run_id": f"'{RUN}'", "sha256": _HASH, "size_bytes": 0, **values})


def _metric(**values: Any) -> str:
    given = {"run_id": f"'{RUN}'", "step": 1, "epoch": 1, "loss_bits": 0, "samples_per_second": 0}
    return _insert("run_metrics", **{**given, **values})


def _audit(**values: Any) -> str:
    given = {
        "id": f"'{RUN}'",
        "run_id": f"'{RUN}'",
        "epoch": 1,
        "seat": "'seat-0'",
        "attempt_id": f"'{JOB}'",
        "node_id": f"'{_NODE}'",
        "from_step": 0,
        "until_step": 1,
        "outcome": "'unverified'",
        "witness_ids": "'{}'",
        "message": "''",
    }
    return _insert("run_audits", **{**given, **values})


POSSIBLE = [
    ROWS,
    _set(
        "runs",
        f"epoch = 1, state = 'running', step = 3, checkpoint_step = 3, owner_id = '{RUN}', owner_until = now()",
    ),
    _set("runs", "state = 'stopped', finished_at = now()"),
    _set("runs", "epoch = 1, state = 'succeeded', finished_at = now(), step = 10, checkpoint_step = 10"),
    _set("placements", "seat = 'seat-1', incarnation = 3"),
    _pnode(),
    _pnode(pace_ratio=0.5, paced_at="now()"),
    _checkpoint(complete_at="now()", audited_at="now()"),
    _part(),
    _blob(),
    _metric(),
    _audit(),
    _audit(outcome="'agreed'", witness_ids=f"ARRAY['{JOB}'::uuid]"),
]
IMPOSSIBLE = [
    ("attempts_checkpoint_check", "UPDATE attempts SET checkpoint_seconds = -1"),
    ("networks_digest_check", _set("networks", "digest = '\\x00'")),
    ("networks_vnodes_check", _set("networks", "vnode_count = 0")),
    ("networks_parameters_check", _set("networks", "parameter_count = -1")),
    ("pnodes_class_check", _pnode(numeric_class="''")),
    ("pnodes_memory_check", _pnode(memory_bytes=0)),
    ("pnodes_flops_check", _pnode(flops_per_second=0)),
    ("pnodes_flops_check", _pnode(flops_per_second="'infinity'")),
    ("pnodes_rate_check", _pnode(bytes_per_second=0)),
    ("pnodes_rate_check", _pnode(bytes_per_second="'infinity'")),
    ("pnodes_latency_check", _pnode(latency_seconds=-1)),
    ("pnodes_latency_check", _pnode(latency_seconds="'infinity'")),
    ("pnodes_measured_rate_check", _pnode(measured_bytes_per_second=0)),
    ("pnodes_measured_rate_check", _pnode(measured_bytes_per_second="'infinity'")),
    ("pnodes_pace_check", _pnode(pace_ratio=0, paced_at="now()")),
    ("pnodes_pace_check", _pnode(pace_ratio="'infinity'", paced_at="now()")),
    ("pnodes_paced_check", _pnode(pace_ratio=0.5)),
    ("pnodes_paced_check", _pnode(paced_at="now()")),
    ("pnodes_held_check", _pnode(held_sha256s="array_fill('\\x00'::bytea, ARRAY[65])")),
    (
        "runs_epoch_check",
        _insert(
            "runs",
            id=f"'{JOB}'",
            network_id=f"'{NETWORK}'",
            account_id=f"'{_ACCOUNT}'",
            job_id=f"'{RUN}'",
            steps=1,
            options="'{}'",
            data="'[]'",
            expires_at="now()",
            epoch=-1,
            reports_from_epoch=0,
        ),
    ),
    ("runs_steps_check", _set("runs", "steps = 0")),
    ("runs_steps_check", _set("runs", "step = 11")),
    ("runs_steps_check", _set("runs", "step = 1, checkpoint_step = 2")),
    ("runs_steps_check", _set("runs", "checkpoint_step = -1")),
    ("runs_exact_check", _set("runs", "inexact_from_step = 11")),
    ("runs_exact_check", _set("runs", "inexact_from_step = -1")),
    ("runs_reports_check", _set("runs", "reports_from_epoch = 2")),
    ("runs_recoveries_check", _set("runs", "recoveries = -1")),
    ("runs_owner_check", _set("runs", f"owner_id = '{RUN}'")),
    ("runs_owner_check", _set("runs", "owner_until = now()")),
    ("runs_finished_check", _set("runs", "state = 'stopped'")),
    ("runs_finished_check", _set("runs", "finished_at = now()")),
    ("runs_started_check", _set("runs", "state = 'running'")),
    ("run_seats_vacant_check", _set("run_seats", f"attempt_id = '{RUN}' WHERE seat = 'seat-0'")),
    ("run_seats_vacant_check", _set("run_seats", f"node_id = '{RUN}' WHERE seat = 'seat-0'")),
    (
        "placements_incarnation_check",
        _insert(
            "placements",
            run_id=f"'{RUN}'",
            vnode_id="'b'",
            replica=0,
            position=1,
            seat="'seat-0'",
            incarnation=0,
        ),
    ),
    ("run_checkpoints_step_check", _checkpoint(step=0)),
    ("run_checkpoints_audit_check", _checkpoint(audited_at="now()")),
    ("run_checkpoint_parts_epoch_check", _part(epoch=0)),
    ("run_checkpoint_parts_hash_check", _part(sha256="'\\x00'")),
    ("run_checkpoint_parts_size_check", _part(size_bytes=-1)),
    ("run_blobs_hash_check", _blob(sha256="'\\x00'")),
    ("run_blobs_size_check", _blob(size_bytes=-1)),
    ("run_metrics_step_check", _metric(step=0)),
    ("run_metrics_epoch_check", _metric(epoch=0)),
    ("run_audits_span_check", _audit(epoch=0)),
    ("run_audits_span_check", _audit(from_step=-1)),
    ("run_audits_span_check", _audit(until_step=0)),
    ("run_audits_agreed_check", _audit(outcome="'agreed'")),
    ("run_audits_other_check", _audit(witness_ids=f"ARRAY['{_NODE}'::uuid]")),
]
# What triggers refuse.
NEVER = [
    _set("runs", "epoch = 3") + "UPDATE runs SET epoch = 2;",
    _set("placements", "incarnation = 1"),
    _set("placements", "seat = 'seat-1'"),
]
