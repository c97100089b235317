-- name: delete_other_sittings!
DELETE FROM sittings WHERE node_id = :node_id AND NOT slot = ANY(:slots::text[]);

-- name: insert_sittings!
-- A new start of the agent is no way to another moment: what was drawn stays drawn.
INSERT INTO sittings (node_id, slot, due_at)
SELECT :node_id, * FROM unnest(:slots::text[], :due_at::timestamptz[])
ON CONFLICT (node_id, slot) DO NOTHING;

-- name: list_turns
-- By sittings_due_idx and sittings_asked_idx. Nothing is locked: whoever acts on one looks again under its node's lock.
(SELECT node_id, slot FROM sittings WHERE asked_at IS NULL AND due_at <= clock_timestamp()
  ORDER BY due_at LIMIT :limit_count)
UNION ALL
(SELECT node_id, slot FROM sittings
  WHERE asked_at IS NOT NULL AND told_at <= clock_timestamp() - :within_seconds::double precision * interval '1 second'
  LIMIT :limit_count);

-- name: get_sitting^
SELECT * FROM sittings WHERE node_id = :node_id AND slot = :slot;

-- name: upsert_sitting!
INSERT INTO sittings (node_id, slot, due_at, asked_at, told_at, missed_count, unsure_count)
VALUES (:node_id, :slot, :due_at, :asked_at, :told_at, :missed_count, :unsure_count)
ON CONFLICT (node_id, slot) DO UPDATE
   SET due_at = excluded.due_at, asked_at = excluded.asked_at, told_at = excluded.told_at,
       missed_count = excluded.missed_count, unsure_count = excluded.unsure_count;

-- name: delete_sitting!
DELETE FROM sittings WHERE node_id = :node_id AND slot = :slot;

-- name: list_asked
-- By sittings_asked_idx: few at any time.
SELECT s.node_id, s.slot, coalesce(p.state = 'proven', false) AS proven
  FROM sittings s LEFT JOIN proofs p ON p.node_id = s.node_id AND p.slot = s.slot
 WHERE s.asked_at IS NOT NULL;

-- name: record_told!
-- Only the first time counts, or whoever is told again and again would never have missed it.
UPDATE sittings s SET told_at = clock_timestamp()
  FROM unnest(:node_ids::uuid[], :slots::text[]) AS u (node_id, slot)
 WHERE s.node_id = u.node_id AND s.slot = u.slot AND s.asked_at IS NOT NULL AND s.told_at IS NULL;
