-- name: try_lock$
-- One makes a checkpoint at a time. The lock goes with its transaction.
SELECT pg_try_advisory_xact_lock(:key::bigint);

-- name: list_newest
-- The newest and the one that it follows.
SELECT * FROM book_checkpoints ORDER BY number DESC LIMIT 2;

-- name: find_before^
-- The newest without a transfer of the period or a younger one; through book_checkpoints_last_at_idx.
SELECT * FROM book_checkpoints WHERE last_at < :at::timestamptz ORDER BY last_at DESC, number DESC LIMIT 1;

-- name: find_batch_sha256$
SELECT sha256 FROM audit_batches WHERE number = :number;

-- name: find_last_batch^
-- The last of those from the first on that have no transfer of this time or younger, with the youngest time of all
-- after a given batch. The first that has one is found through audit_batches_last_at_idx.
WITH wanted AS (
    SELECT coalesce((SELECT min(number) - 1 FROM audit_batches WHERE last_at >= :until::timestamptz),
                    (SELECT max(number) FROM audit_batches)) AS number)
SELECT b.number, b.sha256, b.last_id,
       (SELECT max(last_at) FROM audit_batches WHERE number > :after_number AND number <= b.number) AS last_at
  FROM wanted JOIN audit_batches b ON b.number = greatest(wanted.number, :least_number);

-- name: clear_sums!
DELETE FROM book_sums;

-- name: add_to_sums!
INSERT INTO book_sums (name, amount)
SELECT name, sum(delta)::bigint FROM ledger_sides WHERE id > :after_id AND id <= :last_id GROUP BY name
ON CONFLICT (name) DO UPDATE SET amount = book_sums.amount + excluded.amount;

-- name: drop_empty_sums!
-- Most jobs hold nothing any more.
DELETE FROM book_sums WHERE amount = 0;

-- name: digest_sums$
SELECT sha256(convert_to(coalesce(string_agg(name || ' ' || amount, ',' ORDER BY name), ''), 'UTF8')) FROM book_sums;

-- name: list_kind_sums
SELECT split_part(name, '/', 1) AS kind, sum(amount)::bigint AS amount
  FROM book_sums WHERE NOT starts_with(name, 'job/') GROUP BY 1 ORDER BY 1;

-- name: insert_checkpoint!
INSERT INTO book_checkpoints (number, batch_number, batch_sha256, last_id, last_at, kind_sums, sums_sha256,
                              previous_sha256, sha256)
VALUES (:number, :batch_number, :batch_sha256, :last_id, :last_at, :kind_sums, :sums_sha256, :previous_sha256,
        :sha256);
