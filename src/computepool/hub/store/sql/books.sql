-- name: list_trial
-- What each kind of account gained and lost before a day and during it, by the transfers alone: by those after an id.
SELECT split_part(name, '/', 1) AS kind,
       coalesce(sum(delta) FILTER (WHERE at < :since), 0)::bigint AS opening,
       coalesce(sum(delta) FILTER (WHERE at >= :since AND delta > 0), 0)::bigint AS gained,
       coalesce(-sum(delta) FILTER (WHERE at >= :since AND delta < 0), 0)::bigint AS lost
  FROM ledger_sides WHERE id > :after_id AND at < :until AND NOT starts_with(name, 'job/') GROUP BY 1 ORDER BY 1;

-- name: list_moved
-- Through ledger_transfers_range_idx.
SELECT kind::text AS kind, count(*) AS transfer_count, sum(amount)::bigint AS amount
  FROM ledger_transfers WHERE at >= :since AND at < :until GROUP BY kind ORDER BY kind;

-- name: list_sent_payouts
-- Handed to the provider within a period. None of these columns ever changes once it is sent.
SELECT p.id, p.account_id, p.provider, p.currency, p.amount_minor, p.amount_microcredits, d.region, d.destination,
       p.sent_at
  FROM payouts p JOIN payout_details d ON d.id = p.details_id
 WHERE p.sent_at IS NOT NULL AND p.sent_at >= :since AND p.sent_at < :until ORDER BY p.sent_at, p.id LIMIT :limit_count;

-- name: list_charge_differences
-- Jobs whose attempts were charged something else than the ledger has settled, by owner and for the fee: of all jobs
-- that had an attempt end or a settlement made within a period, over their whole lives. An attempt's end and its
-- settlement are one transaction, so both sides of one statement see both or none.
WITH touched AS MATERIALIZED (
    SELECT job_id FROM ledger_transfers
     WHERE at >= :since AND at < :until AND kind IN ('settle', 'pay_to') AND job_id IS NOT NULL
    UNION
    SELECT a.job_id FROM nodes n, LATERAL (
               SELECT job_id FROM attempts
                WHERE node_id = n.id AND finished_at IS NOT NULL AND finished_at >= :since AND finished_at < :until
                  AND charged_microcredits > 0) AS a),
attempts_charged AS (
    SELECT a.job_id, n.account_id AS owner_id, sum(a.charged_microcredits - a.fee_microcredits) AS earned,
           sum(a.fee_microcredits) AS fee
      FROM touched t JOIN attempts a ON a.job_id = t.job_id JOIN nodes n ON n.id = a.node_id
     WHERE a.charged_microcredits > 0 GROUP BY a.job_id, n.account_id),
charged AS (
    SELECT job_id, 'owner_pending/' || owner_id::text AS party, earned AS amount FROM attempts_charged WHERE earned > 0
    UNION ALL SELECT job_id, 'fee', sum(fee) FROM attempts_charged GROUP BY job_id HAVING sum(fee) > 0),
settled AS (
    SELECT t.job_id, s.party, sum(s.amount) AS amount
      FROM touched t, LATERAL (
               SELECT CASE WHEN starts_with(target_id, 'fee/') THEN 'fee' ELSE target_id END AS party, amount
                 FROM ledger_transfers
                WHERE key > t.job_id::text || '/settle/' AND key < t.job_id::text || '/settle0') AS s
     GROUP BY t.job_id, s.party)
SELECT coalesce(c.job_id, s.job_id) AS job_id, coalesce(c.party, s.party) AS party,
       coalesce(c.amount, 0)::bigint AS charged, coalesce(s.amount, 0)::bigint AS settled
  FROM charged c FULL JOIN settled s ON s.job_id = c.job_id AND s.party = c.party
 WHERE coalesce(c.amount, 0) <> coalesce(s.amount, 0) ORDER BY 1, 2 LIMIT :limit_count;

-- name: insert_closing!
-- The first close of a day stands.
INSERT INTO book_closings (day, closed_by, sha256) VALUES (:day, :closed_by, :sha256) ON CONFLICT (day) DO NOTHING;

-- name: find_closing^
SELECT day, closed_at, closed_by, sha256 FROM book_closings WHERE day = :day;
