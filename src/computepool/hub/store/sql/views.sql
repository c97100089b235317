-- name: list_job_attempts
-- By slice and number, through attempts_number_unique; with what a person wants to know of the node.
SELECT a.*, n.name AS node_name, n.account_id AS owner_id, s.tier
  FROM attempts a JOIN nodes n ON n.id = a.node_id LEFT JOIN slots s ON s.node_id = a.node_id AND s.name = a.slot
 WHERE a.job_id = :job_id AND (a.slice_index, a.number) > (:after_slice::integer, :after_number::integer)
   AND (:slice_index::integer IS NULL OR a.slice_index = :slice_index::integer)
 ORDER BY a.slice_index, a.number LIMIT :limit_count;

-- name: list_node_live
-- Through attempts_live_slot_idx.
SELECT a.*, n.name AS node_name, n.account_id AS owner_id, s.tier
  FROM attempts a JOIN nodes n ON n.id = a.node_id LEFT JOIN slots s ON s.node_id = a.node_id AND s.name = a.slot
 WHERE a.node_id = :node_id AND a.state IN ('leased', 'running') ORDER BY a.leased_at DESC, a.id DESC;

-- name: list_node_ended
-- Newest first, through attempts_node_end_idx.
SELECT a.*, n.name AS node_name, n.account_id AS owner_id, s.tier
  FROM attempts a JOIN nodes n ON n.id = a.node_id LEFT JOIN slots s ON s.node_id = a.node_id AND s.name = a.slot
 WHERE a.node_id = :node_id AND a.finished_at IS NOT NULL
   AND (:before::uuid IS NULL
        OR (a.finished_at, a.id) < (SELECT b.finished_at, b.id FROM attempts b WHERE b.id = :before::uuid))
 ORDER BY a.finished_at DESC, a.id DESC LIMIT :limit_count;

-- name: list_strip
-- Slices in a row that are in one state are told together.
SELECT min(slice_index) AS first, max(slice_index) AS last, state FROM (
    SELECT slice_index, state, slice_index - row_number() OVER (PARTITION BY state ORDER BY slice_index) AS island
      FROM slices WHERE job_id = :job_id) AS s
 GROUP BY state, island ORDER BY first LIMIT :limit_count;

-- name: list_node_days
-- What a node has earned by day (UTC), through attempts_node_end_idx.
SELECT (finished_at AT TIME ZONE 'UTC')::date AS day,
       coalesce(sum(charged_microcredits - fee_microcredits) FILTER (WHERE earning_state <> 'reversed'), 0)::bigint
           AS earned_microcredits,
       coalesce(sum(least(run_seconds, extract(epoch FROM finished_at - leased_at))), 0)::bigint AS seconds,
       count(*)::integer AS attempt_count
  FROM attempts
 WHERE node_id = :node_id AND finished_at >= clock_timestamp() - :days::integer * interval '1 day'
 GROUP BY 1 ORDER BY 1;

-- name: list_holds
-- Newest first: what is set aside for jobs that are not over.
SELECT id, name, state, held_remaining, charged_microcredits, created_at FROM jobs
 WHERE account_id = :account_id AND finished_at IS NULL AND held_remaining > 0
   AND (:before::uuid IS NULL OR id < :before::uuid)
 ORDER BY id DESC LIMIT :limit_count;

-- name: list_asks
-- Slots of one tier that anybody may use now, by what their owners ask for at least.
SELECT n.floor_microcredits_per_hour AS price, count(*)::integer AS count
  FROM nodes n JOIN slots s ON s.node_id = n.id LEFT JOIN offers o ON o.node_id = n.id
 WHERE n.state = 'active' AND s.tier = :tier AND (o.audience <> 'anyone') IS NOT TRUE
   AND n.last_seen_at > clock_timestamp() - :silence_seconds::double precision * interval '1 second'
   AND CASE WHEN :is_default::boolean THEN n.region IS NULL OR NOT n.region = ANY(:countries::text[])
            ELSE n.region = ANY(:countries::text[]) END
 GROUP BY 1 ORDER BY 1 LIMIT :limit_count;

-- name: list_bids
-- Slices that wait and that a slot of one tier could run, by the most that they pay; counted up to a limit.
SELECT sh.ceiling_microcredits_per_hour AS price, sum(w.count)::integer AS count
  FROM (SELECT shape_id, count(*) AS count
          FROM (SELECT shape_id FROM slices WHERE state = 'queued' LIMIT :count_max) AS q GROUP BY shape_id) AS w
  JOIN shapes sh ON sh.id = w.shape_id
 WHERE (sh.tiers = '{}' OR :tier = ANY(sh.tiers)) AND (NOT sh.gpu OR :tier <> 'cpu')
   AND CASE WHEN sh.regions = '{}' THEN true
            WHEN :is_default::boolean THEN NOT sh.regions <@ :countries::text[]
            ELSE sh.regions && :countries::text[] END
 GROUP BY 1 ORDER BY 1 DESC NULLS FIRST LIMIT :limit_count;

-- The operator's

-- name: search_events
-- Newest first, among so many ids before one: a search that finds nothing ends, and goes on where it ended.
SELECT id, at, kind, account_id, job_id, node_id, body FROM events
 WHERE id < :before::bigint AND id >= :before::bigint - :ids_max::bigint
   AND (:kind::text IS NULL OR kind = :kind::text OR starts_with(kind, :kind::text || '_'))
   AND (:account_id::uuid IS NULL OR account_id = :account_id::uuid)
   AND (:job_id::uuid IS NULL OR job_id = :job_id::uuid)
   AND (:node_id::uuid IS NULL OR node_id = :node_id::uuid)
 ORDER BY id DESC LIMIT :limit_count;

-- name: find_newest_event$
SELECT coalesce(max(id), 0) FROM events;

-- name: count_desk^
-- What waits for the operator.
SELECT (SELECT count(*) FROM accounts)::integer AS accounts,
       (SELECT count(*) FROM accounts WHERE suspended_at IS NOT NULL)::integer AS accounts_suspended,
       (SELECT count(*) FROM payouts WHERE state = 'reserved')::integer AS payouts_waiting,
       (SELECT count(*) FROM disputes WHERE state = 'open')::integer AS disputes_open,
       (SELECT count(*) FROM account_freezes WHERE lifted_at IS NULL)::integer AS freezes,
       (SELECT count(*) FROM provider_events WHERE verdict = 'refused' AND reviewed_at IS NULL)::integer
           AS provider_events_refused,
       (SELECT count(*) FROM hub_summaries
         WHERE told_at > clock_timestamp() - interval '10 seconds')::integer AS hub_processes;
