-- name: insert_account!
INSERT INTO accounts (id, email, name, password_hash, roles, queued_slices_max, stored_bytes_max, calls_per_minute_max)
VALUES (:id, :email, :name, :password_hash, :roles::account_role[], :queued_slices_max, :stored_bytes_max,
        :calls_per_minute_max);

-- name: get_account^
SELECT * FROM accounts WHERE id = :id;

-- name: find_account_by_email^
SELECT * FROM accounts WHERE email = :email;

-- name: list_named
SELECT id, email FROM accounts WHERE email = ANY(:emails::text[])
UNION
SELECT id, email FROM accounts WHERE id = ANY(:ids::uuid[]);

-- name: find_first_operator^
SELECT * FROM accounts WHERE 'operator' = ANY(roles) ORDER BY id LIMIT 1;

-- name: list_accounts
-- `words` is a part of the address, the name or the pseudonym.
SELECT a.* FROM accounts a
 WHERE a.id > :after AND (:suspended::boolean IS NULL OR (a.suspended_at IS NOT NULL) = :suspended::boolean)
   AND (:words::text IS NULL OR strpos(lower(a.email || ' ' || a.name), lower(:words::text)) > 0
        OR EXISTS (SELECT 1 FROM profiles p
                    WHERE p.account_id = a.id AND strpos(lower(p.pseudonym), lower(:words::text)) > 0))
 ORDER BY a.id LIMIT :limit_count;

-- name: set_password!
UPDATE accounts SET password_hash = :password_hash WHERE id = :id;

-- name: list_usage
-- What counts against the limits of these accounts, through jobs_open_idx, and what they can spend.
SELECT a.id, a.queued_slices_max, a.stored_bytes, a.stored_bytes_max,
       coalesce((SELECT l.balance FROM ledger_accounts l WHERE l.id = 'submitter_available/' || a.id), 0) AS available,
       EXISTS (SELECT 1 FROM ledger_accounts l WHERE l.id = 'submitter_held/' || a.id) AS has_held,
       EXISTS (SELECT 1 FROM account_freezes f WHERE f.account_id = a.id AND f.lifted_at IS NULL) AS frozen,
       (SELECT coalesce(sum(j.slice_count - j.succeeded_count - j.failed_count - j.cancelled_count), 0)::bigint
          FROM jobs j WHERE j.account_id = a.id AND j.finished_at IS NULL) AS open_slices
  FROM accounts a WHERE a.id = ANY(:ids::uuid[]);

-- name: change_account!
-- What is null stays as it is.
UPDATE accounts SET roles = coalesce(:roles::account_role[], roles),
       queued_slices_max = coalesce(:queued_slices_max::integer, queued_slices_max),
       stored_bytes_max = coalesce(:stored_bytes_max::bigint, stored_bytes_max),
       calls_per_minute_max = coalesce(:calls_per_minute_max::integer, calls_per_minute_max),
       fair_weight = coalesce(:fair_weight::double precision, fair_weight),
       priority_class_max = coalesce(:priority_class_max::priority_class, priority_class_max),
       new_nodes_max = coalesce(:new_nodes_max::integer, new_nodes_max)
 WHERE id = :id;

-- name: set_suspended!
UPDATE accounts SET suspended_at = CASE WHEN :suspended THEN coalesce(suspended_at, now()) END WHERE id = :id;

-- name: insert_link!
INSERT INTO sign_in_links (token_sha256, account_id, expires_at)
VALUES (:token_sha256, :account_id, now() + :expires_seconds * interval '1 second');

-- name: use_link$
-- The guard in the WHERE makes it a one-time link, whatever arrives at the same moment.
UPDATE sign_in_links SET used_at = now()
 WHERE token_sha256 = :token_sha256 AND used_at IS NULL AND expires_at > now()
RETURNING account_id;

-- name: insert_invite!
INSERT INTO invites (token_sha256, created_by, roles, expires_at)
VALUES (:token_sha256, :created_by, :roles::account_role[], now() + :expires_seconds * interval '1 second');

-- name: use_invite^
UPDATE invites SET used_at = now(), used_by = :used_by
 WHERE token_sha256 = :token_sha256 AND used_at IS NULL AND expires_at > now()
RETURNING roles;
