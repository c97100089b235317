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

-- name: revoke_key!
UPDATE hub_keys SET retires_at = clock_timestamp() WHERE purpose = 'signing' AND kid = :kid;

-- name: keep_key!
-- It signs from now on, and for as long as nobody says otherwise.
UPDATE hub_keys SET retires_at = NULL, signs_from = least(signs_from, clock_timestamp())
 WHERE purpose = 'signing' AND kid = :kid;

-- name: get_now$
SELECT clock_timestamp();

-- name: notify!
-- An accelerator only: every listener also looks by itself once a second.
SELECT pg_notify('computepool', :topic);

-- name: insert_change!
INSERT INTO hub_changes (kind, subject_id) VALUES (:kind, :subject_id);

-- name: list_changes
-- By time and not by id: ids become visible out of order.
SELECT id, kind, subject_id FROM hub_changes
 WHERE at > clock_timestamp() - :seconds::double precision * interval '1 second';

-- name: delete_changes!
DELETE FROM hub_changes WHERE at < clock_timestamp() - interval '1 hour';

-- name: exchange_summaries
-- Tells what this hub process has free, and hears it from the others that are alive; those long silent are dropped.
-- Told anew every second, so nobody waits for the disk.
WITH told AS (
    INSERT INTO hub_summaries (hub_process_id, free, told_at)
    SELECT :hub_process_id, :free, clock_timestamp() FROM set_config('synchronous_commit', 'off', true)
    ON CONFLICT (hub_process_id) DO UPDATE SET free = excluded.free, told_at = excluded.told_at),
dropped AS (DELETE FROM hub_summaries WHERE told_at < clock_timestamp() - interval '1 hour')
SELECT hub_process_id, free FROM hub_summaries
 WHERE hub_process_id <> :hub_process_id AND told_at > clock_timestamp() - :seconds::double precision * interval '1 second';

-- name: delete_summary!
DELETE FROM hub_summaries WHERE hub_process_id = :hub_process_id;
