-- name: list_slot_classes
-- The whole fleet as one request sees it. What a slot has beyond the request is cut off and what it is short of is cut
-- to steps (to one core at least, which every slot has): neither changes which gate it fails, and a hundred thousand
-- slots come down to a few rows.
-- What is too dear is lifted to the next of the given prices. A slot asks its owner's floor or, where others wait who pay
-- spot, spot (but not in a private pool); of its own account nothing. A fixed price is compared with what it asks before
-- tier and region.
-- What the owner asks of a job is told as far as the request fails it: other kinds, longer slices, a private pool (an
-- empty list of whom it is for). What the owner allows is told to a request that wants something.
-- A node's name and its last call are told only to its owner (to an operator, viewer_id null, all are).
-- Busy slots are found through attempts_live_slot_idx. A fleet beyond fleet_max is looked at in part.
WITH fleet AS (
    SELECT t.*, n.region, n.isolation, n.allows, n.state, n.last_seen_at, n.account_id, n.name AS node_name,
           n.account_id = :account_id::uuid AS own,
           CASE WHEN n.account_id = :account_id::uuid THEN 0 ELSE n.floor_microcredits_per_hour END AS floor,
           o.hours, o.zone, o.seconds_min, o.kinds, o.audience, o.named
      FROM slots t JOIN nodes n ON n.id = t.node_id LEFT JOIN offers o ON o.node_id = n.id
     WHERE n.state <> 'removed' LIMIT :fleet_max::bigint),
in_buckets AS (
    SELECT f.*, coalesce(c.region, :default_region::text) AS bucket_region,
           CASE WHEN f.tier = ANY(:card_tiers::text[]) THEN f.tier
                ELSE (:step_tiers::text[])[width_bucket(
                         least(coalesce(f.speed_tflops, k.tflops, :unknown_tflops::double precision),
                               coalesce(k.tflops, :unknown_tflops::double precision)
                                   * :declared_ratio_max::double precision),
                         :step_tflops::double precision[])] END AS bucket_tier
      FROM fleet f
      LEFT JOIN unnest(:tiers_known::text[], :tiers_tflops::double precision[]) AS k (tier, tflops) ON k.tier = f.tier
      LEFT JOIN unnest(:countries::text[], :country_regions::text[]) AS c (country, region) ON c.country = f.region),
priced AS (
    SELECT b.*, p.spot, ask.price, base.floor AS base_floor, base.price AS base_price,
           (:ceiling::bigint IS NULL OR ask.price <= :ceiling::bigint)
           AND (:base_ceiling::bigint IS NULL OR base.price <= :base_ceiling::bigint) AS affordable
      FROM in_buckets b
      JOIN unnest(:bucket_tiers::text[], :bucket_regions::text[], :spots::bigint[], :multipliers::bigint[])
               AS p (tier, region, spot, multiplier) ON p.tier = b.bucket_tier AND p.region = b.bucket_region
     CROSS JOIN LATERAL (
         SELECT CASE WHEN b.own OR b.audience <> 'anyone' THEN b.floor ELSE greatest(b.floor, p.spot) END AS price) AS ask
     CROSS JOIN LATERAL (
         SELECT least(ceil(b.floor::numeric * :unit::bigint / p.multiplier), :beyond::bigint)::bigint AS floor,
                least(ceil(ask.price::numeric * :unit::bigint / p.multiplier), :beyond::bigint)::bigint AS price) AS base),
told AS (
    SELECT s.*, NOT s.affordable AND s.price > s.floor
                AND (:ceiling::bigint IS NULL OR s.floor <= :ceiling::bigint)
                AND (:base_ceiling::bigint IS NULL OR s.base_floor <= :base_ceiling::bigint) AS by_spot
      FROM priced s)
SELECT s.kind, s.tier, s.region, least(s.isolation, :isolation::isolation_level) AS isolation,
       CASE WHEN s.vram_bytes >= :vram_bytes::bigint THEN :vram_bytes::bigint
            ELSE s.vram_bytes / :vram_step::bigint * :vram_step::bigint END AS vram_bytes,
       CASE WHEN s.cores >= :cores::integer THEN :cores::integer
            ELSE greatest(1, s.cores / :cores_step::integer * :cores_step::integer) END AS cores,
       CASE WHEN s.ram_bytes >= :ram_bytes::bigint THEN :ram_bytes::bigint
            ELSE s.ram_bytes / :ram_step::bigint * :ram_step::bigint END AS ram_bytes,
       CASE WHEN s.disk_bytes >= :disk_bytes::bigint THEN :disk_bytes::bigint
            ELSE s.disk_bytes / :disk_step::bigint * :disk_step::bigint END AS disk_bytes,
       CASE WHEN s.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
            THEN CASE WHEN s.state <> 'active' THEN 'paused' WHEN c.zone IS NOT NULL THEN 'closed' ELSE 'ready' END
            ELSE 'offline' END AS standing,
       CASE WHEN :ceiling::bigint IS NULL OR s.price <= :ceiling::bigint THEN 0
            ELSE coalesce((:prices::bigint[])[width_bucket(s.price - 1, :prices::bigint[]) + 1], :beyond::bigint)
       END AS price_microcredits_per_hour,
       CASE WHEN s.seconds_min > :slice_seconds::integer THEN s.seconds_min ELSE 0 END AS slice_seconds_min,
       CASE WHEN :job_kind::text = ANY(s.kinds) OR s.kinds IS NULL THEN '{}' ELSE s.kinds END AS job_kinds,
       CASE WHEN s.audience <> 'anyone' AND s.account_id <> :account_id::uuid
                 AND NOT :account_id::uuid = ANY(s.named) THEN '{}'::uuid[] END AS welcome,
       CASE WHEN :base_ceiling::bigint IS NULL OR s.base_price <= :base_ceiling::bigint THEN 0
            ELSE coalesce((:base_prices::bigint[])[width_bucket(s.base_price - 1, :base_prices::bigint[]) + 1],
                          :beyond::bigint)
       END AS base_price_microcredits_per_hour,
       CASE WHEN s.by_spot THEN s.bucket_tier END AS spot_tier,
       CASE WHEN s.by_spot THEN s.bucket_region END AS spot_region,
       CASE WHEN s.by_spot THEN s.spot END AS spot_microcredits_per_hour,
       CASE WHEN :has_wants::boolean THEN s.allows ELSE '{}' END AS allows,
       count(*) AS slot_count, count(a.id) AS busy_count,
       min(s.node_name) FILTER (WHERE :viewer_id::uuid IS NULL OR s.account_id = :viewer_id::uuid) AS node_name,
       max(s.last_seen_at) FILTER (WHERE :viewer_id::uuid IS NULL OR s.account_id = :viewer_id::uuid) AS last_seen_at,
       min(c.opens_at) AS opens_at
  FROM told s
  LEFT JOIN unnest(:closed_hours::bytea[], :closed_zones::text[], :closed_opens_at::timestamptz[])
            AS c (hours, zone, opens_at) ON c.hours = s.hours AND c.zone = s.zone
  LEFT JOIN attempts a ON a.node_id = s.node_id AND a.slot = s.name AND a.state IN ('leased', 'running')
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18 LIMIT :limit_count::bigint;

-- name: list_first_slices
-- The first slice of each state, tried or not; or the one asked for. One pass over the job's part of the primary key.
SELECT s.slice_index, s.state, s.priority, s.priority_class, s.account_id, s.shape_id, s.attempt_count,
       s.failure_count, s.killed_count, s.cause, s.accepted_attempt_id, s.queued_at, s.raised_at
  FROM (SELECT min(slice_index) AS slice_index FROM slices
         WHERE job_id = :job_id AND (:slice_index::integer IS NULL OR slice_index = :slice_index::integer)
         GROUP BY state, attempt_count > 0) AS first
  JOIN slices s ON s.job_id = :job_id AND s.slice_index = first.slice_index
 ORDER BY s.slice_index;

-- name: count_own_ahead$
-- Two ranges of one run of slices_queue_idx rather than one condition with OR, which would read the whole run.
SELECT count(*) FROM (
    (SELECT 1 FROM slices WHERE shape_id = :shape_id::integer AND priority_class = :priority_class::priority_class
        AND account_id = :account_id::uuid AND state = 'queued' AND priority > :priority::smallint
      LIMIT :count_max::bigint)
    UNION ALL
    (SELECT 1 FROM slices WHERE shape_id = :shape_id::integer AND priority_class = :priority_class::priority_class
        AND account_id = :account_id::uuid AND state = 'queued' AND priority = :priority::smallint
        AND (queued_at, job_id, slice_index) < (:queued_at::timestamptz, :job_id::uuid, :slice_index::integer)
      LIMIT :count_max::bigint)) AS ahead;

-- name: count_class_ahead$
SELECT count(*) FROM (SELECT 1 FROM slices WHERE shape_id = :shape_id::integer AND state = 'queued'
                         AND priority_class > :priority_class::priority_class LIMIT :count_max::bigint) AS ahead;

-- name: list_waiting_accounts
-- Whose slices of one shape and class wait: walks from one run of slices_queue_idx to the next, up to a limit.
WITH RECURSIVE walk AS (
    (SELECT account_id FROM slices WHERE shape_id = :shape_id::integer AND state = 'queued'
        AND priority_class = :priority_class::priority_class ORDER BY account_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.account_id FROM slices s WHERE s.shape_id = :shape_id::integer AND s.state = 'queued'
               AND s.priority_class = :priority_class::priority_class AND s.account_id > walk.account_id
             ORDER BY s.account_id LIMIT 1)
      FROM walk WHERE walk.account_id IS NOT NULL
), waiting AS (SELECT account_id FROM walk WHERE account_id IS NOT NULL LIMIT :limit_count::bigint)
SELECT a.id AS account_id, a.fair_weight, coalesce(u.slot_seconds, 0) AS slot_seconds, u.counted_at
  FROM accounts a LEFT JOIN fair_usage u ON u.account_id = a.id
 WHERE a.id IN (SELECT account_id FROM waiting) OR a.id = :account_id::uuid;

-- name: list_fitting
-- Slots that pass every gate of a shape, with what they are scored by: the chosen one, and those that may score best.
-- The order is rough (Wilson's lower limit in place of the Beta's quantile): enough that the best few are among the
-- first hundreds, which the rules of core then score exactly. A fleet of more nodes than fleet_max is looked at in part.
-- The account's own slots cost it nothing, those of pools what their owners ask, all others spot if that is more.
WITH looked_at AS (
    SELECT id FROM nodes WHERE id = :node_id::uuid
    UNION
    (SELECT id FROM nodes WHERE state <> 'removed' LIMIT :fleet_max::bigint)),
fleet AS (
    SELECT t.*, n.region, n.isolation, n.allows, n.account_id, n.name AS node_name,
           CASE WHEN n.account_id = :account_id::uuid THEN 0 ELSE n.floor_microcredits_per_hour END
               AS floor_microcredits_per_hour,
           coalesce(o.seconds_min, 0) AS slice_seconds_min, coalesce(o.kinds, '{}') AS job_kinds,
           n.account_id <> :account_id::uuid AND (o.audience <> 'anyone') IS NOT TRUE AS at_spot,
           n.state = 'active' AND c.zone IS NULL AND n.last_seen_at >= clock_timestamp()
               - :silence_seconds::double precision * interval '1 second' AS ready
      FROM slots t JOIN nodes n ON n.id = t.node_id LEFT JOIN offers o ON o.node_id = n.id
      LEFT JOIN unnest(:closed_hours::bytea[], :closed_zones::text[]) AS c (hours, zone)
        ON c.hours = o.hours AND c.zone = o.zone
     WHERE n.id IN (SELECT id FROM looked_at) AND n.state <> 'removed'
       AND (o.audience = 'anyone' OR n.account_id = :account_id::uuid OR :account_id::uuid = ANY(o.named)) IS NOT FALSE),
in_buckets AS (
    SELECT f.*, CASE WHEN f.at_spot THEN p.spot ELSE 0 END AS spot
      FROM fleet f
      LEFT JOIN unnest(:tiers_known::text[], :tiers_tflops::double precision[]) AS k (tier, tflops) ON k.tier = f.tier
      LEFT JOIN unnest(:countries::text[], :country_regions::text[]) AS c (country, region) ON c.country = f.region
      JOIN unnest(:bucket_tiers::text[], :bucket_regions::text[], :spots::bigint[]) AS p (tier, region, spot)
        ON p.region = coalesce(c.region, :default_region::text)
           AND p.tier = CASE WHEN f.tier = ANY(:card_tiers::text[]) THEN f.tier
                ELSE (:step_tiers::text[])[width_bucket(
                         least(coalesce(f.speed_tflops, k.tflops, :unknown_tflops::double precision),
                               coalesce(k.tflops, :unknown_tflops::double precision)
                                   * :declared_ratio_max::double precision),
                         :step_tflops::double precision[])] END),
fitting AS (
    SELECT f.*, r.finished, r.failed, r.faults_running, r.counted_at,
           f.node_id = :node_id::uuid AND f.name = :slot::text AS chosen,
           greatest(least(coalesce(f.speed_tflops, d.tflops), d.tflops * :declared_ratio_max::double precision),
                    0.001) AS rough_tflops,
           (e.good + 1.35 - 1.645 * sqrt(e.good * e.bad / (e.good + e.bad) + 0.68)) / (e.good + e.bad + 2.71)
               AS rough_reliability
      FROM in_buckets f
      JOIN LATERAL (SELECT CASE WHEN f.kind = 'cpu' THEN f.cores * :core_tflops::double precision
                                ELSE coalesce((SELECT k.tflops FROM unnest(:tiers_known::text[],
                                                                           :tiers_tflops::double precision[])
                                                                    AS k (tier, tflops) WHERE k.tier = f.tier),
                                              :unknown_tflops::double precision) END AS tflops) AS d ON true
      LEFT JOIN reliabilities r ON r.node_id = f.node_id AND r.job_class = :job_class::text
      JOIN LATERAL (SELECT coalesce(r.finished, 0) + 1 AS good, coalesce(r.failed, 0) + 1 AS bad) AS e ON true
     WHERE (f.ready OR f.node_id = :node_id::uuid AND f.name = :slot::text)
       AND (f.kind = 'gpu' OR NOT :gpu::boolean)
       AND f.vram_bytes >= :vram_bytes::bigint AND f.cores >= :cores::integer AND f.ram_bytes >= :ram_bytes::bigint
       AND f.disk_bytes >= :disk_bytes::bigint AND f.isolation >= :isolation::isolation_level
       AND (:tiers::text[] = '{}' OR f.tier = ANY(:tiers::text[]))
       AND (:regions::text[] = '{}' OR f.region = ANY(:regions::text[]))
       AND (:ceiling::bigint IS NULL OR f.floor_microcredits_per_hour <= :ceiling::bigint)
       AND f.slice_seconds_min <= :slice_seconds::integer
       AND (f.job_kinds = '{}' OR :job_kind::text = ANY(f.job_kinds)))
SELECT f.node_id, f.name, f.kind, f.tier, f.vram_bytes, f.cores, f.ram_bytes, f.disk_bytes, f.region, f.isolation,
       f.slice_seconds_min, f.job_kinds, f.allows, NULL::uuid[] AS welcome,
       f.speed_tflops, f.floor_microcredits_per_hour, f.spot AS spot_microcredits_per_hour, f.finished, f.failed, f.faults_running, f.counted_at,
       CASE WHEN :viewer_id::uuid IS NULL OR f.account_id = :viewer_id::uuid THEN f.node_name END AS node_name,
       EXISTS (SELECT 1 FROM attempts a WHERE a.node_id = f.node_id AND a.slot = f.name
                  AND a.state IN ('leased', 'running')) AS busy,
       count(*) OVER () AS fit_count, (SELECT count(*) FROM looked_at) > :fleet_max::bigint AS is_cut
  FROM fitting f
 ORDER BY NOT f.chosen, f.kind = 'gpu' AND NOT :gpu::boolean,
          :speed_weight::double precision * ln(f.rough_tflops)
          - :price_weight::double precision * ln(greatest(f.floor_microcredits_per_hour, f.spot, 1)::double precision)
          + :reliability_weight::double precision * ln(greatest(f.rough_reliability, 0.0001)) DESC,
          f.node_id, f.name
 LIMIT :limit_count::bigint;

-- name: list_attempts
-- Newest first, with the slot as it is today; it is gone when the node was enrolled anew with other hardware.
SELECT a.id, a.number, a.node_id, a.slot, a.state, a.leased_at, a.started_at, a.finished_at, a.run_seconds,
       a.exit_code, a.cause, a.message, a.memory_bytes_peak, a.saved_seconds, a.saved_at, n.region, n.isolation,
       n.allows,
       CASE WHEN :viewer_id::uuid IS NULL OR n.account_id = :viewer_id::uuid THEN n.name END AS node_name,
       s.kind, s.tier, s.vram_bytes, s.cores, s.ram_bytes, s.disk_bytes,
       CASE WHEN n.account_id = :account_id::uuid THEN 0 ELSE n.floor_microcredits_per_hour END
           AS floor_microcredits_per_hour,
       coalesce(o.seconds_min, 0) AS slice_seconds_min, coalesce(o.kinds, '{}') AS job_kinds,
       CASE WHEN o.audience <> 'anyone' THEN n.account_id || o.named END AS welcome
  FROM attempts a JOIN nodes n ON n.id = a.node_id LEFT JOIN offers o ON o.node_id = n.id
  LEFT JOIN slots s ON s.node_id = a.node_id AND s.name = a.slot
 WHERE a.job_id = :job_id AND a.slice_index = :slice_index
 ORDER BY a.number DESC LIMIT :limit_count;

-- name: list_backlog
-- Walks from one waiting shape to the next through slices_queue_idx and counts each only up to a limit, so that
-- a million queued slices cost no more than that many steps. Says nothing of who submitted, but how much is from those
-- that are named, and how much from the owner alone: one range of the index for each of them and each class.
WITH RECURSIVE backlog AS (
    (SELECT shape_id FROM slices WHERE state = 'queued' ORDER BY shape_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.shape_id FROM slices s WHERE s.state = 'queued' AND s.shape_id > backlog.shape_id
             ORDER BY s.shape_id LIMIT 1)
      FROM backlog WHERE backlog.shape_id IS NOT NULL
), waiting AS (SELECT shape_id FROM backlog WHERE shape_id IS NOT NULL LIMIT :shapes_max::bigint)
SELECT h.*, (SELECT count(*) FROM (SELECT 1 FROM slices q WHERE q.shape_id = w.shape_id AND q.state = 'queued'
                                    LIMIT :count_max::bigint) AS counted) AS slice_count,
       (SELECT count(*) FROM (
            SELECT 1 FROM unnest(:account_ids::uuid[]) AS named (account_id)
             CROSS JOIN unnest(enum_range(NULL::priority_class)) AS class (priority_class)
             CROSS JOIN LATERAL (
                SELECT 1 FROM slices q
                 WHERE q.shape_id = w.shape_id AND q.priority_class = class.priority_class
                   AND q.account_id = named.account_id AND q.state = 'queued' LIMIT :count_max::bigint) AS one
             LIMIT :count_max::bigint) AS counted) AS named_count,
       (SELECT count(*) FROM (
            SELECT 1 FROM unnest(enum_range(NULL::priority_class)) AS class (priority_class)
             CROSS JOIN LATERAL (
                SELECT 1 FROM slices q
                 WHERE q.shape_id = w.shape_id AND q.priority_class = class.priority_class
                   AND q.account_id = :owner_id::uuid AND q.state = 'queued' LIMIT :count_max::bigint) AS one
             LIMIT :count_max::bigint) AS counted) AS own_count
  FROM waiting w JOIN shapes h ON h.id = w.shape_id;
