-- name: insert_network^
-- A key that was used before keeps it out.
INSERT INTO networks (id, account_id, name, spec, digest, vnode_count, parameter_count, idempotency_key)
VALUES (:id, :account_id, :name, :spec, :digest, :vnode_count, :parameter_count, :idempotency_key)
ON CONFLICT (account_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING *;

-- name: find_network^
SELECT * FROM networks WHERE id = :id AND deleted_at IS NULL;

-- name: find_by_key^
SELECT * FROM networks WHERE account_id = :account_id AND idempotency_key = :idempotency_key;

-- name: list_networks
-- Newest first: ids are ordered by time. An operator lists all (account_id is null).
SELECT * FROM networks
 WHERE (:account_id::uuid IS NULL OR account_id = :account_id) AND deleted_at IS NULL
   AND (:before::uuid IS NULL OR id < :before)
 ORDER BY id DESC LIMIT :limit_count;

-- name: count_networks$
SELECT count(*) FROM networks WHERE account_id = :account_id AND deleted_at IS NULL;

-- name: lock_network^
SELECT * FROM networks WHERE id = :id AND deleted_at IS NULL FOR UPDATE;

-- name: delete_network!
UPDATE networks SET deleted_at = clock_timestamp() WHERE id = :id AND deleted_at IS NULL;

-- name: upsert_pnode!
-- What an agent says of its node anew stands for what it said before; a pace was measured against that.
INSERT INTO pnodes (node_id, numeric_class, memory_bytes, flops_per_second, bytes_per_second, latency_seconds)
VALUES (:node_id, :numeric_class, :memory_bytes, :flops_per_second, :bytes_per_second, :latency_seconds)
ON CONFLICT (node_id) DO UPDATE
   SET numeric_class = excluded.numeric_class, memory_bytes = excluded.memory_bytes,
       flops_per_second = excluded.flops_per_second, bytes_per_second = excluded.bytes_per_second,
       latency_seconds = excluded.latency_seconds, told_at = clock_timestamp(), pace_ratio = NULL, paced_at = NULL;

-- name: delete_pnode!
DELETE FROM pnodes WHERE node_id = :node_id;

-- name: set_class!
UPDATE pnodes SET numeric_class = :numeric_class, told_at = clock_timestamp() WHERE node_id = :node_id;

-- name: set_address!
UPDATE pnodes SET address = :address WHERE node_id = :node_id AND address <> :address;

-- name: note_held!
-- What a host has fetched of a run's data; the newest 64 are kept.
UPDATE pnodes SET held_sha256s = (
           SELECT coalesce(array_agg(h.sha256 ORDER BY h.place), '{}')
             FROM (SELECT sha256, min(place) AS place
                     FROM unnest(:sha256s::bytea[] || held_sha256s) WITH ORDINALITY AS u (sha256, place)
                    GROUP BY sha256 ORDER BY min(place) LIMIT 64) AS h)
 WHERE node_id = :node_id;

-- name: set_measured_rate!
-- What was seen before counts for half: one upload may have shared its line with others.
UPDATE pnodes SET measured_bytes_per_second =
       (coalesce(measured_bytes_per_second, :bytes_per_second::double precision) + :bytes_per_second) / 2
 WHERE node_id = :node_id;

-- name: list_hosts
SELECT node_id, memory_bytes, flops_per_second, coalesce(bytes_per_second, measured_bytes_per_second) AS bytes_per_second
  FROM pnodes WHERE node_id = ANY(:node_ids::uuid[]);

-- name: lock_pnodes
-- In order: two runs that end at once may have had the same PNodes.
SELECT node_id, flops_per_second, coalesce(bytes_per_second, measured_bytes_per_second) AS bytes_per_second,
       latency_seconds, address, pace_ratio, paced_at
  FROM pnodes WHERE node_id = ANY(:node_ids::uuid[]) ORDER BY node_id FOR NO KEY UPDATE;

-- name: set_pace!
UPDATE pnodes SET pace_ratio = :pace_ratio, paced_at = :paced_at WHERE node_id = :node_id;

-- name: list_free_pnodes
-- Slots that could take a seat now, by the terms of their owners. Busy ones are found through attempts_live_slot_idx.
SELECT s.node_id, s.name, s.kind, s.tier, s.vram_bytes, s.cores, s.ram_bytes, s.disk_bytes, s.speed_tflops, n.region,
       n.isolation, n.allows, n.floor_microcredits_per_hour, n.account_id, n.name AS node_name, n.boot_id, p.numeric_class,
       p.memory_bytes, p.flops_per_second,
       coalesce(p.bytes_per_second, p.measured_bytes_per_second) AS bytes_per_second, p.latency_seconds, p.pace_ratio,
       p.paced_at, p.address,
       r.finished, r.failed, r.faults_running, r.counted_at, t.serving_since,
       coalesce(o.seconds_min, 0) AS slice_seconds_min, coalesce(o.kinds, '{}') AS job_kinds, NULL::uuid[] AS welcome,
       coalesce((SELECT sum(d.size_bytes) FROM unnest(:data_sha256s::bytea[], :data_sizes::bigint[])
                                                AS d (sha256, size_bytes)
                  WHERE d.sha256 = ANY(p.held_sha256s)), 0)::bigint AS held_bytes
  FROM pnodes p
  JOIN nodes n ON n.id = p.node_id
  JOIN slots s ON s.node_id = p.node_id
  LEFT JOIN offers o ON o.node_id = p.node_id
  LEFT JOIN unnest(:closed_hours::bytea[], :closed_zones::text[]) AS c (hours, zone)
    ON c.hours = o.hours AND c.zone = o.zone
  LEFT JOIN reliabilities r ON r.node_id = p.node_id AND r.job_class = 'network|' || s.kind
  LEFT JOIN node_trust t ON t.node_id = p.node_id
 WHERE n.state = 'active'
   AND n.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
   AND n.floor_microcredits_per_hour <= :ceiling::bigint
   AND c.zone IS NULL AND coalesce(o.seconds_min, 0) <= :wall_seconds::integer
   AND (coalesce(cardinality(o.kinds), 0) = 0 OR :job_kind::text = ANY(o.kinds))
   AND (coalesce(o.audience, 'anyone') = 'anyone' OR n.account_id = :account_id OR :account_id = ANY(o.named))
   AND (:node_ids::uuid[] = '{}' OR n.id = ANY(:node_ids::uuid[]))
   AND NOT EXISTS (SELECT 1 FROM unnest(:avoided_ids::uuid[], :avoided_boots::uuid[]) AS v (node_id, boot_id)
                    WHERE v.node_id = n.id AND (v.boot_id IS NULL OR v.boot_id = n.boot_id))
   AND coalesce(t.standing, 'clear') IN ('clear', 'suspect')
   AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.node_id = s.node_id AND a.slot = s.name
                      AND a.state IN ('leased', 'running'))
 ORDER BY s.node_id, s.name LIMIT :limit_count;
