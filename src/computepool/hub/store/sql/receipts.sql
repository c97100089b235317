-- name: take_unverified
-- In the order they came. SKIP LOCKED: another hub may be looking at some of them.
SELECT r.id, r.node_id, r.token, n.public_key FROM receipts r JOIN nodes n ON n.id = r.node_id
 WHERE r.state = 'unverified' ORDER BY r.created_at LIMIT :limit_count FOR UPDATE OF r SKIP LOCKED;

-- name: list_covered
-- The results that each receipt has to vouch for.
SELECT receipt_id, id AS attempt_id, result_sha256 FROM attempts
 WHERE receipt_id = ANY(:ids::uuid[]) AND state = 'succeeded';

-- name: set_states!
UPDATE receipts SET state = c.state
  FROM unnest(:ids::uuid[], :states::receipt_state[]) AS c (id, state) WHERE receipts.id = c.id;

-- name: has_unverified$
SELECT EXISTS (SELECT 1 FROM receipts WHERE state = 'unverified'
                  AND created_at < clock_timestamp() - :seconds::double precision * interval '1 second');
