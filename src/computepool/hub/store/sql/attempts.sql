-- name: insert_attempts
-- Ordered by node and slot; a slot that another hub has just filled is passed over by the unique index,
-- and its slice stays queued.
INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, expires_at)
SELECT g.id, g.job_id, g.slice_index, g.number, g.node_id, g.slot,
       clock_timestamp() + :lease_seconds::double precision * interval '1 second'
  FROM unnest(:ids::uuid[], :job_ids::uuid[], :slice_indexes::integer[], :numbers::integer[], :node_ids::uuid[],
              :slots::text[]) AS g (id, job_id, slice_index, number, node_id, slot)
 ORDER BY g.node_id, g.slot
ON CONFLICT DO NOTHING RETURNING id;

-- name: list_live_by_nodes
SELECT id, job_id, slice_index, number, node_id, slot, state FROM attempts
 WHERE node_id = ANY(:node_ids::uuid[]) AND state IN ('leased', 'running');

-- name: list_standing
-- How the attempts that nodes say they run stand here.
SELECT a.id, a.node_id, a.state, a.cause, s.state AS slice_state
  FROM attempts a JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
 WHERE a.id = ANY(:ids::uuid[]);

-- name: list_reported
-- What the judgement of a completion needs and no lock protects, because it never changes.
SELECT a.id, a.job_id, a.slice_index, j.account_id FROM attempts a JOIN jobs j ON j.id = a.job_id
 WHERE a.id = ANY(:ids::uuid[]);

-- name: lock_attempts_of_slices
-- Every attempt of the slices that may still matter, in order of id.
SELECT id, job_id, slice_index, number, node_id, slot, state, cause, report_sha256, expires_at FROM attempts
 WHERE (job_id, slice_index) IN (SELECT * FROM unnest(:job_ids::uuid[], :slice_indexes::integer[]))
   AND (state IN ('leased', 'running') OR id = ANY(:ids::uuid[]))
 ORDER BY id FOR UPDATE;

-- name: apply_attempts!
UPDATE attempts SET
       state = c.state, cause = c.cause, report_sha256 = coalesce(c.report_sha256, attempts.report_sha256),
       started_at = CASE WHEN c.state = 'running' THEN coalesce(attempts.started_at, clock_timestamp())
                         ELSE attempts.started_at END,
       finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'lost', 'cancelled')
                          THEN clock_timestamp() END
  FROM unnest(:ids::uuid[], :states::attempt_state[], :causes::failure_cause[], :report_sha256s::bytea[])
       AS c (id, state, cause, report_sha256)
 WHERE attempts.id = c.id;

-- name: record_reports!
-- What the nodes said of the attempts' ends, beside what core decided.
UPDATE attempts SET exit_code = r.exit_code, message = r.message, run_seconds = r.run_seconds,
       cpu_seconds = r.cpu_seconds, memory_bytes_peak = r.memory_bytes_peak, outputs = r.outputs::jsonb,
       result_sha256 = r.result_sha256, receipt = r.receipt
  FROM unnest(:ids::uuid[], :exit_codes::integer[], :messages::text[], :run_seconds::double precision[],
              :cpu_seconds::double precision[], :memory_bytes_peaks::bigint[], :outputs::text[],
              :result_sha256s::bytea[], :receipts::text[])
       AS r (id, exit_code, message, run_seconds, cpu_seconds, memory_bytes_peak, outputs, result_sha256, receipt)
 WHERE attempts.id = r.id;

-- name: extend_leases!
-- Beats of many nodes in one statement; an attempt is extended only for the node that holds it.
WITH beats AS (SELECT * FROM unnest(:ids::uuid[], :node_ids::uuid[]) AS b (id, node_id)),
     locked AS (SELECT a.id FROM attempts a JOIN beats b ON b.id = a.id AND b.node_id = a.node_id
                 WHERE a.state IN ('leased', 'running') ORDER BY a.id FOR UPDATE OF a)
UPDATE attempts SET expires_at = clock_timestamp() + :lease_seconds::double precision * interval '1 second'
  FROM locked WHERE attempts.id = locked.id;

-- name: list_unacknowledged
SELECT a.id, a.job_id, a.slice_index FROM attempts a
  JOIN unnest(:ids::uuid[], :node_ids::uuid[]) AS b (id, node_id) ON b.id = a.id AND b.node_id = a.node_id
 WHERE a.state = 'leased';

-- name: list_overdue
SELECT id, job_id, slice_index FROM attempts
 WHERE state IN ('leased', 'running')
   AND expires_at < clock_timestamp() - :grace_seconds::double precision * interval '1 second'
 ORDER BY expires_at LIMIT :limit_count;

-- name: find_held^
-- An attempt as the node that holds it needs it for files and logs.
SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.state, a.log_bytes, j.account_id, j.spec,
       s.attempt_count AS newest_number
  FROM attempts a JOIN jobs j ON j.id = a.job_id
  JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
 WHERE a.id = :id;

-- name: list_attempts
SELECT * FROM attempts WHERE job_id = :job_id AND slice_index = ANY(:slice_indexes::integer[])
 ORDER BY slice_index, number;
