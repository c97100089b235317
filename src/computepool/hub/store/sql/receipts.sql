-- name: take_unverified
-- In the order they came. SKIP LOCKED: another hub may be looking at some of them.
SELECT r.id, r.node_id, r.token, n.public_key FROM receipts r JOIN nodes n ON n.id = r.node_id
 WHERE r.state = 'unverified' ORDER BY r.created_at LIMIT :limit_count FOR UPDATE OF r SKIP LOCKED;

-- name: list_covered
-- The results that each receipt has to vouch for.
SELECT receipt_id, id AS attempt_id, result_sha256 FROM attempts
 WHERE receipt_id = ANY(:ids::uuid[]) AND state = 'succeeded';

-- name: set_states!
UPDATE receipts SET state = c.state
  FROM unnest(:ids::uuid[], :states::receipt_state[]) AS c (id, state) WHERE receipts.id = c.id;

-- name: has_unverified$
SELECT EXISTS (SELECT 1 FROM receipts WHERE state = 'unverified'
                  AND created_at < clock_timestamp() - :seconds::double precision * interval '1 second');

-- name: list_signed
-- Results of a job in the order of its slices, with what their nodes have signed for them. Of whole slices, hence the
-- ties. An owner sees those of their own nodes (owner_id is not null). What is kept back is not shown. A result that was taken over from the run that
-- checked it (copy_result) was signed for as that run's, whose report is the same.
SELECT a.id AS attempt_id, coalesce(o.id, a.id) AS signed_id, a.slice_index, a.number,
       a.id IS NOT DISTINCT FROM s.accepted_attempt_id AS accepted, a.result_sha256, a.outputs, a.node_id, n.public_key,
       r.id AS receipt_id, r.token
  FROM attempts a JOIN nodes n ON n.id = a.node_id
  JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
  LEFT JOIN attempts o ON a.receipt_id IS NULL AND o.receipt_id IS NOT NULL AND o.node_id = a.node_id
                      AND o.finished_at = a.finished_at AND o.report_sha256 = a.report_sha256
  LEFT JOIN receipts r ON r.id = coalesce(a.receipt_id, o.receipt_id)
 WHERE a.job_id = :job_id AND a.slice_index > :after_index AND (a.state = 'succeeded' OR a.receipt_id IS NOT NULL)
   AND s.state <> 'verifying' AND (:owner_id::uuid IS NULL OR n.account_id = :owner_id)
 ORDER BY a.slice_index FETCH FIRST :limit_count ROWS WITH TIES;

-- name: has_signed$
SELECT EXISTS (SELECT 1 FROM attempts a JOIN nodes n ON n.id = a.node_id
                WHERE a.job_id = :job_id AND n.account_id = :owner_id
                  AND (a.state = 'succeeded' OR a.receipt_id IS NOT NULL));
