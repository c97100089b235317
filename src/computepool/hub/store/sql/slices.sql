-- name: take_heads
-- The first k queued slices of each run of the queue. SKIP LOCKED: what another hub is placing at this moment is
-- not ours. One index scan of slices_queue_idx per run.
SELECT h.*, clock_timestamp() AS now
  FROM unnest(:shape_ids::text::integer[], :priority_classes::text::priority_class[], :account_ids::text::uuid[], :counts::text::integer[])
       AS wanted (shape_id, priority_class, account_id, k)
 CROSS JOIN LATERAL (
    SELECT s.job_id, s.slice_index, s.shape_id, s.priority_class, s.account_id, s.priority, s.queued_at,
           s.avoid_node_id, s.attempt_count
      FROM slices s
     WHERE s.shape_id = wanted.shape_id AND s.priority_class = wanted.priority_class
       AND s.account_id = wanted.account_id AND s.state = 'queued'
     ORDER BY s.priority DESC, s.queued_at, s.job_id, s.slice_index
     LIMIT wanted.k FOR UPDATE SKIP LOCKED) AS h;

-- name: list_heads
-- The same without locks, for a hub that is alone: a lock would cost a commit of its own.
SELECT h.*, clock_timestamp() AS now
  FROM unnest(:shape_ids::text::integer[], :priority_classes::text::priority_class[], :account_ids::text::uuid[],
              :counts::text::integer[])
       AS wanted (shape_id, priority_class, account_id, k)
 CROSS JOIN LATERAL (
    SELECT s.job_id, s.slice_index, s.shape_id, s.priority_class, s.account_id, s.priority, s.queued_at,
           s.avoid_node_id, s.attempt_count
      FROM slices s
     WHERE s.shape_id = wanted.shape_id AND s.priority_class = wanted.priority_class
       AND s.account_id = wanted.account_id AND s.state = 'queued'
     ORDER BY s.priority DESC, s.queued_at, s.job_id, s.slice_index
     LIMIT wanted.k) AS h;

-- name: list_runs
-- Which runs of the queue have slices waiting.
SELECT shape_id, priority_class, account_id FROM queued_runs LIMIT :limit_count;

-- name: lock_slices_of_attempts
-- In the order of the primary key, always, so that two hubs never wait for each other in a circle.
SELECT s.job_id, s.slice_index, s.state, s.attempt_count, s.failure_count, s.killed_count, s.cause, s.avoid_node_id,
       j.retries
  FROM slices s JOIN jobs j ON j.id = s.job_id
 WHERE (s.job_id, s.slice_index) IN (SELECT a.job_id, a.slice_index FROM attempts a WHERE a.id = ANY(:ids::text::uuid[]))
 ORDER BY s.job_id, s.slice_index FOR UPDATE OF s;

-- name: lock_open_slices
SELECT s.job_id, s.slice_index, s.state, s.attempt_count, s.failure_count, s.killed_count, s.cause, s.avoid_node_id,
       j.retries
  FROM slices s JOIN jobs j ON j.id = s.job_id
 WHERE s.job_id = :job_id AND s.state IN ('queued', 'leased', 'running')
 ORDER BY s.job_id, s.slice_index LIMIT :limit_count FOR UPDATE OF s;

-- name: list_slices
SELECT s.slice_index, s.state, s.attempt_count, s.cause, s.accepted_attempt_id
  FROM slices s WHERE s.job_id = :job_id AND s.slice_index > :after
   AND (:state::slice_state IS NULL OR s.state = :state::slice_state)
 ORDER BY s.slice_index LIMIT :limit_count;
