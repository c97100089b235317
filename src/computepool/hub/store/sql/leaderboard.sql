-- name: list_counted
SELECT day, counted_at FROM owner_days_counted WHERE day >= :since::date;

-- name: try_lock$
-- One hub counts at a time. Let go of at the end of the transaction.
SELECT pg_try_advisory_xact_lock(7305808869231649612);

-- name: delete_day!
DELETE FROM owner_days WHERE day = :day::date;

-- name: count_day!
-- What each owner's machines did for others on a day (UTC). Through attempts_node_end_idx of nodes that were heard of
-- since it began. Deals between linked accounts are left out, as in the price index.
WITH links AS (SELECT * FROM unnest(:linked_ids::uuid[], :group_ids::uuid[]) AS l (account_id, group_id)),
done AS (
    SELECT n.account_id, a.charged_microcredits, a.fee_microcredits, a.rate_microcredits_per_hour, r.state AS receipt,
           a.state
      FROM nodes n
      JOIN attempts a ON a.node_id = n.id AND a.finished_at >= :day::date::timestamp AT TIME ZONE 'UTC'
                     AND a.finished_at < (:day::date + 1)::timestamp AT TIME ZONE 'UTC'
      JOIN jobs j ON j.id = a.job_id
      LEFT JOIN receipts r ON r.id = a.receipt_id
      LEFT JOIN links own ON own.account_id = n.account_id
      LEFT JOIN links its ON its.account_id = j.account_id
     WHERE n.last_seen_at >= :day::date::timestamp AT TIME ZONE 'UTC'
       AND coalesce(own.group_id, n.account_id) <> coalesce(its.group_id, j.account_id)
       AND a.charged_microcredits > 0 AND a.rate_microcredits_per_hour > 0 AND a.earning_state <> 'reversed')
INSERT INTO owner_days (day, account_id, earned_microcredits, seconds, verified_count)
SELECT :day::date, account_id, sum(charged_microcredits - fee_microcredits)::bigint,
       sum((charged_microcredits * 3600 + rate_microcredits_per_hour - 1) / rate_microcredits_per_hour)::bigint,
       count(*) FILTER (WHERE receipt = 'verified' AND state = 'succeeded')::integer
  FROM done GROUP BY account_id;

-- name: set_counted!
INSERT INTO owner_days_counted (day, counted_at) VALUES (:day::date, :counted_at)
ON CONFLICT (day) DO UPDATE SET counted_at = excluded.counted_at;

-- name: list_leaders
-- Those who let themselves be listed and are in good standing, largest sum first.
SELECT d.account_id, p.pseudonym,
       sum(CASE :measure::text WHEN 'earned' THEN d.earned_microcredits WHEN 'hours' THEN d.seconds
                               ELSE d.verified_count END)::bigint AS value
  FROM owner_days d JOIN accounts a ON a.id = d.account_id LEFT JOIN profiles p ON p.account_id = d.account_id
 WHERE d.day >= :since::date AND a.suspended_at IS NULL AND coalesce(p.on_leaderboard, true)
 GROUP BY d.account_id, p.pseudonym
HAVING sum(CASE :measure::text WHEN 'earned' THEN d.earned_microcredits WHEN 'hours' THEN d.seconds
                               ELSE d.verified_count END) > 0
 ORDER BY value DESC, d.account_id LIMIT :limit_count;

-- name: list_evidence
-- Of owners who have worked for others since a day and let themselves be listed: how their nodes end what they take.
SELECT n.account_id, p.pseudonym, sum(r.finished) AS finished, sum(r.failed) AS failed, max(r.counted_at) AS counted_at
  FROM (SELECT DISTINCT account_id FROM owner_days WHERE day >= :since::date) AS d
  JOIN accounts a ON a.id = d.account_id
  JOIN nodes n ON n.account_id = d.account_id
  JOIN reliabilities r ON r.node_id = n.id
  LEFT JOIN profiles p ON p.account_id = d.account_id
 WHERE a.suspended_at IS NULL AND coalesce(p.on_leaderboard, true)
 GROUP BY n.account_id, p.pseudonym LIMIT :limit_count;

-- name: find_counted_at$
SELECT max(counted_at) FROM owner_days_counted;
