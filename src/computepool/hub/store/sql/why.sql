-- name: list_slot_classes
-- The whole fleet as one request sees it. What a slot has beyond the request is cut off and what it is short of is cut
-- to steps (to one core at least, which every slot has): neither changes which gate it fails, and a hundred thousand
-- slots come down to a few rows.
-- A node's name and its last call are told only to its owner (to an operator, viewer_id null, all are).
-- Busy slots are found through attempts_live_slot_idx.
SELECT s.kind, s.tier, n.region, least(n.isolation, :isolation::isolation_level) AS isolation,
       CASE WHEN s.vram_bytes >= :vram_bytes::bigint THEN :vram_bytes::bigint
            ELSE s.vram_bytes / :vram_step::bigint * :vram_step::bigint END AS vram_bytes,
       CASE WHEN s.cores >= :cores::integer THEN :cores::integer
            ELSE greatest(1, s.cores / :cores_step::integer * :cores_step::integer) END AS cores,
       CASE WHEN s.ram_bytes >= :ram_bytes::bigint THEN :ram_bytes::bigint
            ELSE s.ram_bytes / :ram_step::bigint * :ram_step::bigint END AS ram_bytes,
       CASE WHEN s.disk_bytes >= :disk_bytes::bigint THEN :disk_bytes::bigint
            ELSE s.disk_bytes / :disk_step::bigint * :disk_step::bigint END AS disk_bytes,
       CASE WHEN n.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
            THEN CASE WHEN n.state = 'active' THEN 'ready' ELSE 'paused' END
            ELSE 'offline' END AS standing,
       count(*) AS slot_count, count(a.id) AS busy_count,
       min(n.name) FILTER (WHERE :viewer_id::uuid IS NULL OR n.account_id = :viewer_id::uuid) AS node_name,
       max(n.last_seen_at) FILTER (WHERE :viewer_id::uuid IS NULL OR n.account_id = :viewer_id::uuid) AS last_seen_at
  FROM slots s JOIN nodes n ON n.id = s.node_id
  LEFT JOIN attempts a ON a.node_id = s.node_id AND a.slot = s.name AND a.state IN ('leased', 'running')
 WHERE n.state <> 'removed'
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 LIMIT :limit_count::bigint;

-- name: list_first_slices
-- The first slice of each state, tried or not; or the one asked for. One pass over the job's part of the primary key.
SELECT s.slice_index, s.state, s.priority, s.shape_id, s.attempt_count, s.failure_count, s.cause,
       s.accepted_attempt_id, s.queued_at
  FROM (SELECT min(slice_index) AS slice_index FROM slices
         WHERE job_id = :job_id AND (:slice_index::integer IS NULL OR slice_index = :slice_index::integer)
         GROUP BY state, attempt_count > 0) AS first
  JOIN slices s ON s.job_id = :job_id AND s.slice_index = first.slice_index
 ORDER BY s.slice_index;

-- name: count_ahead$
-- Two ranges of slices_queue_idx rather than one condition with OR, which would read the shape's whole queue.
SELECT count(*) FROM (
    (SELECT 1 FROM slices WHERE shape_id = :shape_id::integer AND state = 'queued' AND priority > :priority::smallint
      LIMIT :count_max::bigint)
    UNION ALL
    (SELECT 1 FROM slices WHERE shape_id = :shape_id::integer AND state = 'queued' AND priority = :priority::smallint
        AND (queued_at, job_id, slice_index) < (:queued_at::timestamptz, :job_id::uuid, :slice_index::integer)
      LIMIT :count_max::bigint)) AS ahead;

-- name: list_attempts
-- Newest first, with the slot as it is today; it is gone when the node was enrolled anew with other hardware.
SELECT a.id, a.number, a.node_id, a.slot, a.state, a.leased_at, a.started_at, a.finished_at, a.run_seconds,
       a.exit_code, a.cause, a.message, a.memory_bytes_peak, n.region, n.isolation,
       CASE WHEN :viewer_id::uuid IS NULL OR n.account_id = :viewer_id::uuid THEN n.name END AS node_name,
       s.kind, s.tier, s.vram_bytes, s.cores, s.ram_bytes, s.disk_bytes
  FROM attempts a JOIN nodes n ON n.id = a.node_id
  LEFT JOIN slots s ON s.node_id = a.node_id AND s.name = a.slot
 WHERE a.job_id = :job_id AND a.slice_index = :slice_index
 ORDER BY a.number DESC LIMIT :limit_count;

-- name: list_backlog
-- Walks from one waiting shape to the next through slices_queue_idx and counts each only up to a limit, so that
-- a million queued slices cost no more than that many steps. Says nothing of who submitted.
WITH RECURSIVE backlog AS (
    (SELECT shape_id FROM slices WHERE state = 'queued' ORDER BY shape_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.shape_id FROM slices s WHERE s.state = 'queued' AND s.shape_id > backlog.shape_id
             ORDER BY s.shape_id LIMIT 1)
      FROM backlog WHERE backlog.shape_id IS NOT NULL
), waiting AS (SELECT shape_id FROM backlog WHERE shape_id IS NOT NULL LIMIT :shapes_max::bigint)
SELECT h.*, (SELECT count(*) FROM (SELECT 1 FROM slices q WHERE q.shape_id = w.shape_id AND q.state = 'queued'
                                    LIMIT :count_max::bigint) AS counted) AS slice_count
  FROM waiting w JOIN shapes h ON h.id = w.shape_id;
