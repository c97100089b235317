-- name: list_tries
-- Every attempt of these slices in its order, with what it says about checkpoints; through attempts_number_unique.
SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.state, a.cause, a.exit_code, n.account_id AS owner_id,
       j.account_id AS submitter_id, s.state AS slice_state, a.id IS NOT DISTINCT FROM s.accepted_attempt_id AS has_delivered,
       k.attempt_id IS NOT NULL AS has_saved, k.left_out_after, k.verdict
  FROM unnest(:job_ids::uuid[], :slice_indexes::integer[]) AS w (job_id, slice_index)
  JOIN slices s ON s.job_id = w.job_id AND s.slice_index = w.slice_index
  JOIN jobs j ON j.id = w.job_id
  JOIN attempts a ON a.job_id = w.job_id AND a.slice_index = w.slice_index
  JOIN nodes n ON n.id = a.node_id
  LEFT JOIN attempt_checkpoints k ON k.attempt_id = a.id
 ORDER BY a.job_id, a.slice_index, a.number;

-- name: list_resumed
-- Of these jobs those in which an attempt has saved or delivered what began with the checkpoint of somebody else. What was
-- never left out is what every later attempt of its slice began with. Through attempt_checkpoints_slice_idx.
SELECT DISTINCT k.job_id, n.account_id AS saved_by, m.account_id AS resumed_by
  FROM attempt_checkpoints k
  JOIN attempts a ON a.job_id = k.job_id AND a.slice_index = k.slice_index AND a.number > k.attempt_number
  JOIN attempts b ON b.id = k.attempt_id
  JOIN nodes n ON n.id = b.node_id
  JOIN nodes m ON m.id = a.node_id
 WHERE k.job_id = ANY(:job_ids::uuid[]) AND k.left_out_after IS NULL AND n.account_id <> m.account_id
   AND (EXISTS (SELECT FROM attempt_checkpoints l WHERE l.attempt_id = a.id)
        OR EXISTS (SELECT FROM slices s WHERE s.job_id = a.job_id AND s.slice_index = a.slice_index
                                          AND s.accepted_attempt_id = a.id));

-- name: find_kept_number$
-- The attempt whose checkpoint the slice goes on from.
SELECT attempt_number FROM job_checkpoints WHERE job_id = :job_id AND slice_index = :slice_index;

-- name: leave_out!
-- The caller has locked the slice.
UPDATE attempt_checkpoints SET left_out_after = :after
 WHERE job_id = :job_id AND slice_index = :slice_index AND attempt_number = ANY(:numbers::integer[])
   AND left_out_after IS NULL;

-- name: go_back!
-- The slice goes on from what an earlier attempt has saved.
UPDATE job_checkpoints SET
       attempt_id = k.attempt_id, attempt_number = k.attempt_number, number = k.number, sha256 = k.sha256,
       files = k.files, size_bytes = k.size_bytes, progress = k.progress, accepted_at = k.accepted_at
  FROM attempt_checkpoints k
 WHERE job_checkpoints.job_id = :job_id AND job_checkpoints.slice_index = :slice_index
   AND k.job_id = :job_id AND k.slice_index = :slice_index AND k.attempt_number = :number;

-- name: forget_kept!
-- The slice begins anew.
DELETE FROM job_checkpoints WHERE job_id = :job_id AND slice_index = :slice_index;

-- name: list_unjudged
-- What was left out of slices that have ended; through attempt_checkpoints_unjudged_idx.
SELECT k.job_id, k.slice_index, k.attempt_number
  FROM attempt_checkpoints k JOIN slices s ON s.job_id = k.job_id AND s.slice_index = k.slice_index
 WHERE k.left_out_after IS NOT NULL AND k.verdict IS NULL AND s.finished_at IS NOT NULL
 ORDER BY k.job_id, k.slice_index, k.attempt_number LIMIT :limit_count;

-- name: set_verdict$
-- Once, whoever else is at it.
UPDATE attempt_checkpoints SET verdict = :verdict::checkpoint_verdict, judged_at = clock_timestamp()
 WHERE attempt_id = :attempt_id AND left_out_after IS NOT NULL AND verdict IS NULL RETURNING true;
