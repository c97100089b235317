-- name: insert_key^
INSERT INTO api_keys (id, account_id, name, secret_sha256, roles, expires_at)
VALUES (:id, :account_id, :name, :secret_sha256, :roles::account_role[],
        now() + :expires_seconds::double precision * interval '1 second')
RETURNING id, account_id, name, roles, created_at, expires_at, revoked_at, last_used_at;

-- name: find_caller^
-- One look-up names the caller: the key must be valid now, by the database's clock.
SELECT k.id AS key_id, k.account_id, k.roles AS key_roles, a.roles AS account_roles, a.suspended_at,
       a.calls_per_minute_max, a.priority_class_max
  FROM api_keys k JOIN accounts a ON a.id = k.account_id
 WHERE k.secret_sha256 = :secret_sha256 AND k.revoked_at IS NULL
   AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());

-- name: list_keys
SELECT id, account_id, name, roles, created_at, expires_at, revoked_at, last_used_at
  FROM api_keys WHERE account_id = :account_id ORDER BY created_at DESC LIMIT :limit_count;

-- name: count_live_keys$
SELECT count(*) FROM api_keys WHERE account_id = :account_id AND revoked_at IS NULL
   AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: revoke_key$
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
 WHERE id = :id AND account_id = :account_id RETURNING id;

-- name: touch_keys!
-- Locked in order of id: the same keys are used at several hubs, and each of them notes it every few seconds. Nobody waits
-- for the disk because of it.
WITH locked AS MATERIALIZED (SELECT id FROM api_keys WHERE id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE)
UPDATE api_keys SET last_used_at = now() FROM locked CROSS JOIN set_config('synchronous_commit', 'off', true)
 WHERE api_keys.id = locked.id;
