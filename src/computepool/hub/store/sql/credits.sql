-- name: take_due
-- Earnings whose holdback is over, oldest first, through attempts_release_idx. A receipt that nobody has looked at yet
-- is waited for; one that does not hold is passed over where the operator has dismissed that. SKIP LOCKED: another hub
-- is releasing some of them.
SELECT a.id, a.job_id, j.account_id AS submitter_id, n.account_id AS owner_id, a.release_at, a.earning_state,
       a.charged_microcredits - a.fee_microcredits AS owner_microcredits, a.fee_microcredits,
       coalesce(r.state = 'refused', false) AND NOT EXISTS (
           SELECT FROM disputes d WHERE d.attempt_id = a.id AND d.origin = 'receipt' AND d.state = 'dismissed')
           AS receipt_refused
  FROM attempts a
  JOIN jobs j ON j.id = a.job_id
  JOIN nodes n ON n.id = a.node_id
  LEFT JOIN receipts r ON r.id = a.receipt_id
 WHERE a.earning_state = 'pending' AND a.release_at <= :now::timestamptz
   AND (a.receipt_id IS NULL OR r.state <> 'unverified')
 ORDER BY a.release_at LIMIT :limit_count FOR NO KEY UPDATE OF a SKIP LOCKED;

-- name: lock_earning^
-- Nobody releases or takes back what somebody else is deciding on. Nothing where nothing was charged.
SELECT a.id, a.job_id, j.account_id AS submitter_id, n.account_id AS owner_id, a.release_at, a.earning_state,
       a.charged_microcredits - a.fee_microcredits AS owner_microcredits, a.fee_microcredits
  FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN nodes n ON n.id = a.node_id
 WHERE a.id = :attempt_id AND a.earning_state IS NOT NULL FOR NO KEY UPDATE OF a;

-- name: change_earnings!
-- The caller has locked them.
UPDATE attempts SET earning_state = :state::earning_state WHERE id = ANY(:ids::uuid[]);

-- name: list_debtors
-- Who owes and has something, through the primary key: names of accounts begin with their kind and a slash, and the
-- zero follows the slash.
SELECT r.account_id FROM ledger_accounts r
 WHERE r.id > 'receivable/' AND r.id < 'receivable0' AND r.balance < 0 AND EXISTS (
       SELECT 1 FROM ledger_accounts a
        WHERE a.id IN ('submitter_available/' || r.account_id, 'owner_available/' || r.account_id) AND a.balance > 0)
 ORDER BY r.id LIMIT :limit_count;
