-- name: insert_jobs!
-- Jobs and all their slices in one statement: a job of 100,000 slices travels as one small row.
WITH new AS (
    INSERT INTO jobs (id, account_id, name, spec, shape_id, priority, slice_count, retries, wall_seconds, expires_at,
                      created_at)
    SELECT *, :created_at::timestamptz
      FROM unnest(:ids::uuid[], :account_ids::uuid[], :names::text[], :specs::jsonb[], :shape_ids::integer[],
                  :priorities::smallint[], :slice_counts::integer[], :retries::smallint[], :wall_seconds::integer[],
                  :expires_at::timestamptz[])
    RETURNING id, shape_id, priority, slice_count)
INSERT INTO slices (job_id, slice_index, shape_id, priority)
SELECT new.id, i, new.shape_id, new.priority FROM new CROSS JOIN LATERAL generate_series(0, new.slice_count - 1) AS i;

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

-- name: list_idempotent
SELECT i.account_id, i.key, i.request_sha256, i.job_id
  FROM idempotency i JOIN unnest(:account_ids::uuid[], :keys::text[]) AS w (account_id, key)
    ON i.account_id = w.account_id AND i.key = w.key;

-- name: insert_idempotent
-- Waits for a twin that is being written at this moment; what is not returned was used before.
-- In order of account and key, so that two hubs never wait for each other in a circle.
INSERT INTO idempotency (account_id, key, request_sha256, job_id)
SELECT n.account_id, n.key, n.request_sha256, n.job_id
  FROM unnest(:account_ids::uuid[], :keys::text[], :request_sha256s::bytea[], :job_ids::uuid[])
       WITH ORDINALITY AS n (account_id, key, request_sha256, job_id, place)
 ORDER BY n.account_id, n.key, n.place
ON CONFLICT DO NOTHING RETURNING job_id;

-- name: find_jobs
SELECT j.*,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'leased') AS leased_count,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'running') AS running_count
  FROM jobs j WHERE j.id = ANY(:ids::uuid[]);

-- name: delete_idempotent!
DELETE FROM idempotency WHERE job_id = ANY(:job_ids::uuid[]);
