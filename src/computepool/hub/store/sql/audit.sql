-- name: try_lock$
-- One hub at a time seals. The lock goes with its transaction: behind a pooler nothing else can be kept.
SELECT pg_try_advisory_xact_lock(:key::bigint);

-- name: find_head^
SELECT number, first_id, last_id, row_count, amount_sum, (extract(epoch FROM first_at) * 1000000)::bigint AS first_us,
       (extract(epoch FROM last_at) * 1000000)::bigint AS last_us, previous_sha256, sha256, fingerprints, sealed_at
  FROM audit_batches ORDER BY number DESC LIMIT 1;

-- name: list_batches
SELECT number, first_id, last_id, row_count, amount_sum, (extract(epoch FROM first_at) * 1000000)::bigint AS first_us,
       (extract(epoch FROM last_at) * 1000000)::bigint AS last_us, previous_sha256, sha256, fingerprints, sealed_at
  FROM audit_batches WHERE number >= :first_number ORDER BY number LIMIT :limit_count;

-- name: get_last_id$
-- The greatest id that was ever handed out; zero before the first. Not by any snapshot: as it is at this moment.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ledger_transfers_id_seq;

-- name: list_writers
-- Transactions that have written transfers, or are about to, and have not ended: whoever writes holds this lock from
-- before the first id until the end. Not by any snapshot. A prepared transaction changes its name, and has no process.
SELECT virtualtransaction AS name, pid IS NULL AS is_prepared FROM pg_locks
 WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
   AND relation = 'ledger_transfers'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: find_first_id$
-- The next id that was used. In two steps: the one that follows is used nearly always, and the rest need not be read.
SELECT coalesce((SELECT min(id) FROM ledger_transfers WHERE id >= :first_id AND id <= least(:last_id, :first_id + 99)),
                (SELECT min(id) FROM ledger_transfers WHERE id >= :first_id + 100 AND id <= :last_id));

-- name: list_rows
-- Through ledger_transfers_range_idx. By key too: two rows of one id would be a forgery, and must not confuse us.
SELECT id, key, leg, kind::text AS kind, source_id, target_id, amount,
       (extract(epoch FROM at) * 1000000)::bigint AS at_us, job_id::text AS job_id, attempt_id::text AS attempt_id,
       payout_id::text AS payout_id, top_up_id::text AS top_up_id
  FROM ledger_transfers WHERE id >= :first_id AND id <= :last_id ORDER BY id, key, leg LIMIT :limit_count;

-- name: insert_batch!
INSERT INTO audit_batches (number, first_id, last_id, row_count, amount_sum, first_at, last_at, previous_sha256,
                           sha256, fingerprints)
VALUES (:number, :first_id, :last_id, :row_count, :amount_sum, :first_at, :last_at, :previous_sha256, :sha256,
        :fingerprints);

-- name: list_strays
-- Rows that no batch can ever cover: ids that were never handed out.
SELECT id FROM ledger_transfers
 WHERE id < 1 OR id > (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ledger_transfers_id_seq)
 ORDER BY id LIMIT :limit_count;

-- name: count_unsealed$
SELECT count(*) FROM ledger_transfers WHERE id > :last_id;

-- name: list_kind_totals
-- In one statement, so that they come to zero while others go on writing.
SELECT kind::text AS kind, sum(balance)::bigint AS balance, count(*) AS account_count
  FROM ledger_accounts GROUP BY kind ORDER BY kind;
