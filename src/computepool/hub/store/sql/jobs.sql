-- name: insert_jobs
-- Many submits in one statement, which is a transaction by itself: keys, jobs, all their slices, and the first
-- attempts of those that found a slot on the way ("born leased"). A job of 100,000 slices travels as one small row.
-- A key that was used before keeps its job out; the insert waits for a twin that is being written at this moment,
-- and keys are taken in order, so that two hubs never wait for each other in a circle. A slot that another hub has
-- just filled is passed over by the unique index, and its slice is queued instead.
-- What the jobs hold is taken from their accounts last and in order, so that whoever waits for an account waits for
-- nothing else; the counts force that, because left to itself the server does what stands last first. A balance that does not suffice is refused by its CHECK, an account that was never opened is a null side
-- of a transfer, and either way nothing of this is written: the caller then finds out whom it was about.
WITH wanted AS (
    SELECT * FROM unnest(:ids::text::uuid[], :account_ids::text::uuid[], :names::text::text[], :specs::text::text[], :shape_ids::text::integer[],
                         :priorities::text::smallint[], :priority_classes::text::priority_class[], :prefers::text::preference[],
                         :weight_sets::text::text[], :slice_counts::text::integer[], :retries::text::smallint[],
                         :wall_seconds::text::integer[], :deadlines::text::timestamptz[], :expires_at::text::timestamptz[],
                         :keys::text::text[], :request_sha256s::text::bytea[], :reserves::text::bigint[],
                         :slice_bases::text::bigint[], :verifies::text::verify_mode[])
        AS w (id, account_id, name, spec, shape_id, priority, priority_class, prefer, weight_set, slice_count, retries,
              wall_seconds, deadline_at, expires_at, key, request_sha256, reserve, slice_base, verify)),
keyed AS (
    INSERT INTO idempotency (account_id, key, request_sha256, job_id)
    SELECT account_id, key, request_sha256, id FROM wanted WHERE key IS NOT NULL ORDER BY account_id, key, id
    ON CONFLICT DO NOTHING RETURNING job_id),
fresh AS (SELECT * FROM wanted WHERE key IS NULL OR id IN (SELECT job_id FROM keyed)),
born AS (
    INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, expected_seconds, expires_at,
                          rate_microcredits_per_hour, slice_price_microcredits, rate_card_version, fee_ppm,
                          holdback_seconds, pooled)
    SELECT b.id, b.job_id, b.slice_index, 1, b.node_id, b.slot, b.expected_seconds,
           clock_timestamp() + :lease_seconds::double precision * interval '1 second',
           b.rate, b.slice_price, :rate_card_version::text, b.fee_ppm, b.holdback_seconds,
           coalesce(b.pooled, false)
      FROM unnest(:attempt_ids::text::uuid[], :attempt_job_ids::text::uuid[], :attempt_slice_indexes::text::integer[],
                  :node_ids::text::uuid[], :slots::text::text[], :expected_seconds::text::double precision[],
                  :rates::text::bigint[], :slice_prices::text::bigint[], :pooled::text::boolean[],
                  :fee_ppms::text::integer[], :holdbacks::text::integer[])
           AS b (id, job_id, slice_index, node_id, slot, expected_seconds, rate, slice_price, pooled, fee_ppm,
                 holdback_seconds)
     WHERE b.job_id IN (SELECT id FROM fresh)
     ORDER BY b.node_id, b.slot
    ON CONFLICT DO NOTHING RETURNING id, job_id, slice_index),
new AS (
    INSERT INTO jobs (id, account_id, name, spec, shape_id, priority, priority_class, prefer, weight_set, slice_count,
                      retries, wall_seconds, deadline_at, expires_at, state, started_at, reserve_microcredits,
                      held_remaining, slice_base_microcredits, verify)
    SELECT f.id, f.account_id, f.name, f.spec::jsonb, f.shape_id, f.priority, f.priority_class, f.prefer,
           f.weight_set, f.slice_count, f.retries, f.wall_seconds, f.deadline_at, f.expires_at,
           (CASE WHEN b.job_id IS NULL THEN 'queued' ELSE 'running' END)::job_state,
           CASE WHEN b.job_id IS NOT NULL THEN now() END, f.reserve, f.reserve * f.slice_count, f.slice_base,
           f.verify
      FROM fresh f LEFT JOIN (SELECT DISTINCT job_id FROM born) AS b ON b.job_id = f.id
    RETURNING id, account_id, shape_id, priority, priority_class, slice_count, created_at),
new_slices AS (
    INSERT INTO slices (job_id, slice_index, account_id, shape_id, priority, priority_class, state, attempt_count)
    SELECT new.id, i, new.account_id, new.shape_id, new.priority, new.priority_class,
           (CASE WHEN b.id IS NULL THEN 'queued' ELSE 'leased' END)::slice_state,
           CASE WHEN b.id IS NULL THEN 0 ELSE 1 END
      FROM new CROSS JOIN LATERAL generate_series(0, new.slice_count - 1) AS i
      LEFT JOIN born AS b ON b.job_id = new.id AND b.slice_index = i
    RETURNING 1),
recorded AS (
    INSERT INTO events (kind, account_id, job_id, body)
    SELECT 'job_submitted', account_id, id, jsonb_build_object('slices', slice_count) FROM new
    UNION ALL
    SELECT 'slices_leased', new.account_id, new.id, jsonb_build_object(
               'slices', jsonb_agg(jsonb_build_array(born.slice_index, born.slice_index) ORDER BY born.slice_index))
      FROM born JOIN new ON new.id = born.job_id GROUP BY new.account_id, new.id
    RETURNING 1),
held AS (
    INSERT INTO ledger_transfers (key, leg, kind, source_id, target_id, amount, job_id)
    SELECT h.key, 0, 'hold', source.id, target.id, h.amount, h.job_id
      FROM unnest(:hold_keys::text::text[], :hold_job_ids::text::uuid[], :hold_source_ids::text::text[],
                  :hold_target_ids::text::text[], :hold_amounts::text::bigint[])
           AS h (key, job_id, source_id, target_id, amount)
      LEFT JOIN ledger_accounts source ON source.id = h.source_id
      LEFT JOIN ledger_accounts target ON target.id = h.target_id
     WHERE h.job_id IN (SELECT id FROM new)
    RETURNING source_id, target_id, amount),
accounts_locked AS (
    SELECT id, balance FROM ledger_accounts
     WHERE id = ANY(ARRAY(SELECT source_id FROM held UNION ALL SELECT target_id FROM held))
       AND (SELECT count(*) FROM new_slices) + (SELECT count(*) FROM recorded) >= 0
     ORDER BY id FOR UPDATE),
accounts_moved AS (
    UPDATE ledger_accounts SET balance = after.balance
      FROM (SELECT id, sum(delta)::bigint AS balance
              FROM (SELECT id, balance AS delta FROM accounts_locked
                    UNION ALL SELECT source_id, -amount FROM held
                    UNION ALL SELECT target_id, amount FROM held) AS side GROUP BY id) AS after
     WHERE ledger_accounts.id = after.id
       AND ledger_accounts.id = ANY(ARRAY(SELECT source_id FROM held UNION ALL SELECT target_id FROM held)))
SELECT new.id, new.created_at, born.id AS attempt_id FROM new LEFT JOIN born ON born.job_id = new.id;

-- name: find_job^
-- Live attempts are counted through attempts_live_slice_idx; what is neither live nor ended is queued.
SELECT j.*,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'leased') AS leased_count,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'running') AS running_count,
       CASE WHEN j.verify IS NULL THEN 0 ELSE
           (SELECT count(*) FROM slices s WHERE s.job_id = j.id AND s.state = 'verifying') END AS verifying_count,
       (SELECT min(coalesce(a.saved_at, a.started_at, a.leased_at)) FROM attempts a
         WHERE a.job_id = j.id AND a.state IN ('leased', 'running') AND j.run_id IS NULL) AS at_risk_since
  FROM jobs j WHERE j.id = :id;

-- name: list_jobs
-- Newest first: ids are ordered by time. An operator lists all (account_id is null). Runs that check others' results
-- belong to the jobs that they check.
SELECT j.*,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'leased') AS leased_count,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'running') AS running_count,
       CASE WHEN j.verify IS NULL THEN 0 ELSE
           (SELECT count(*) FROM slices s WHERE s.job_id = j.id AND s.state = 'verifying') END AS verifying_count,
       (SELECT min(coalesce(a.saved_at, a.started_at, a.leased_at)) FROM attempts a
         WHERE a.job_id = j.id AND a.state IN ('leased', 'running') AND j.run_id IS NULL) AS at_risk_since
  FROM jobs j
 WHERE (:account_id::uuid IS NULL OR j.account_id = :account_id)
   AND (:before::uuid IS NULL OR j.id < :before) AND j.checks_attempt_id IS NULL
   AND (:state::job_state IS NULL OR j.state = :state::job_state)
   AND (:name::text IS NULL OR strpos(lower(j.name), lower(:name::text)) > 0)
 ORDER BY j.id DESC LIMIT :limit_count;

-- name: list_orders
-- The specification as text: whoever asks reads it into what it is, once.
SELECT j.id, j.account_id, j.spec::text AS spec, j.wall_seconds, j.prefer, j.weight_set, j.run_id, j.slice_base_microcredits,
       j.reserve_microcredits, s.sealed
  FROM jobs j LEFT JOIN job_secrets s ON s.job_id = j.id WHERE j.id = ANY(:ids::uuid[]);

-- name: list_expired
SELECT id FROM jobs WHERE finished_at IS NULL AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT :limit_count;

-- name: list_idempotent
SELECT i.account_id, i.key, i.request_sha256, i.job_id
  FROM idempotency i JOIN unnest(:account_ids::uuid[], :keys::text[]) AS w (account_id, key)
    ON i.account_id = w.account_id AND i.key = w.key;

-- name: find_jobs
SELECT j.*,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'leased') AS leased_count,
       (SELECT count(*) FROM attempts a WHERE a.job_id = j.id AND a.state = 'running') AS running_count,
       CASE WHEN j.verify IS NULL THEN 0 ELSE
           (SELECT count(*) FROM slices s WHERE s.job_id = j.id AND s.state = 'verifying') END AS verifying_count,
       (SELECT min(coalesce(a.saved_at, a.started_at, a.leased_at)) FROM attempts a
         WHERE a.job_id = j.id AND a.state IN ('leased', 'running') AND j.run_id IS NULL) AS at_risk_since
  FROM jobs j WHERE j.id = ANY(:ids::uuid[]);
