-- name: insert_facts!
-- The first hub to start names the grid; the others read what it wrote.
INSERT INTO hub_facts (hub_id, blob_store_id) VALUES (:hub_id, :blob_store_id) ON CONFLICT DO NOTHING;

-- name: get_facts^
SELECT hub_id, blob_store_id FROM hub_facts;

-- name: insert_key!
INSERT INTO hub_keys (kid, purpose, secret, public_key, signs_from)
VALUES (:kid, :purpose, :secret, :public_key, clock_timestamp() + :announce_seconds * interval '1 second');

-- name: lock_keys!
-- Two hubs that start together must agree on one first key.
LOCK TABLE hub_keys IN SHARE ROW EXCLUSIVE MODE;

-- name: list_keys
SELECT kid, purpose, secret, public_key, signs_from, signs_from <= clock_timestamp() AS signs
  FROM hub_keys WHERE retires_at IS NULL OR retires_at > clock_timestamp()
 ORDER BY signs_from, kid;

-- name: retire_keys!
UPDATE hub_keys SET retires_at = clock_timestamp() + :retire_seconds * interval '1 second'
 WHERE purpose = 'signing' AND kid = ANY(:kids::text[]) AND retires_at IS NULL;

-- name: get_now$
SELECT clock_timestamp();

-- name: notify!
-- An accelerator only: every listener also looks by itself once a second.
SELECT pg_notify('computepool', :topic);
