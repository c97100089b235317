-- name: find_range^
-- Ids that a period's transfers lie between, by the times of sealed batches; null: by no batch. `at` is the begin of a
-- transaction, and none of ours takes an hour: so what stands before a batch that ended an hour before the period is
-- older than it, and what stands after one that began an hour after the period is younger.
SELECT (SELECT last_id FROM audit_batches WHERE last_at < :since::timestamptz - interval '1 hour'
         ORDER BY last_at DESC LIMIT 1) AS after_id,
       (SELECT last_id FROM audit_batches WHERE first_at >= :until::timestamptz + interval '1 hour'
         ORDER BY first_at LIMIT 1) AS last_id;

-- name: list_account_lines
-- Oldest first, of all accounts of one person. The conditions are those of the two partial indexes, word for word.
SELECT DISTINCT t.id, t.at, t.kind::text AS kind, t.source_id, t.target_id, t.amount, t.job_id, t.attempt_id,
       t.payout_id, t.top_up_id, t.key, t.leg
  FROM unnest(:ids::text[]) AS a (id), LATERAL (
           (SELECT * FROM ledger_transfers
             WHERE source_id = a.id AND id > :after_id AND id <= :last_id AND at >= :since AND at < :until
               AND source_id NOT LIKE 'fee/%' AND source_id NOT LIKE 'world/%'
             ORDER BY id LIMIT :limit_count)
           UNION ALL
           (SELECT * FROM ledger_transfers
             WHERE target_id = a.id AND id > :after_id AND id <= :last_id AND at >= :since AND at < :until
               AND target_id NOT LIKE 'fee/%' AND target_id NOT LIKE 'world/%' AND kind NOT IN ('hold', 'refund')
             ORDER BY id LIMIT :limit_count)) AS t
 ORDER BY t.id, t.key, t.leg LIMIT :limit_count;

-- name: list_account_sums
-- What a person's accounts stood at when a period began and ended: what they stand at now, less what came since.
-- Each side of each transfer once: a hold and a refund have both of theirs under the source.
WITH sides AS (
    SELECT source_id AS id, -amount AS delta, at FROM ledger_transfers
     WHERE source_id = ANY(:ids::text[]) AND id > :after_id AND at >= :since
       AND source_id NOT LIKE 'fee/%' AND source_id NOT LIKE 'world/%'
    UNION ALL
    SELECT target_id, amount, at FROM ledger_transfers
     WHERE source_id = ANY(:ids::text[]) AND id > :after_id AND at >= :since AND kind IN ('hold', 'refund')
       AND source_id NOT LIKE 'fee/%' AND source_id NOT LIKE 'world/%'
    UNION ALL
    SELECT target_id, amount, at FROM ledger_transfers
     WHERE target_id = ANY(:ids::text[]) AND id > :after_id AND at >= :since
       AND target_id NOT LIKE 'fee/%' AND target_id NOT LIKE 'world/%' AND kind NOT IN ('hold', 'refund'))
SELECT a.kind::text AS kind, (a.balance - coalesce(sum(s.delta), 0))::bigint AS opening,
       (a.balance - coalesce(sum(s.delta) FILTER (WHERE s.at >= :until), 0))::bigint AS closing
  FROM ledger_accounts a LEFT JOIN sides s ON s.id = a.id
 WHERE a.id = ANY(:ids::text[]) GROUP BY a.id, a.kind, a.balance ORDER BY a.kind;

-- name: list_job_lines
-- A range of the primary key: what belongs to a job begins with its id and a slash, and the zero follows the slash.
SELECT id, at, kind::text AS kind, source_id, target_id, amount, job_id, attempt_id, payout_id, top_up_id
  FROM ledger_transfers
 WHERE key > :job_id::uuid::text || '/' AND key < :job_id::uuid::text || '0' AND id > :after_id
 ORDER BY id LIMIT :limit_count;

-- name: list_job_routes
SELECT kind::text AS kind, split_part(source_id, '/', 1) AS source, split_part(target_id, '/', 1) AS target,
       sum(amount)::bigint AS amount
  FROM ledger_transfers WHERE key > :job_id::uuid::text || '/' AND key < :job_id::uuid::text || '0'
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- name: list_job_charges
-- Through attempts_number_unique.
SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.slot, a.state, a.cause, a.leased_at, a.started_at,
       a.finished_at, a.expires_at, a.run_seconds, j.wall_seconds, a.rate_microcredits_per_hour,
       a.slice_price_microcredits, a.rate_card_version, a.charged_microcredits, a.fee_microcredits, a.earning_state,
       coalesce(a.pay_waits_since, a.release_at) AS release_at, a.checkpoint_seconds, a.saved_seconds, d.state AS dispute_state, d.reason AS dispute_reason,
       d.note AS dispute_note
  FROM attempts a JOIN jobs j ON j.id = a.job_id
  LEFT JOIN LATERAL (SELECT state, reason, note FROM disputes WHERE attempt_id = a.id ORDER BY opened_at DESC LIMIT 1)
       AS d ON true
 WHERE a.job_id = :job_id AND (a.slice_index, a.number) > (:after_slice_index::integer, :after_number::integer)
 ORDER BY a.slice_index, a.number LIMIT :limit_count;

-- name: list_node_charges
-- Those that ended within a period, through attempts_node_end_idx.
SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.slot, a.state, a.cause, a.leased_at, a.started_at,
       a.finished_at, a.expires_at, a.run_seconds, j.wall_seconds, a.rate_microcredits_per_hour,
       a.slice_price_microcredits, a.rate_card_version, a.charged_microcredits, a.fee_microcredits, a.earning_state,
       coalesce(a.pay_waits_since, a.release_at) AS release_at, a.checkpoint_seconds, a.saved_seconds, d.state AS dispute_state, d.reason AS dispute_reason,
       d.note AS dispute_note
  FROM attempts a JOIN jobs j ON j.id = a.job_id
  LEFT JOIN LATERAL (SELECT state, reason, note FROM disputes WHERE attempt_id = a.id ORDER BY opened_at DESC LIMIT 1)
       AS d ON true
 WHERE a.node_id = :node_id AND a.finished_at IS NOT NULL AND a.finished_at >= :after_at AND a.finished_at < :until
   AND (a.finished_at, a.id) > (:after_at::timestamptz, :after_id::uuid)
 ORDER BY a.finished_at, a.id LIMIT :limit_count;

-- name: list_node_sums
SELECT earning_state, count(*) AS attempt_count, coalesce(sum(charged_microcredits), 0)::bigint AS charged,
       coalesce(sum(fee_microcredits), 0)::bigint AS fee
  FROM attempts
 WHERE node_id = :node_id AND finished_at IS NOT NULL AND finished_at >= :since AND finished_at < :until
 GROUP BY earning_state ORDER BY earning_state;
