-- name: take_due
-- Earnings whose holdback is over, oldest first, through attempts_release_idx. A receipt that nobody has looked at yet
-- is waited for, and so are a check of the result and a trial: all for a moment. What waits for its node may wait for weeks: it is
-- taken with where the node stands, and put off, so that it is not read again with every look. A receipt that does not
-- hold is passed over where the operator has dismissed that. SKIP LOCKED: another hub is releasing some of them.
SELECT a.id, a.job_id, j.account_id AS submitter_id, n.account_id AS owner_id, a.release_at, a.earning_state,
       a.charged_microcredits - a.fee_microcredits AS owner_microcredits, a.fee_microcredits,
       coalesce(r.state = 'refused', false) AND NOT EXISTS (
           SELECT FROM disputes d WHERE d.attempt_id = a.id AND d.origin = 'receipt' AND d.state = 'dismissed')
           AS receipt_refused,
       coalesce(a.finished_at, a.leased_at) AS earned_at,
       j.verify IS NOT NULL OR j.checks_attempt_id IS NOT NULL AS is_checked,
       a.slice_index, a.state = 'failed' AND k.attempt_id IS NOT NULL AS is_saved,
       t.right_weight, t.wrong_weight, t.validated_count, t.counted_at, t.standing, t.since, t.wrong_at,
       t.bugged_count, t.returning_left, t.is_vouched, t.serving_since
  FROM attempts a
  JOIN jobs j ON j.id = a.job_id
  JOIN nodes n ON n.id = a.node_id
  LEFT JOIN node_trust t ON t.node_id = a.node_id
  LEFT JOIN attempt_checkpoints k ON k.attempt_id = a.id
  LEFT JOIN receipts r ON r.id = a.receipt_id
 WHERE a.earning_state = 'pending' AND a.release_at <= :now::timestamptz
   AND (a.receipt_id IS NULL OR r.state <> 'unverified')
   AND NOT EXISTS (SELECT 1 FROM checks c WHERE c.attempt_id = a.id AND c.state <> 'closed')
   AND NOT EXISTS (SELECT 1 FROM trials r WHERE r.job_id = a.job_id AND r.closed_at IS NULL)
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

-- name: put_off!
-- The caller has locked them.
UPDATE attempts SET pay_waits_since = coalesce(pay_waits_since, release_at), release_at = p.look_at
  FROM unnest(:ids::uuid[], :look_at::timestamptz[]) AS p (id, look_at) WHERE attempts.id = p.id;

-- name: take_up!
-- The wait of a node's pay is over; through attempts_waiting_pay_idx. It waits for nobody: what somebody else holds, or is
-- putting off at this moment, is looked at again within a day.
WITH waiting AS (
    SELECT id FROM attempts WHERE node_id = :node_id AND earning_state = 'pending' AND pay_waits_since IS NOT NULL
     ORDER BY id LIMIT :limit_count FOR NO KEY UPDATE SKIP LOCKED)
UPDATE attempts SET release_at = pay_waits_since, pay_waits_since = NULL
  FROM waiting WHERE attempts.id = waiting.id;

-- name: sum_waiting^
-- Of a node, through attempts_waiting_pay_idx.
SELECT count(*) AS count, coalesce(sum(charged_microcredits - fee_microcredits), 0)::bigint AS microcredits
  FROM attempts WHERE node_id = :node_id AND earning_state = 'pending' AND pay_waits_since IS NOT NULL;

-- name: list_debtors
-- Who owes and has something, through the primary key: names of accounts begin with their kind and a slash, and the
-- zero follows the slash.
SELECT r.account_id FROM ledger_accounts r
 WHERE r.id > 'receivable/' AND r.id < 'receivable0' AND r.balance < 0 AND EXISTS (
       SELECT 1 FROM ledger_accounts a
        WHERE a.id IN ('submitter_available/' || r.account_id, 'owner_available/' || r.account_id) AND a.balance > 0)
 ORDER BY r.id LIMIT :limit_count;

-- name: take_superseded
-- Attempts whose slice another one delivered, and whose time nobody has looked at, through attempts_superseded_idx; only
-- where the pay for what was delivered is free or was taken back: until then its fee may have to go back too. Locked with
-- the one that delivered, so that two of a slice never draw on its fee at once.
SELECT a.id AS attempt_id, a.job_id, a.slice_index, n.account_id AS owner_id, j.account_id AS submitter_id, a.leased_at,
       a.started_at, a.finished_at, j.wall_seconds, a.rate_microcredits_per_hour, a.slice_price_microcredits,
       coalesce(a.fee_ppm, 0) AS fee_ppm,
       coalesce(a.charged_microcredits, 0) - coalesce(a.fee_microcredits, 0) AS earned_microcredits,
       m.account_id AS delivered_by,
       CASE WHEN d.earning_state = 'released' THEN coalesce(d.fee_microcredits, 0) ELSE 0 END - (
           SELECT coalesce(sum(o.made_good_microcredits), 0)::bigint FROM attempts o
            WHERE o.job_id = a.job_id AND o.slice_index = a.slice_index) AS fee_microcredits
  FROM attempts a
  JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
  JOIN attempts d ON d.id = s.accepted_attempt_id
  JOIN jobs j ON j.id = a.job_id
  JOIN nodes n ON n.id = a.node_id
  JOIN nodes m ON m.id = d.node_id
 WHERE a.cause = 'superseded' AND a.made_good_microcredits IS NULL AND s.state = 'succeeded'
   AND (d.earning_state IS NULL OR d.earning_state IN ('released', 'reversed'))
 ORDER BY a.finished_at LIMIT :limit_count FOR NO KEY UPDATE OF a, d SKIP LOCKED;

-- name: set_made_good!
-- The caller has locked them.
UPDATE attempts SET made_good_microcredits = m.microcredits
  FROM unnest(:ids::uuid[], :microcredits::bigint[]) AS m (id, microcredits) WHERE attempts.id = m.id;
