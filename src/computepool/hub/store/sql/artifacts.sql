-- name: insert_artifact$
INSERT INTO artifacts (account_id, sha256, size_bytes) VALUES (:account_id, :sha256, :size_bytes)
ON CONFLICT DO NOTHING RETURNING size_bytes;

-- name: add_stored_bytes!
UPDATE accounts SET stored_bytes = stored_bytes + :size_bytes WHERE id = :account_id;

-- name: find_artifact$
SELECT size_bytes FROM artifacts WHERE account_id = :account_id AND sha256 = :sha256;

-- name: list_present
SELECT a.account_id, a.sha256, a.size_bytes
  FROM artifacts a JOIN unnest(:account_ids::uuid[], :sha256s::bytea[]) AS w (account_id, sha256)
    ON a.account_id = w.account_id AND a.sha256 = w.sha256;
