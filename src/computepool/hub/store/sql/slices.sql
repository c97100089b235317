-- name: take_heads
-- The first k queued slices of each shape. SKIP LOCKED: what another hub is placing at this moment is not ours.
SELECT h.* FROM unnest(:shape_ids::integer[], :counts::integer[]) AS wanted (shape_id, k)
 CROSS JOIN LATERAL (
    SELECT s.job_id, s.slice_index, s.shape_id, s.priority, s.queued_at, s.avoid_node_id, s.attempt_count
      FROM slices s WHERE s.shape_id = wanted.shape_id AND s.state = 'queued'
     ORDER BY s.priority DESC, s.queued_at, s.job_id, s.slice_index
     LIMIT wanted.k FOR UPDATE SKIP LOCKED) AS h;

-- name: lease_slices!
UPDATE slices SET state = 'leased', attempt_count = l.number
  FROM unnest(:job_ids::uuid[], :slice_indexes::integer[], :numbers::integer[]) AS l (job_id, slice_index, number)
 WHERE slices.job_id = l.job_id AND slices.slice_index = l.slice_index;

-- name: lock_slices
-- In the order of the primary key, always, so that two hubs never wait for each other in a circle.
SELECT s.job_id, s.slice_index, s.state, s.attempt_count, s.failure_count, s.cause, s.avoid_node_id, j.retries
  FROM slices s JOIN jobs j ON j.id = s.job_id
 WHERE (s.job_id, s.slice_index) IN (SELECT * FROM unnest(:job_ids::uuid[], :slice_indexes::integer[]))
 ORDER BY s.job_id, s.slice_index FOR UPDATE OF s;

-- name: lock_open_slices
SELECT s.job_id, s.slice_index, s.state, s.attempt_count, s.failure_count, s.cause, s.avoid_node_id, j.retries
  FROM slices s JOIN jobs j ON j.id = s.job_id
 WHERE s.job_id = :job_id AND s.state IN ('queued', 'leased', 'running')
 ORDER BY s.job_id, s.slice_index LIMIT :limit_count FOR UPDATE OF s;

-- name: apply_slices!
-- Writes what core decided. A slice that goes back to the queue goes to the end of it.
UPDATE slices SET
       state = c.state, failure_count = c.failure_count, cause = c.cause, avoid_node_id = c.avoid_node_id,
       accepted_attempt_id = c.accepted_attempt_id,
       queued_at = CASE WHEN c.state = 'queued' THEN clock_timestamp() ELSE slices.queued_at END,
       finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'cancelled') THEN clock_timestamp() END
  FROM unnest(:job_ids::uuid[], :slice_indexes::integer[], :states::slice_state[], :failure_counts::integer[],
              :causes::failure_cause[], :avoid_node_ids::uuid[], :accepted_attempt_ids::uuid[])
       AS c (job_id, slice_index, state, failure_count, cause, avoid_node_id, accepted_attempt_id)
 WHERE slices.job_id = c.job_id AND slices.slice_index = c.slice_index;

-- name: list_slices
SELECT s.slice_index, s.state, s.attempt_count, s.cause, s.accepted_attempt_id
  FROM slices s WHERE s.job_id = :job_id AND s.slice_index > :after
   AND (:state::slice_state IS NULL OR s.state = :state::slice_state)
 ORDER BY s.slice_index LIMIT :limit_count;
