-- name: find_start^
-- Where a tail begins: the newest event that is there, and which transactions are over.
SELECT coalesce((SELECT max(id) FROM events), 0) AS newest_id,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS following;

-- name: look
-- What is new, and what was skipped before and is there by now; with the numbers of the snapshot that saw it. One row at
-- least: one without an id when there is nothing. By the primary key.
WITH found AS (
    (SELECT id, at, kind, account_id, job_id, node_id, body FROM events
      WHERE id > :newest_id::bigint ORDER BY id LIMIT :limit_count)
    UNION ALL
    SELECT id, at, kind, account_id, job_id, node_id, body FROM events WHERE id = ANY(:gaps::bigint[]))
SELECT f.*, s.oldest, s.following
  FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
               pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS following) AS s
  LEFT JOIN found f ON true
 ORDER BY f.id;

-- name: list_since
-- All that was written by transactions from a watermark on, for who resumes. Through events_xid_idx; looks at a bounded
-- number of rows, whoever they belong to.
SELECT * FROM (
    SELECT id, at, kind, account_id, job_id, node_id, body FROM events
     WHERE xid >= :watermark::bigint::text::xid8 ORDER BY xid, id LIMIT :limit_count) AS e
 ORDER BY id;

-- The mesh

-- name: list_nodes
-- Those named, or every one that was seen within so many seconds; each with its slots summed up. A node is told by its
-- best slot: a GPU before a CPU, then the fastest.
SELECT n.id, n.account_id, n.state, n.region, n.synthetic, n.created_at,
       coalesce(n.last_seen_at > clock_timestamp() - :silence_seconds::double precision * interval '1 second', false)
           AS online,
       s.tier, s.kind, s.speed_tflops, s.cores, s.slot_count
  FROM nodes n
  JOIN LATERAL (
       SELECT (array_agg(tier ORDER BY kind, speed_tflops DESC NULLS LAST, vram_bytes DESC))[1] AS tier,
              (array_agg(kind ORDER BY kind))[1] AS kind,
              max(speed_tflops) AS speed_tflops, sum(cores)::integer AS cores, count(*)::integer AS slot_count
         FROM slots WHERE node_id = n.id) AS s ON s.slot_count > 0
 WHERE n.state <> 'removed'
   AND CASE WHEN :node_ids::uuid[] IS NULL
            THEN n.last_seen_at > clock_timestamp() - :shown_seconds::double precision * interval '1 second'
            ELSE n.id = ANY(:node_ids::uuid[]) END
 ORDER BY n.id LIMIT :limit_count;

-- name: list_live
-- What runs now: of these jobs, or everywhere. Through attempts_live_slice_idx.
SELECT id, job_id, node_id, leased_at FROM attempts
 WHERE state IN ('leased', 'running') AND (:job_ids::uuid[] IS NULL OR job_id = ANY(:job_ids::uuid[]))
 ORDER BY job_id, slice_index LIMIT :limit_count;

-- name: list_edges
-- Of runs that are at work: nodes that hold VNodes next to each other, by how many pairs.
WITH laid AS (
    SELECT p.run_id, s.node_id,
           lag(s.node_id) OVER (PARTITION BY p.run_id, p.replica ORDER BY p.position) AS before_id
      FROM runs r
      JOIN placements p ON p.run_id = r.id
      JOIN run_seats s ON s.run_id = p.run_id AND s.seat = p.seat
     WHERE r.finished_at IS NULL)
SELECT run_id, before_id, node_id, count(*)::integer AS pair_count FROM laid
 WHERE before_id <> node_id GROUP BY run_id, before_id, node_id ORDER BY run_id, before_id, node_id
 LIMIT :limit_count;

-- name: count_open^
-- Bounded: a queue of a million is told as the most that is counted.
SELECT (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE finished_at IS NULL AND state = 'queued'
                                LIMIT :count_max) AS q)::integer AS jobs_queued,
       (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE finished_at IS NULL AND state = 'running'
                                LIMIT :count_max) AS r)::integer AS jobs_running,
       (SELECT count(*) FROM (SELECT 1 FROM slices WHERE state = 'queued' LIMIT :count_max) AS s)::integer
           AS slices_queued,
       (SELECT count(*) FROM runs WHERE finished_at IS NULL AND state = 'running')::integer AS networks_training;

-- name: list_recent_jobs
-- Newest first, by anybody, without the runs that check results; with the name only where the submitter lets strangers read it.
SELECT j.id, CASE WHEN p.shows_titles THEN j.name END AS title, j.spec ->> 'kind' AS kind, j.state, j.slice_count,
       j.succeeded_count, j.created_at, j.finished_at
  FROM (SELECT * FROM jobs WHERE checks_attempt_id IS NULL ORDER BY id DESC LIMIT :limit_count) AS j
  LEFT JOIN profiles p ON p.account_id = j.account_id
 ORDER BY j.id DESC;

-- name: get_pseudonym_key$
SELECT pseudonym_key FROM hub_facts;

-- Samples

-- name: record_sample!
-- One a minute, whoever comes first.
INSERT INTO grid_samples (at, nodes_online, slot_count, busy_count, slices_queued)
SELECT date_trunc('minute', clock_timestamp()), n.node_count, n.slot_count,
       (SELECT count(*) FROM attempts WHERE state IN ('leased', 'running'))::integer,
       (SELECT count(*) FROM (SELECT 1 FROM slices WHERE state = 'queued' LIMIT :count_max) AS q)::integer
  FROM (SELECT count(DISTINCT n.id)::integer AS node_count, count(s.node_id)::integer AS slot_count
          FROM nodes n JOIN slots s ON s.node_id = n.id
         WHERE n.state <> 'removed'
           AND n.last_seen_at > clock_timestamp() - :silence_seconds::double precision * interval '1 second') AS n
 WHERE NOT EXISTS (SELECT 1 FROM grid_samples WHERE at = date_trunc('minute', clock_timestamp()))
ON CONFLICT DO NOTHING;

-- name: delete_samples!
DELETE FROM grid_samples WHERE at < clock_timestamp() - :days::double precision * interval '1 day';

-- name: list_samples
-- Every so many minutes one, oldest first.
SELECT at, nodes_online, slot_count, busy_count, slices_queued FROM grid_samples
 WHERE at > clock_timestamp() - :hours::double precision * interval '1 hour'
   AND (extract(epoch FROM at)::bigint / 60) % :every_minutes::bigint = 0
 ORDER BY at LIMIT :limit_count;

-- name: find_newest_line$
-- Of a run's feed, which counts lines and steps with one number.
SELECT greatest((SELECT max(id) FROM run_events WHERE run_id = :run_id),
                (SELECT max(event_id) FROM run_metrics WHERE run_id = :run_id), 0);
