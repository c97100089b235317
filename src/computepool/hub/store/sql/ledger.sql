-- name: post_all^
-- Many postings in one statement, if all of them can be made: no key was used before, and every balance is within what
-- they need, taken in their order (`at_least`, `at_most`). Otherwise nothing is written, and what must be known to
-- judge them one by one is returned, locked.
-- Locks: jobs, then accounts, each in order of id, so that hubs never wait for each other in a circle. An account that
-- is not there yet cannot be locked in its turn: then none is, and the caller opens it first.
-- What is moved follows from what was really written: a twin that was committed while this one waited moves nothing.
-- New figures are made of the locked ones: those that the statement's own snapshot shows may be older, and the CHECKs
-- would be asked about them first. `= ANY` keeps to the primary keys, however small the tables were when the plan was
-- made.
WITH accounts_wanted AS MATERIALIZED (
    SELECT * FROM unnest(:account_ids::text::text[], :at_least::text::bigint[], :at_most::text::bigint[])
        AS w (id, at_least, at_most)),
jobs_wanted AS MATERIALIZED (
    SELECT * FROM unnest(:job_ids::text::uuid[], :held_at_least::text::bigint[]) AS w (id, at_least)),
legs AS MATERIALIZED (
    SELECT * FROM unnest(:keys::text::text[], :legs::text::smallint[], :kinds::text::ledger_transfer_kind[],
                         :source_ids::text::text[], :target_ids::text::text[], :amounts::text::bigint[],
                         :leg_job_ids::text::uuid[], :attempt_ids::text::uuid[], :payout_ids::text::uuid[],
                         :top_up_ids::text::uuid[])
        AS l (key, leg, kind, source_id, target_id, amount, job_id, attempt_id, payout_id, top_up_id)),
jobs_locked AS (
    SELECT id, held_remaining FROM jobs
     WHERE id = ANY(ARRAY(SELECT id FROM jobs_wanted)) ORDER BY id FOR UPDATE),
accounts_locked AS (
    SELECT id, balance FROM ledger_accounts
     WHERE id = ANY(ARRAY(SELECT id FROM accounts_wanted))
       AND (SELECT count(*) FROM jobs_locked) >= 0
       AND (SELECT count(*) FROM ledger_accounts WHERE id = ANY(ARRAY(SELECT id FROM accounts_wanted)))
           = (SELECT count(*) FROM accounts_wanted)
     ORDER BY id FOR UPDATE),
verdict AS MATERIALIZED (
    SELECT :may_write::boolean
       AND NOT EXISTS (SELECT FROM ledger_transfers WHERE key = ANY(ARRAY(SELECT key FROM legs)))
       AND (SELECT bool_and(a.id IS NOT NULL AND a.balance BETWEEN w.at_least AND w.at_most)
              FROM accounts_wanted w LEFT JOIN accounts_locked a ON a.id = w.id)
       AND (SELECT coalesce(bool_and(j.id IS NOT NULL AND j.held_remaining >= w.at_least), true)
              FROM jobs_wanted w LEFT JOIN jobs_locked j ON j.id = w.id) AS fits),
posted AS (
    INSERT INTO ledger_transfers (key, leg, kind, source_id, target_id, amount, at, job_id, attempt_id, payout_id,
                                  top_up_id)
    SELECT key, leg, kind, source_id, target_id, amount, coalesce(:at::timestamptz, now()), job_id, attempt_id,
           payout_id, top_up_id
      FROM legs WHERE (SELECT fits FROM verdict) ORDER BY key COLLATE "C", leg
    ON CONFLICT DO NOTHING RETURNING key, source_id, target_id, amount, job_id),
accounts_moved AS (
    UPDATE ledger_accounts SET balance = after.balance
      FROM (SELECT id, sum(delta)::bigint AS balance
              FROM (SELECT id, balance AS delta FROM accounts_locked
                    UNION ALL SELECT source_id, -amount FROM posted
                    UNION ALL SELECT target_id, amount FROM posted) AS side
             GROUP BY id HAVING count(*) > 1) AS after
     WHERE ledger_accounts.id = after.id AND ledger_accounts.id = ANY(ARRAY(SELECT id FROM accounts_wanted))),
jobs_moved AS (
    UPDATE jobs SET held_remaining = after.held_remaining
      FROM (SELECT id, sum(delta)::bigint AS held_remaining
              FROM (SELECT id, held_remaining AS delta FROM jobs_locked
                    UNION ALL SELECT job_id, -amount FROM posted WHERE starts_with(source_id, 'submitter_held/')
                    UNION ALL SELECT job_id, amount FROM posted WHERE starts_with(target_id, 'submitter_held/')) AS side
             GROUP BY id HAVING count(*) > 1) AS after
     WHERE jobs.id = after.id AND jobs.id = ANY(ARRAY(SELECT id FROM jobs_wanted)))
SELECT verdict.fits,
       CASE WHEN NOT verdict.fits THEN (SELECT json_object_agg(id, balance)::text FROM accounts_locked) END AS balances,
       CASE WHEN NOT verdict.fits THEN (SELECT json_object_agg(id, held_remaining)::text FROM jobs_locked) END AS held,
       CASE WHEN verdict.fits AND (SELECT count(*) FROM posted) < (SELECT count(*) FROM legs)
            THEN (SELECT array_agg(key) FROM posted) END AS posted_keys
  FROM verdict;

-- name: post_at_once$
-- Postings that can be made, as far as anybody knows: the database has the last word. Their keys are new, or a unique
-- index refuses them; balances suffice, or their CHECK refuses them; and whoever counts fewer accounts than were to be
-- moved takes all of it back. Accounts are locked in order, whatever the plan, and balances made of the locked ones.
WITH posted AS (
    INSERT INTO ledger_transfers (key, leg, kind, source_id, target_id, amount, job_id, attempt_id)
    SELECT * FROM unnest(:keys::text::text[], :legs::text::smallint[], :kinds::text::ledger_transfer_kind[],
                         :source_ids::text::text[], :target_ids::text::text[], :amounts::text::bigint[],
                         :job_ids::text::uuid[], :attempt_ids::text::uuid[])),
locked AS (
    SELECT id, balance FROM ledger_accounts WHERE id = ANY(:account_ids::text::text[]) ORDER BY id FOR UPDATE),
moved AS (
    UPDATE ledger_accounts SET balance = after.balance
      FROM (SELECT id, sum(delta)::bigint AS balance
              FROM (SELECT id, balance AS delta FROM locked
                    UNION ALL SELECT * FROM unnest(:account_ids::text::text[], :deltas::text::bigint[])) AS side
             GROUP BY id) AS after
     WHERE ledger_accounts.id = after.id AND ledger_accounts.id = ANY(:account_ids::text::text[]) RETURNING 1)
SELECT count(*) FROM moved;

-- name: open_accounts!
-- In order, like locks; waits for a hub that opens one of them at this moment.
INSERT INTO ledger_accounts (id, kind, account_id, shard)
SELECT * FROM unnest(:ids::text::text[], :kinds::text::ledger_account_kind[], :owner_ids::text::uuid[],
                     :shards::text::smallint[]) AS a (id, kind, account_id, shard)
 ORDER BY a.id COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: lock_accounts
-- All or none: one that is not there cannot be locked in its turn.
SELECT id, balance FROM ledger_accounts
 WHERE id = ANY(:ids::text::text[])
   AND (SELECT count(*) FROM ledger_accounts WHERE id = ANY(:ids::text::text[])) = cardinality(:ids::text::text[])
 ORDER BY id FOR UPDATE;

-- name: list_balances
SELECT id, balance FROM ledger_accounts WHERE id = ANY(:ids::text[]);

-- name: list_all_balances
-- In order of id, so that a large ledger can be read page by page.
SELECT id, balance FROM ledger_accounts WHERE id > :after ORDER BY id LIMIT :limit_count;

-- name: list_by_keys
SELECT * FROM ledger_transfers WHERE key = ANY(:keys::text[]) ORDER BY key, leg;

-- name: list_by_job
-- A range of the primary key: what belongs to a job begins with its id and a slash, and the zero follows the slash.
SELECT * FROM ledger_transfers
 WHERE key > :job_id::uuid::text || '/' AND key < :job_id::uuid::text || '0'
 ORDER BY id LIMIT :limit_count;

-- name: list_by_accounts
-- Newest first, of all accounts of one person. The conditions are those of the two partial indexes, word for word.
SELECT DISTINCT t.*
  FROM unnest(:ids::text[]) AS a (id), LATERAL (
           (SELECT * FROM ledger_transfers
             WHERE source_id = a.id AND (:before_id::bigint IS NULL OR id < :before_id)
               AND source_id NOT LIKE 'fee/%' AND source_id NOT LIKE 'world/%'
             ORDER BY id DESC LIMIT :limit_count)
           UNION ALL
           (SELECT * FROM ledger_transfers
             WHERE target_id = a.id AND (:before_id::bigint IS NULL OR id < :before_id)
               AND target_id NOT LIKE 'fee/%' AND target_id NOT LIKE 'world/%' AND kind NOT IN ('hold', 'refund')
             ORDER BY id DESC LIMIT :limit_count)) AS t
 ORDER BY t.id DESC LIMIT :limit_count;

-- name: sum_sides
-- Of every account and every hold. Reads every transfer.
SELECT name, sum(delta)::bigint AS amount FROM ledger_sides GROUP BY name ORDER BY name;

-- name: list_drifts
-- Whatever does not add up, in one statement, so that it is true while others go on writing. Counts the transfers after
-- an id, on top of the sums up to there (`with_sums`). Finished jobs hold nothing, says jobs_finished_hold_check; the
-- others are found through jobs_open_idx.
WITH counted AS (
    SELECT name, sum(delta)::bigint AS amount
      FROM (SELECT name, amount AS delta FROM book_sums WHERE :with_sums::boolean
            UNION ALL SELECT name, delta FROM ledger_sides WHERE id > :after_id) AS side GROUP BY name),
open_jobs AS MATERIALIZED (SELECT id, account_id, held_remaining FROM jobs WHERE finished_at IS NULL),
kept AS (
    SELECT id AS name, balance AS amount FROM ledger_accounts
    UNION ALL SELECT ('job/' || id::text) COLLATE "C", held_remaining FROM open_jobs),
drifts AS (
    SELECT CASE WHEN starts_with(name, 'job/') THEN 'hold of job ' || substr(name, 5) ELSE 'account ' || name END AS name,
           coalesce(k.amount, 0) AS kept, coalesce(c.amount, 0) AS counted
      FROM kept k FULL JOIN counted c USING (name)
    UNION ALL
    SELECT 'holds of account ' || coalesce(j.account_id, a.account_id), coalesce(a.balance, 0), coalesce(j.held, 0)
      FROM (SELECT account_id, balance FROM ledger_accounts WHERE kind = 'submitter_held') AS a
      FULL JOIN (SELECT account_id, sum(held_remaining)::bigint AS held FROM open_jobs GROUP BY account_id) AS j
        ON j.account_id = a.account_id
    UNION ALL
    SELECT 'sum of all accounts', coalesce(sum(balance), 0)::bigint, 0 FROM ledger_accounts)
SELECT name, kept, counted FROM drifts WHERE kept <> counted ORDER BY name LIMIT :limit_count;
