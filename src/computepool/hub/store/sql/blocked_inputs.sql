-- name: insert_blocked_input^
-- Blocked again: the first word stands.
INSERT INTO blocked_inputs (sha256, why, blocked_by) VALUES (:sha256, :why, :blocked_by)
ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256
RETURNING *;

-- name: delete_blocked_input$
DELETE FROM blocked_inputs WHERE sha256 = :sha256 RETURNING sha256;

-- name: list_blocked_inputs
SELECT * FROM blocked_inputs WHERE sha256 > :after ORDER BY sha256 LIMIT :limit_count;

-- name: list_hashes
-- With whether it was blocked a moment ago: then a hub that had not heard of it may have taken a job meanwhile.
SELECT sha256, blocked_at > clock_timestamp() - :seconds::double precision * interval '1 second' AS fresh
  FROM blocked_inputs;

-- name: list_jobs_using
-- Looks through all open jobs: a block is rare, and must not cost every submit an index.
SELECT id, account_id FROM jobs
 WHERE finished_at IS NULL AND id > :after
   AND (spec -> 'files' @> jsonb_build_array(jsonb_build_object('sha256', encode(:sha256::bytea, 'hex')))
        OR sha256(convert_to(spec ->> 'script', 'UTF8')) = :sha256::bytea)
 ORDER BY id LIMIT :limit_count;

-- name: list_jobs_of_suspended
-- By accounts_suspended_idx and jobs_open_idx. Not jobs of which all that is left waits to be verified, nor the runs by
-- which that is done: nodes have worked for it, and would never hear what came of it.
SELECT j.id, j.account_id FROM accounts a JOIN jobs j ON j.account_id = a.id
 WHERE a.suspended_at IS NOT NULL AND j.finished_at IS NULL AND j.checks_attempt_id IS NULL
   AND EXISTS (SELECT 1 FROM slices s WHERE s.job_id = j.id AND s.state IN ('queued', 'leased', 'running'))
 ORDER BY j.id LIMIT :limit_count;
