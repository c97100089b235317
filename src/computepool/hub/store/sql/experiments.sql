-- name: list_outcomes
-- The newest jobs of a time (ids are ordered by it, so this walks jobs_pkey from its end) and what became of the first
-- attempts of each, through attempts_number_unique. Both are bounded: a sample, the same for both sets.
-- A node's claim of run time counts no further than the hub's own clock; prices are the floors of today.
WITH sampled AS (
    SELECT id, weight_set, slice_count, state, created_at, started_at, finished_at
      FROM jobs WHERE id >= :first_id::uuid ORDER BY id DESC LIMIT :jobs_max::integer)
SELECT j.weight_set, j.slice_count, j.state IN ('succeeded', 'failed') AS finished,
       extract(epoch FROM j.started_at - j.created_at)::double precision AS wait_seconds,
       CASE WHEN j.state = 'succeeded'
            THEN extract(epoch FROM j.finished_at - j.started_at)::double precision END AS turnaround_seconds,
       a.attempt_count, a.fault_count, a.run_count, a.run_seconds, a.paid_microcredits
  FROM sampled j
 CROSS JOIN LATERAL (
    SELECT count(*) AS attempt_count,
           count(*) FILTER (WHERE t.cause = ANY(:faults::failure_cause[])) AS fault_count,
           count(t.ran) AS run_count,
           coalesce(sum(t.ran), 0) AS run_seconds,
           coalesce(sum(t.ran / 3600 * n.floor_microcredits_per_hour), 0) AS paid_microcredits
      FROM (SELECT node_id, cause,
                   CASE WHEN state = 'succeeded'
                        THEN least(run_seconds, extract(epoch FROM finished_at - leased_at)::double precision)
                   END AS ran
              FROM attempts WHERE job_id = j.id ORDER BY slice_index, number LIMIT :attempts_max::integer) AS t
      LEFT JOIN nodes n ON n.id = t.node_id) AS a;
