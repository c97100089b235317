-- name: upsert_node^
-- Enrolling again with the same key pair is the same node; another owner cannot take it over. An agent that names no
-- floor leaves the one that its owner has set since: a restart must not lend a machine for nothing.
INSERT INTO nodes (id, account_id, name, public_key, synthetic, isolation, region, hardware, agent_version,
                   floor_microcredits_per_hour, allows, network)
VALUES (:id, :account_id, :name, :public_key, :synthetic, :isolation, :region, :hardware, :agent_version,
        :floor_microcredits_per_hour, :allows::text[], :network)
ON CONFLICT (public_key) DO UPDATE
   SET name = excluded.name, isolation = excluded.isolation, region = excluded.region, hardware = excluded.hardware,
       agent_version = excluded.agent_version, synthetic = excluded.synthetic, allows = excluded.allows,
       network = coalesce(excluded.network, nodes.network),
       floor_microcredits_per_hour = coalesce(nullif(excluded.floor_microcredits_per_hour, 0),
                                              nodes.floor_microcredits_per_hour)
 WHERE nodes.account_id = excluded.account_id AND nodes.state <> 'removed'
RETURNING id;

-- name: delete_slots!
DELETE FROM slots WHERE node_id = :node_id;

-- name: insert_slots!
INSERT INTO slots (node_id, name, kind, tier, vram_bytes, cores, ram_bytes, disk_bytes, speed_tflops)
SELECT :node_id, * FROM unnest(:names::text[], :kinds::slot_kind[], :tiers::text[], :vram_bytes::bigint[],
                               :cores::integer[], :ram_bytes::bigint[], :disk_bytes::bigint[],
                               :speed_tflops::double precision[]);

-- name: get_node^
SELECT * FROM nodes WHERE id = :id;

-- name: find_nodes
SELECT * FROM nodes WHERE id = ANY(:ids::uuid[]) ORDER BY id;

-- name: find_standing^
SELECT n.account_id, n.state, a.suspended_at FROM nodes n JOIN accounts a ON a.id = n.account_id WHERE n.id = :id;

-- name: has_boot$
SELECT EXISTS (SELECT 1 FROM nodes WHERE id = :id AND boot_id = :boot_id AND state <> 'removed');

-- name: list_nodes
-- An operator lists all (account_id is null).
SELECT * FROM nodes
 WHERE (:account_id::uuid IS NULL OR account_id = :account_id) AND id > :after AND state <> 'removed'
   AND (:state::node_state IS NULL OR state = :state::node_state)
   AND (:name::text IS NULL OR strpos(lower(name), lower(:name::text)) > 0)
   AND (:online::boolean IS NULL OR :online::boolean = coalesce(
           last_seen_at > clock_timestamp() - :silence_seconds::double precision * interval '1 second', false))
 ORDER BY id LIMIT :limit_count;

-- name: list_candidates
-- With the conditions of their offers; nearly all nodes have none. A node that is bugged, or on its way back, is out:
-- it gets no ordinary work. Busy slots are found through attempts_live_slot_idx.
SELECT s.*, n.region, n.isolation, n.allows, n.account_id AS owner_id, n.floor_microcredits_per_hour, o.hours, o.zone,
       coalesce(o.seconds_min, 0) AS slice_seconds_min, coalesce(o.kinds, '{}') AS job_kinds,
       CASE WHEN o.audience <> 'anyone' THEN n.account_id || o.named END AS welcome,
       EXISTS (SELECT 1 FROM attempts a WHERE a.node_id = s.node_id AND a.slot = s.name
                  AND a.state IN ('leased', 'running')) AS busy,
       coalesce(t.standing, 'clear') NOT IN ('clear', 'suspect') AS is_out, t.serving_since
  FROM slots s JOIN nodes n ON n.id = s.node_id LEFT JOIN offers o ON o.node_id = n.id
  LEFT JOIN node_trust t ON t.node_id = n.id
 WHERE s.node_id = ANY(:node_ids::uuid[]) ORDER BY s.node_id, s.name;

-- name: lock_node^
SELECT * FROM nodes WHERE id = :id FOR UPDATE;

-- name: set_allows!
UPDATE nodes SET allows = :allows::text[] WHERE id = :id;

-- name: set_network!
UPDATE nodes SET network = :network WHERE id = :id;

-- name: has_key$
SELECT EXISTS (SELECT 1 FROM nodes WHERE public_key = :public_key);

-- name: lock_newcomers$
SELECT pg_advisory_xact_lock(:key::bigint);

-- name: find_owner_origin^
-- By nodes_account_idx. Nodes that were removed count as well: removing one must not make room for the next.
SELECT (count(*) FILTER (WHERE n.created_at > w.since))::integer AS new_within_window,
       min(n.created_at) FILTER (WHERE n.created_at > w.since) AS oldest_new_at,
       (count(*) FILTER (WHERE t.standing IN ('bugged', 'barred')))::integer AS bugged_count,
       max(t.since) FILTER (WHERE t.standing IN ('bugged', 'barred')) AS last_bugged_at,
       (count(*) FILTER (WHERE t.standing NOT IN ('bugged', 'barred')))::integer AS returned_count,
       (SELECT a.new_nodes_max FROM accounts a WHERE a.id = :account_id) AS "limit"
  FROM (SELECT clock_timestamp() - :window_seconds::double precision * interval '1 second' AS since,
               clock_timestamp() - :bad_seconds::double precision * interval '1 second' AS bad_since) w
 CROSS JOIN nodes n
  LEFT JOIN node_trust t ON t.node_id = n.id AND t.bugged_count > 0 AND t.since > w.bad_since
 WHERE n.account_id = :account_id;

-- name: find_network_origin^
-- By nodes_network_idx; whoever's they are.
SELECT (count(*) FILTER (WHERE n.created_at > w.since))::integer AS new_within_window,
       min(n.created_at) FILTER (WHERE n.created_at > w.since) AS oldest_new_at,
       (count(*) FILTER (WHERE t.standing IN ('bugged', 'barred')))::integer AS bugged_count,
       max(t.since) FILTER (WHERE t.standing IN ('bugged', 'barred')) AS last_bugged_at,
       (count(*) FILTER (WHERE t.standing NOT IN ('bugged', 'barred')))::integer AS returned_count
  FROM (SELECT clock_timestamp() - :window_seconds::double precision * interval '1 second' AS since,
               clock_timestamp() - :bad_seconds::double precision * interval '1 second' AS bad_since) w
 CROSS JOIN nodes n
  LEFT JOIN node_trust t ON t.node_id = n.id AND t.bugged_count > 0 AND t.since > w.bad_since
 WHERE n.network = :network;

-- name: set_state!
UPDATE nodes SET state = :state WHERE id = :id;

-- name: set_boot!
UPDATE nodes SET boot_id = :boot_id, past_boot_ids = :past_boot_ids::uuid[], last_seen_at = clock_timestamp()
 WHERE id = :id;

-- name: see_nodes!
-- Many beats, one statement. The rows are locked in order of id, so that two hubs never wait for each other. Not worth
-- waiting for the disk: the next beat says the same before anybody is taken for silent.
WITH locked AS (SELECT id FROM nodes WHERE id = ANY(:ids::text::uuid[]) ORDER BY id FOR UPDATE)
UPDATE nodes SET last_seen_at = clock_timestamp() FROM locked CROSS JOIN set_config('synchronous_commit', 'off', true)
 WHERE nodes.id = locked.id;

-- name: list_states
SELECT id, state FROM nodes WHERE id = ANY(:ids::uuid[]);

-- name: count_online$
SELECT count(*) FROM nodes WHERE last_seen_at > clock_timestamp() - :seconds::double precision * interval '1 second';
