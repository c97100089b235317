-- name: insert_challenge^
INSERT INTO challenges (id, node_id, slot, claim, seed, size, products, memory_bytes, expires_at)
VALUES (:id, :node_id, :slot, :claim, :seed, :size, :products, :memory_bytes,
        clock_timestamp() + :seconds::double precision * interval '1 second')
RETURNING *;

-- name: lock_challenge^
-- With the database's time: how long a round took is for one clock to say. Whoever looks at it holds it; others find
-- nothing, instead of waiting.
SELECT *, clock_timestamp() AS now FROM challenges WHERE id = :id AND node_id = :node_id
   FOR UPDATE SKIP LOCKED;

-- name: record_commitment!
UPDATE challenges SET committed_at = :committed_at, root = :root, segments = :segments::integer[],
       words = :words::bigint[]
 WHERE id = :id;

-- name: record_opening!
UPDATE challenges SET opened_at = clock_timestamp(), is_right = :is_right WHERE id = :id;

-- name: count_issued$
-- By challenges_node_idx. A node asks in the name of its slot, and cannot ask for ever.
SELECT count(*) FROM challenges
 WHERE node_id = :node_id AND slot = :slot AND issued_at > clock_timestamp() - :seconds::double precision * interval '1 second';

-- name: list_rounds
-- Of this claim, since the last verdict and since the node was asked, by challenges_node_idx. After a verdict that left
-- the proof as it was, its rounds must not count once more.
SELECT size, products, is_right, extract(epoch FROM committed_at - issued_at)::double precision AS seconds
  FROM challenges c
 WHERE node_id = :node_id AND slot = :slot AND claim = :claim AND opened_at IS NOT NULL
   AND issued_at > coalesce((SELECT p.decided_at FROM proofs p WHERE p.node_id = c.node_id AND p.slot = c.slot),
                            '-infinity')
   AND issued_at >= coalesce((SELECT s.asked_at FROM sittings s WHERE s.node_id = c.node_id AND s.slot = c.slot),
                             '-infinity')
 ORDER BY issued_at DESC LIMIT :limit_count;

-- name: upsert_proof!
INSERT INTO proofs (node_id, slot, claim, claimed_tier, state, tier, shown_tflops, spread_ratio, reason)
VALUES (:node_id, :slot, :claim, :claimed_tier, :state, :tier, :shown_tflops, :spread_ratio, :reason)
ON CONFLICT (node_id, slot) DO UPDATE
   SET claim = excluded.claim, claimed_tier = excluded.claimed_tier, state = excluded.state, tier = excluded.tier,
       shown_tflops = excluded.shown_tflops, spread_ratio = excluded.spread_ratio, reason = excluded.reason,
       decided_at = clock_timestamp();

-- name: list_proofs
SELECT * FROM proofs WHERE node_id = ANY(:node_ids::uuid[]);

-- name: set_slot_speeds!
UPDATE slots s SET tier = u.tier, speed_tflops = u.tflops
  FROM unnest(:names::text[], :tiers::text[], :tflops::double precision[]) AS u (name, tier, tflops)
 WHERE s.node_id = :node_id AND s.name = u.name;
