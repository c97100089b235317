-- name: insert_rate_card!
INSERT INTO rate_cards (version, content) VALUES (:version, :content) ON CONFLICT (version) DO NOTHING;

-- name: find_rate_card^
SELECT version, content, first_used_at FROM rate_cards WHERE version = :version;

-- name: try_lock$
SELECT pg_try_advisory_xact_lock(:key::bigint);

-- name: find_due$
-- The database's time, if the last tick is so long ago.
SELECT clock_timestamp()
 WHERE NOT EXISTS (SELECT 1 FROM market_clock
                    WHERE ticked_at > clock_timestamp() - :seconds::double precision * interval '1 second');

-- name: find_last_tick$
SELECT ticked_at FROM market_clock;

-- name: set_clock!
INSERT INTO market_clock (ticked_at) VALUES (:at) ON CONFLICT (only_row) DO UPDATE SET ticked_at = excluded.ticked_at;

-- name: list_waiting
-- Whose slices wait, and how many, up to so many of each run; counted within each run of slices_queue_idx.
WITH first_runs AS MATERIALIZED (
    SELECT shape_id, priority_class, account_id FROM queued_runs LIMIT :runs_max::bigint)
SELECT r.shape_id, r.account_id, sum(c.slice_count)::bigint AS slice_count
  FROM first_runs r CROSS JOIN LATERAL (
    SELECT count(*) AS slice_count FROM (
        SELECT 1 FROM slices s
         WHERE s.state = 'queued' AND s.shape_id = r.shape_id AND s.priority_class = r.priority_class
           AND s.account_id = r.account_id LIMIT :count_max::bigint) AS counted) AS c
 GROUP BY r.shape_id, r.account_id;

-- name: list_linked
-- Accounts that are, or once were, paid out to one place, however they write it and whatever country they name.
SELECT array_agg(DISTINCT account_id) AS account_ids
  FROM (SELECT account_id, lower(regexp_replace(destination, '[^[:alnum:]@]', '', 'g')) AS place
          FROM payout_details) AS written
 WHERE place <> '' GROUP BY place HAVING count(DISTINCT account_id) > 1 LIMIT :limit_count::bigint;

-- name: count_fleet
-- The fleet that is lent now, counted in one pass in three ways: by bucket and use (busy, own, ceiling), by bucket and
-- class (what slots are called, where they stand and what their owners take, with the best of each thing that they
-- have), and by bucket and owner, of those who are watched. No row leaves that is not a sum. Buckets are told by their
-- place among those given. A ceiling is what an hour there may cost, of a fixed price too. Live attempts are found through their partial indexes. A fleet of more nodes than fleet_max
-- is looked at in part. What is kept for a private pool or closed at this hour is no supply.
WITH lent AS MATERIALIZED (
    SELECT n.id, n.account_id, n.region, n.isolation, n.allows, n.floor_microcredits_per_hour,
           coalesce(o.seconds_min, 0) AS slice_seconds_min, coalesce(o.kinds, '{}') AS job_kinds
      FROM nodes n LEFT JOIN offers o ON o.node_id = n.id
      LEFT JOIN unnest(:closed_hours::bytea[], :closed_zones::text[]) AS c (hours, zone)
        ON c.hours = o.hours AND c.zone = o.zone
     WHERE n.state = 'active' AND c.zone IS NULL AND (o.audience <> 'anyone') IS NOT TRUE
       AND n.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
     LIMIT :fleet_max::bigint),
links AS (SELECT * FROM unnest(:linked_ids::uuid[], :group_ids::uuid[]) AS l (account_id, group_id)),
slots_in_use AS (
    SELECT s.kind, s.tier, n.region, s.vram_bytes, s.cores, s.ram_bytes, s.disk_bytes, n.isolation,
           n.floor_microcredits_per_hour, n.slice_seconds_min, n.job_kinds, n.allows, w.account_id AS watched_id,
           a.job_id IS NOT NULL AS busy, a.expected_seconds,
           sh.ceiling_microcredits_per_hour, sh.base_ceiling_microcredits_per_hour,
           coalesce(coalesce(own.group_id, n.account_id) = coalesce(its.group_id, j.account_id), false) AS own,
           CASE WHEN s.tier = ANY(:card_tiers::text[]) THEN s.tier
                ELSE (:step_tiers::text[])[width_bucket(
                         least(coalesce(s.speed_tflops, k.tflops, :unknown_tflops::double precision),
                               coalesce(k.tflops, :unknown_tflops::double precision)
                                   * :declared_ratio_max::double precision),
                         :step_tflops::double precision[])] END AS bucket_tier,
           coalesce(c.region, :default_region::text) AS bucket_region
      FROM lent n
      JOIN slots s ON s.node_id = n.id
      LEFT JOIN unnest(:tiers_known::text[], :tiers_tflops::double precision[]) AS k (tier, tflops) ON k.tier = s.tier
      LEFT JOIN unnest(:countries::text[], :country_regions::text[]) AS c (country, region) ON c.country = n.region
      LEFT JOIN unnest(:watched_ids::uuid[]) AS w (account_id) ON w.account_id = n.account_id
      LEFT JOIN attempts a ON a.node_id = s.node_id AND a.slot = s.name AND a.state IN ('leased', 'running')
      LEFT JOIN jobs j ON j.id = a.job_id
      LEFT JOIN shapes sh ON sh.id = j.shape_id
      LEFT JOIN links own ON own.account_id = n.account_id
      LEFT JOIN links its ON its.account_id = j.account_id),
in_buckets AS (
    SELECT u.*, p.place, p.spot,
           least(u.ceiling_microcredits_per_hour,
                 div(u.base_ceiling_microcredits_per_hour::numeric * p.multiplier, :multiplier_unit::bigint))::bigint
               AS ceiling
      FROM slots_in_use u
      JOIN unnest(:spot_tiers::text[], :spot_regions::text[], :spots::bigint[], :multipliers::bigint[]) WITH ORDINALITY
               AS p (tier, region, spot, multiplier, place)
        ON p.tier = u.bucket_tier AND p.region = u.bucket_region)
SELECT u.place::integer AS place, grouping(u.busy) = 0 AS by_use, grouping(u.kind) = 0 AS by_class,
       u.kind, u.tier, u.region, u.busy, u.own, u.ceiling AS ceiling_microcredits_per_hour, u.watched_id,
       u.job_kinds, u.allows, min(u.slice_seconds_min) AS slice_seconds_min, NULL::uuid[] AS welcome,
       max(u.vram_bytes) AS vram_bytes, max(u.cores) AS cores, max(u.ram_bytes) AS ram_bytes,
       max(u.disk_bytes) AS disk_bytes, max(u.isolation) AS isolation,
       count(*) AS slot_count,
       count(*) FILTER (WHERE u.floor_microcredits_per_hour <= u.spot) AS spot_count,
       coalesce(sum(u.expected_seconds), 0)::bigint AS expected_seconds
  FROM in_buckets u
 GROUP BY GROUPING SETS (
    (u.place, u.busy, u.own, u.ceiling), (u.place, u.kind, u.tier, u.region, u.job_kinds, u.allows), (u.place, u.watched_id));

-- name: list_deals
-- What ended and was paid for in a span of time, by bucket, by steps of half a percent of the price (told by the highest
-- in each), and by whether the two sides are one or linked, or dealt in a private pool. A fixed price per slice is no
-- price of an hour, and no deal here: it has no rate. Node by node through attempts_node_end_idx, of those that
-- were heard of since then: whoever has delivered something was. OFFSET keeps the planner from reading all of the history
-- instead. What commits while this looks may be left out; nothing counts twice.
WITH heard AS MATERIALIZED (
    SELECT id, account_id, region FROM nodes
     WHERE last_seen_at > :since::timestamptz - :silence_seconds::double precision * interval '1 second'
     LIMIT :fleet_max::bigint),
ended AS MATERIALIZED (
    SELECT n.account_id, n.region, a.* FROM heard n CROSS JOIN LATERAL (
        SELECT node_id, slot, job_id, rate_microcredits_per_hour, charged_microcredits, pooled FROM attempts
         WHERE node_id = n.id AND finished_at > :since::timestamptz AND finished_at <= :until::timestamptz
           AND charged_microcredits > 0 AND rate_microcredits_per_hour > 0 AND earning_state <> 'reversed' OFFSET 0) AS a),
links AS (SELECT * FROM unnest(:linked_ids::uuid[], :group_ids::uuid[]) AS l (account_id, group_id)),
paid AS (
    SELECT a.rate_microcredits_per_hour AS price,
           (a.charged_microcredits * 3600 + a.rate_microcredits_per_hour - 1) / a.rate_microcredits_per_hour AS seconds,
           coalesce(own.group_id, a.account_id) = coalesce(its.group_id, j.account_id) AS linked, a.pooled,
           CASE WHEN s.tier = ANY(:card_tiers::text[]) THEN s.tier
                ELSE (:step_tiers::text[])[width_bucket(
                         least(coalesce(s.speed_tflops, k.tflops, :unknown_tflops::double precision),
                               coalesce(k.tflops, :unknown_tflops::double precision)
                                   * :declared_ratio_max::double precision),
                         :step_tflops::double precision[])] END AS bucket_tier,
           coalesce(c.region, :default_region::text) AS bucket_region
      FROM ended a
      JOIN slots s ON s.node_id = a.node_id AND s.name = a.slot
      JOIN jobs j ON j.id = a.job_id
      LEFT JOIN unnest(:tiers_known::text[], :tiers_tflops::double precision[]) AS k (tier, tflops) ON k.tier = s.tier
      LEFT JOIN unnest(:countries::text[], :country_regions::text[]) AS c (country, region) ON c.country = a.region
      LEFT JOIN links own ON own.account_id = a.account_id
      LEFT JOIN links its ON its.account_id = j.account_id)
SELECT bucket_tier, bucket_region, linked, pooled, max(price) AS price_microcredits_per_hour, count(*) AS deal_count,
       sum(seconds)::bigint AS seconds
  FROM paid GROUP BY bucket_tier, bucket_region, linked, pooled, floor(ln(price::double precision) * 200);

-- name: list_fitting_buckets
-- Slots that pass every gate of a shape, by bucket: how many there are, are free, and ask for no more than the ceiling
-- that the shape has there. Its account's own cost it nothing, whatever they ask of others.
-- Private pools count apart, and only for who asks: their slots are lent at their owners' price, not at spot.
WITH lent AS MATERIALIZED (
    SELECT n.id, n.account_id, n.region, n.floor_microcredits_per_hour, (o.audience <> 'anyone') IS TRUE AS private
      FROM nodes n LEFT JOIN offers o ON o.node_id = n.id
      LEFT JOIN unnest(:closed_hours::bytea[], :closed_zones::text[]) AS c (hours, zone)
        ON c.hours = o.hours AND c.zone = o.zone
     WHERE n.state = 'active' AND n.isolation >= :isolation::isolation_level AND c.zone IS NULL
       AND (:regions::text[] = '{}' OR n.region = ANY(:regions::text[]))
       AND n.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
       AND (o.seconds_min > :slice_seconds::integer) IS NOT TRUE
       AND (o.kinds <> '{}' AND NOT :job_kind::text = ANY(o.kinds)) IS NOT TRUE
       AND (o.audience = 'anyone' OR n.account_id = :account_id::uuid OR :account_id::uuid = ANY(o.named)) IS NOT FALSE
     LIMIT :fleet_max::bigint),
fitting AS (
    SELECT n.account_id = :account_id::uuid AS own, n.private,
           CASE WHEN n.account_id = :account_id::uuid THEN 0 ELSE n.floor_microcredits_per_hour END AS floor,
           NOT EXISTS (SELECT 1 FROM attempts a WHERE a.node_id = s.node_id AND a.slot = s.name
                          AND a.state IN ('leased', 'running')) AS free,
           CASE WHEN s.tier = ANY(:card_tiers::text[]) THEN s.tier
                ELSE (:step_tiers::text[])[width_bucket(
                         least(coalesce(s.speed_tflops, k.tflops, :unknown_tflops::double precision),
                               coalesce(k.tflops, :unknown_tflops::double precision)
                                   * :declared_ratio_max::double precision),
                         :step_tflops::double precision[])] END AS bucket_tier,
           coalesce(c.region, :default_region::text) AS bucket_region
      FROM lent n
      JOIN slots s ON s.node_id = n.id
      LEFT JOIN unnest(:tiers_known::text[], :tiers_tflops::double precision[]) AS k (tier, tflops) ON k.tier = s.tier
      LEFT JOIN unnest(:countries::text[], :country_regions::text[]) AS c (country, region) ON c.country = n.region
     WHERE (s.kind = 'gpu' OR NOT :gpu::boolean) AND (:tiers::text[] = '{}' OR s.tier = ANY(:tiers::text[]))
       AND s.vram_bytes >= :vram_bytes::bigint AND s.cores >= :cores::integer AND s.ram_bytes >= :ram_bytes::bigint
       AND s.disk_bytes >= :disk_bytes::bigint)
SELECT f.bucket_tier, f.bucket_region, count(*) FILTER (WHERE NOT f.private) AS slot_count,
       count(*) FILTER (WHERE f.free AND NOT f.private) AS free_count,
       count(*) FILTER (WHERE f.floor <= p.ceiling AND NOT f.private) AS affordable_count,
       count(*) FILTER (WHERE f.floor <= p.ceiling AND f.free AND NOT f.private) AS affordable_free_count,
       count(*) FILTER (WHERE f.own) AS own_count, count(*) FILTER (WHERE f.own AND f.free) AS own_free_count,
       coalesce(min(f.floor) FILTER (WHERE NOT f.private), 0) AS floor_microcredits_per_hour,
       count(*) FILTER (WHERE f.private AND NOT f.own AND f.floor <= p.ceiling) AS pool_count,
       min(f.floor) FILTER (WHERE f.private AND NOT f.own AND f.floor <= p.ceiling) AS pool_floor_microcredits_per_hour
  FROM fitting f
  JOIN unnest(:ceiling_tiers::text[], :ceiling_regions::text[], :ceilings::bigint[]) AS p (tier, region, ceiling)
    ON p.tier = f.bucket_tier AND p.region = f.bucket_region
 GROUP BY 1, 2;

-- name: list_states
SELECT tier, region, surge_ppm, target_ppm, step_ppm, direction, spot_microcredits_per_hour,
       reference_microcredits_per_hour, rate_card_version, slot_count, busy_count, waiting_count, contested,
       seconds_mean, bids, at
  FROM spot_states;

-- name: upsert_states!
INSERT INTO spot_states (tier, region, surge_ppm, target_ppm, step_ppm, direction, spot_microcredits_per_hour,
                         reference_microcredits_per_hour, slot_count, busy_count, waiting_count, contested,
                         seconds_mean, bids, rate_card_version, at)
SELECT tier, region, surge_ppm, target_ppm, step_ppm, direction, spot, reference, slot_count, busy_count, waiting_count,
       contested, seconds_mean, bids::jsonb, :rate_card_version::text, :at::timestamptz
  FROM unnest(:tiers::text[], :regions::text[], :surges::integer[], :targets::integer[], :steps::integer[],
              :directions::smallint[], :spots::bigint[], :reference_prices::bigint[], :slot_counts::integer[],
              :busy_counts::integer[], :waiting_counts::integer[], :contested::boolean[], :seconds_means::integer[],
              :bids::text[])
           AS new (tier, region, surge_ppm, target_ppm, step_ppm, direction, spot, reference, slot_count, busy_count,
                   waiting_count, contested, seconds_mean, bids)
ON CONFLICT (tier, region) DO UPDATE
   SET surge_ppm = excluded.surge_ppm, target_ppm = excluded.target_ppm, step_ppm = excluded.step_ppm,
       direction = excluded.direction, spot_microcredits_per_hour = excluded.spot_microcredits_per_hour,
       reference_microcredits_per_hour = excluded.reference_microcredits_per_hour,
       rate_card_version = excluded.rate_card_version, slot_count = excluded.slot_count,
       busy_count = excluded.busy_count, waiting_count = excluded.waiting_count, contested = excluded.contested,
       seconds_mean = excluded.seconds_mean, bids = excluded.bids, at = excluded.at;

-- name: record_history!
-- Buckets without slots have nothing to tell.
INSERT INTO spot_history (tier, region, at, surge_ppm, spot_microcredits_per_hour, reference_microcredits_per_hour,
                          rate_card_version, slot_count, busy_count, waiting_count)
SELECT tier, region, at, surge_ppm, spot_microcredits_per_hour, reference_microcredits_per_hour, rate_card_version,
       slot_count, busy_count, waiting_count
  FROM spot_states WHERE at = :at AND slot_count > 0;

-- name: delete_history!
-- Through spot_history_at_idx; a bounded bite, because the next tick goes on.
DELETE FROM spot_history h
 USING (SELECT tier, region, at FROM spot_history WHERE at < :before ORDER BY at LIMIT :limit_count) AS old
 WHERE h.tier = old.tier AND h.region = old.region AND h.at = old.at;

-- name: record_index!
INSERT INTO price_index (tier, region, at, price_microcredits_per_hour, reference_microcredits_per_hour,
                         rate_card_version, deal_count, seconds)
SELECT tier, region, :at::timestamptz, price, reference, :rate_card_version::text, deal_count, seconds
  FROM unnest(:tiers::text[], :regions::text[], :prices::bigint[], :reference_prices::bigint[], :deal_counts::integer[],
              :seconds::bigint[]) AS new (tier, region, price, reference, deal_count, seconds);

-- name: delete_index!
-- Through price_index_at_idx; a bounded bite, because the next tick goes on.
DELETE FROM price_index i
 USING (SELECT tier, region, at FROM price_index WHERE at < :before ORDER BY at LIMIT :limit_count) AS old
 WHERE i.tier = old.tier AND i.region = old.region AND i.at = old.at;

-- name: list_index
-- Of each of these buckets, through the primary key: the index over steps of time, each the median by seconds of its
-- ticks. The sum of core/market/index.py, written here because a step may have thousands of them.
WITH ticks AS (
    SELECT i.*, floor(extract(epoch FROM i.at - :since::timestamptz) / :step_seconds::double precision) AS step
      FROM unnest(:tiers::text[], :regions::text[]) AS w (tier, region)
      JOIN price_index i ON i.tier = w.tier AND i.region = w.region AND i.at >= :since::timestamptz),
summed AS (
    SELECT ticks.*, sum(seconds) OVER (PARTITION BY tier, region, step) AS total,
           sum(seconds) OVER (PARTITION BY tier, region, step ORDER BY price_microcredits_per_hour) AS covered
      FROM ticks)
SELECT tier, region, max(at) AS at,
       min(price_microcredits_per_hour) FILTER (WHERE covered * 2 >= total) AS price_microcredits_per_hour,
       (array_agg(reference_microcredits_per_hour ORDER BY at DESC))[1] AS reference_microcredits_per_hour,
       sum(deal_count)::bigint AS deal_count, sum(seconds)::bigint AS seconds
  FROM summed GROUP BY tier, region, step ORDER BY tier, region, step LIMIT :limit_count::bigint;

-- name: list_history
-- The last point of each step of time, through the primary key.
SELECT DISTINCT ON (date_bin(:step_seconds::double precision * interval '1 second', at, 'epoch'::timestamptz))
       at, surge_ppm, spot_microcredits_per_hour, reference_microcredits_per_hour, rate_card_version, slot_count,
       busy_count, waiting_count
  FROM spot_history WHERE tier = :tier AND region = :region AND at >= :since
 ORDER BY date_bin(:step_seconds::double precision * interval '1 second', at, 'epoch'::timestamptz), at DESC
 LIMIT :limit_count;

-- name: list_points
-- Of each of these buckets, its last point of a span of time.
SELECT w.tier, w.region, h.at, h.surge_ppm, h.spot_microcredits_per_hour, h.reference_microcredits_per_hour,
       h.rate_card_version, h.slot_count, h.busy_count, h.waiting_count
  FROM unnest(:tiers::text[], :regions::text[]) AS w (tier, region)
 CROSS JOIN LATERAL (
    SELECT * FROM spot_history s
     WHERE s.tier = w.tier AND s.region = w.region AND s.at >= :since AND s.at <= :until
     ORDER BY s.at DESC LIMIT 1) AS h;

-- name: list_use
-- Of each of these buckets: how many slots were lent and busy, summed over all ticks since then.
SELECT w.tier, w.region, sum(h.slot_count)::bigint AS slot_sum, sum(h.busy_count)::bigint AS busy_sum
  FROM unnest(:tiers::text[], :regions::text[]) AS w (tier, region)
  JOIN spot_history h ON h.tier = w.tier AND h.region = w.region AND h.at >= :since
 GROUP BY 1, 2;
