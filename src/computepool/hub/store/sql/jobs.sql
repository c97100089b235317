-- name: insert_job!
INSERT INTO jobs (id, account_id, name, spec, shape_id, priority, slice_count, retries, wall_seconds, expires_at)
VALUES (:id, :account_id, :name, :spec, :shape_id, :priority, :slice_count, :retries, :wall_seconds, :expires_at);

-- name: insert_slices!
INSERT INTO slices (job_id, slice_index, shape_id, priority)
SELECT :job_id, i, :shape_id, :priority FROM generate_series(0, :slice_count::integer - 1) AS i;

-- name: find_job^
-- Live attempts are counted through attempts_live_slice_idx; what is neither live nor ended is queued.
SELECT j.*,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'leased') AS leased_count,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'running') AS running_count
  FROM jobs j WHERE j.id = :id;

-- name: list_jobs
-- Newest first: ids are ordered by time. An operator lists all (account_id is null).
SELECT j.*,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'leased') AS leased_count,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'running') AS running_count
  FROM jobs j
 WHERE (:account_id::uuid IS NULL OR j.account_id = :account_id)
   AND (:before::uuid IS NULL OR j.id < :before)
   AND (:state::job_state IS NULL OR j.state = :state::job_state)
 ORDER BY j.id DESC LIMIT :limit_count;

-- name: list_specs
SELECT id, account_id, spec, slice_count, wall_seconds FROM jobs WHERE id = ANY(:ids::uuid[]);

-- name: count_open_slices$
SELECT coalesce(sum(slice_count - succeeded_count - failed_count - cancelled_count), 0)::bigint
  FROM jobs WHERE account_id = :account_id AND finished_at IS NULL;

-- name: start_jobs
-- Only the first lease of a job touches its row.
UPDATE jobs SET state = 'running', started_at = clock_timestamp()
 WHERE id = ANY(:ids::uuid[]) AND state = 'queued' RETURNING id, account_id;

-- name: lock_jobs
SELECT id, account_id, name, slice_count, succeeded_count, failed_count, cancelled_count, started_at, state, retries
  FROM jobs WHERE id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE;

-- name: set_counts!
UPDATE jobs SET succeeded_count = c.succeeded, failed_count = c.failed, cancelled_count = c.cancelled,
       state = c.state,
       finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'cancelled') THEN clock_timestamp() END
  FROM unnest(:ids::uuid[], :succeeded::integer[], :failed::integer[], :cancelled::integer[], :states::job_state[])
       AS c (id, succeeded, failed, cancelled, state)
 WHERE jobs.id = c.id;

-- name: list_expired
SELECT id FROM jobs WHERE finished_at IS NULL AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT :limit_count;

-- name: find_idempotent^
SELECT request_sha256, job_id FROM idempotency WHERE account_id = :account_id AND key = :key;

-- name: insert_idempotent$
-- Waits for a twin that is being written at this moment; nothing returned means the twin won.
INSERT INTO idempotency (account_id, key, request_sha256, job_id)
VALUES (:account_id, :key, :request_sha256, :job_id) ON CONFLICT DO NOTHING RETURNING job_id;
