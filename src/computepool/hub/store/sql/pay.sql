-- name: list_pay
-- Why was this node paid what it was paid on a day: its attempts, with all that their pay follows from and what the
-- ledger has moved for them. An attempt counts on the day it ended, one that runs on the day it was leased.
-- Through attempts_node_end_idx and attempts_live_slot_idx; transfers by ranges of their keys: what settles attempts of a
-- job begins with <job>/settle/, and a settlement for several attempts has the first one's name and no attempt_id. So
-- an attempt's own postings are summed if there are any, and all of its job and owner are, against the rows.
WITH picked AS MATERIALIZED (
    (SELECT id, finished_at AS counted_at FROM attempts
      WHERE node_id = :node_id AND finished_at IS NOT NULL AND finished_at >= :after_at AND finished_at < :until
        AND (finished_at, id) > (:after_at::timestamptz, :after_id::uuid)
      ORDER BY finished_at, id LIMIT :limit_count)
    UNION ALL
    (SELECT id, leased_at FROM attempts
      WHERE node_id = :node_id AND state IN ('leased', 'running') AND leased_at < :until
        AND (leased_at, id) > (:after_at::timestamptz, :after_id::uuid))
    ORDER BY counted_at, id LIMIT :limit_count),
looked AS MATERIALIZED (
    SELECT a.id, a.job_id, a.slice_index, a.number, a.slot, a.state, a.cause, a.leased_at, a.started_at, a.finished_at,
           a.expires_at, a.run_seconds, a.rate_microcredits_per_hour, a.slice_price_microcredits, a.rate_card_version,
           a.fee_ppm, a.charged_microcredits, a.fee_microcredits, a.earning_state,
           coalesce(a.pay_waits_since, a.release_at) AS release_at, a.checkpoint_seconds,
           a.saved_seconds, a.made_good_microcredits, n.account_id AS owner_id,
           j.account_id AS submitter_id, j.wall_seconds, p.counted_at,
           j.verify IS NOT NULL OR j.checks_attempt_id IS NOT NULL AS is_checked,
           a.state = 'failed' AND EXISTS (SELECT FROM attempt_checkpoints k WHERE k.attempt_id = a.id) AS is_saved
      FROM picked p JOIN attempts a ON a.id = p.id JOIN nodes n ON n.id = a.node_id JOIN jobs j ON j.id = a.job_id),
jobs_looked AS MATERIALIZED (
    SELECT DISTINCT job_id, owner_id FROM looked WHERE owner_id <> submitter_id AND finished_at IS NOT NULL),
earned AS (
    SELECT l.job_id, sum(a.charged_microcredits - a.fee_microcredits)::bigint AS microcredits
      FROM jobs_looked l JOIN attempts a ON a.job_id = l.job_id
      JOIN nodes n ON n.id = a.node_id AND n.account_id = l.owner_id
     WHERE a.charged_microcredits > 0 GROUP BY l.job_id),
settled AS (
    SELECT l.job_id, sum(t.amount)::bigint AS microcredits
      FROM jobs_looked l, LATERAL (
               SELECT amount FROM ledger_transfers
                WHERE key > l.job_id::text || '/settle/' AND key < l.job_id::text || '/settle0'
                  AND target_id = 'owner_pending/' || l.owner_id::text) AS t GROUP BY l.job_id)
SELECT looked.*, own.microcredits AS own_microcredits, coalesce(earned.microcredits, 0) AS job_earned_microcredits,
       coalesce(settled.microcredits, 0) AS job_settled_microcredits,
       coalesce(taken.microcredits, 0) AS reversed_microcredits,
       (SELECT coalesce(sum(amount), 0)::bigint FROM ledger_transfers WHERE key = looked.id::text || '/make_good')
           AS out_of_fee_microcredits, d.state AS dispute_state, d.reason AS dispute_reason,
       d.note AS dispute_note
  FROM looked
  LEFT JOIN earned ON earned.job_id = looked.job_id
  LEFT JOIN settled ON settled.job_id = looked.job_id
  LEFT JOIN LATERAL (
      SELECT sum(amount)::bigint AS microcredits FROM ledger_transfers
       WHERE key > looked.job_id::text || '/settle/' || looked.id::text || '/'
         AND key < looked.job_id::text || '/settle/' || looked.id::text || '0'
         AND attempt_id = looked.id AND target_id = 'owner_pending/' || looked.owner_id::text) AS own ON true
  LEFT JOIN LATERAL (
      SELECT sum(amount)::bigint AS microcredits FROM ledger_transfers
       WHERE key = looked.job_id::text || '/reverse/' || looked.id::text AND NOT starts_with(source_id, 'fee/'))
      AS taken ON true
  LEFT JOIN LATERAL (
      SELECT state, reason, note FROM disputes WHERE attempt_id = looked.id ORDER BY opened_at DESC LIMIT 1) AS d ON true
 ORDER BY looked.counted_at, looked.id;
