-- name: insert_leases
-- Guarded, so that it is safe whether or not its heads were locked before: a slice that is not queued any more, or at
-- which another hub is at this moment, is passed over. Ordered by node and slot; a slot that another hub has just
-- filled is passed over by the unique index, and its slice stays queued. The state is compared as text, or a plan that
-- is kept might go through the index of all that is queued. Only the first lease of a job touches its row, and waits for
-- nobody: rows of other jobs may be locked by then, and whoever has locked it starts it. If they did not in the end, its
-- first result does.
WITH planned AS (
    SELECT * FROM unnest(:ids::text::uuid[], :job_ids::text::uuid[], :slice_indexes::text::integer[], :numbers::text::integer[],
                         :node_ids::text::uuid[], :slots::text::text[], :expected_seconds::text::double precision[],
                         :account_ids::text::uuid[], :rates::text::bigint[], :slice_prices::text::bigint[],
                         :pooled::text::boolean[], :fee_ppms::text::integer[], :holdbacks::text::integer[])
        AS p (id, job_id, slice_index, number, node_id, slot, expected_seconds, account_id, rate, slice_price, pooled,
              fee_ppm, holdback_seconds)),
free AS MATERIALIZED (
    SELECT s.job_id, s.slice_index FROM slices s
      JOIN planned p ON p.job_id = s.job_id AND p.slice_index = s.slice_index AND p.number = s.attempt_count + 1
     WHERE s.state::text = 'queued' FOR UPDATE OF s SKIP LOCKED),
granted AS (
    INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, expected_seconds, expires_at,
                          rate_microcredits_per_hour, slice_price_microcredits, rate_card_version, fee_ppm,
                          holdback_seconds, pooled)
    SELECT p.id, p.job_id, p.slice_index, p.number, p.node_id, p.slot, p.expected_seconds,
           clock_timestamp() + :lease_seconds::double precision * interval '1 second',
           p.rate, p.slice_price, :rate_card_version::text, p.fee_ppm, p.holdback_seconds,
           coalesce(p.pooled, false)
      FROM planned p JOIN free ON free.job_id = p.job_id AND free.slice_index = p.slice_index
     ORDER BY p.node_id, p.slot
    ON CONFLICT DO NOTHING RETURNING id, job_id, slice_index, number),
leased AS (
    UPDATE slices SET state = 'leased', attempt_count = granted.number FROM granted
     WHERE slices.job_id = granted.job_id AND slices.slice_index = granted.slice_index),
starting AS MATERIALIZED (
    SELECT id FROM jobs WHERE id IN (SELECT job_id FROM granted) AND state = 'queued'
       FOR NO KEY UPDATE SKIP LOCKED),
started AS (
    UPDATE jobs SET state = 'running', started_at = clock_timestamp() FROM starting
     WHERE jobs.id = starting.id),
recorded AS (
    INSERT INTO events (kind, account_id, job_id, body)
    SELECT 'slices_leased', p.account_id, g.job_id, jsonb_build_object(
               'slices', jsonb_agg(jsonb_build_array(g.slice_index, g.slice_index) ORDER BY g.slice_index))
      FROM granted g JOIN planned p ON p.id = g.id GROUP BY p.account_id, g.job_id)
SELECT id FROM granted;

-- name: list_live_by_nodes
SELECT id, job_id, slice_index, number, node_id, slot, state FROM attempts
 WHERE node_id = ANY(:node_ids::uuid[]) AND state IN ('leased', 'running');

-- name: list_standing
-- How the attempts that nodes say they run stand here.
SELECT a.id, a.node_id, a.state, a.cause, s.state AS slice_state
  FROM attempts a JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
 WHERE a.id = ANY(:ids::uuid[]);

-- name: lock_attempts_and_jobs
-- Every attempt of the slices that may still matter, in order of id, and then their jobs: the slices are locked
-- already, by a statement before this one, so that attempts made in the meantime are seen.
WITH wanted AS (SELECT * FROM unnest(:job_ids::text::uuid[], :slice_indexes::text::integer[]) AS w (job_id, slice_index)),
locked AS MATERIALIZED (
    SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.slot, a.state, a.cause, a.report_sha256, a.leased_at,
           a.expires_at, a.expected_seconds, a.rate_microcredits_per_hour, a.slice_price_microcredits, a.fee_ppm,
           a.holdback_seconds, a.checkpoint_seconds, a.saved_seconds, n.account_id AS owner_id
      FROM attempts a JOIN wanted w ON w.job_id = a.job_id AND w.slice_index = a.slice_index
      JOIN nodes n ON n.id = a.node_id
     WHERE a.state IN ('leased', 'running') OR a.id = ANY(:ids::text::uuid[])
     ORDER BY a.id FOR UPDATE OF a),
counted AS MATERIALIZED (
    SELECT id, account_id, slice_count, succeeded_count, failed_count, cancelled_count, started_at,
           state AS job_state, run_seconds_sum, wall_seconds, held_remaining, reserve_microcredits,
           charged_microcredits, run_id
      FROM jobs WHERE id IN (SELECT job_id FROM wanted) AND (SELECT count(*) FROM locked) >= 0
     ORDER BY id FOR UPDATE)
SELECT c.id AS counted_job_id, c.account_id, c.slice_count, c.succeeded_count, c.failed_count,
       c.cancelled_count, c.started_at, c.job_state, c.run_seconds_sum, c.wall_seconds, c.held_remaining,
       c.reserve_microcredits, c.charged_microcredits, c.run_id, locked.*, clock_timestamp() AS now
  FROM counted c LEFT JOIN locked ON locked.job_id = c.id;

-- name: apply_changes!
-- Writes what core decided, about attempts, slices and jobs, with its events, at once. What a node said of an
-- attempt's end stands beside it. A slice that goes back to the queue goes to the end of it.
WITH attempts_changed AS (
    UPDATE attempts SET
           state = c.state, cause = c.cause, report_sha256 = coalesce(c.report_sha256, attempts.report_sha256),
           started_at = CASE WHEN c.state = 'running' THEN coalesce(attempts.started_at, clock_timestamp())
                             ELSE attempts.started_at END,
           finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'lost', 'cancelled')
                              THEN :now::timestamptz END,
           exit_code = coalesce(c.exit_code, attempts.exit_code), message = coalesce(c.message, attempts.message),
           run_seconds = coalesce(c.run_seconds, attempts.run_seconds),
           cpu_seconds = coalesce(c.cpu_seconds, attempts.cpu_seconds),
           memory_bytes_peak = coalesce(c.memory_bytes_peak, attempts.memory_bytes_peak),
           outputs = coalesce(c.outputs::jsonb, attempts.outputs),
           result_sha256 = coalesce(c.result_sha256, attempts.result_sha256),
           receipt_id = coalesce(c.receipt_id, attempts.receipt_id),
           charged_microcredits = coalesce(c.charged, attempts.charged_microcredits),
           fee_microcredits = coalesce(c.fee, attempts.fee_microcredits),
           earning_state = CASE WHEN c.charged IS NULL THEN attempts.earning_state ELSE 'pending' END,
           release_at = CASE WHEN c.charged IS NULL THEN attempts.release_at
                             ELSE clock_timestamp() + attempts.holdback_seconds * interval '1 second' END
      FROM unnest(:ids::text::uuid[], :states::text::attempt_state[], :causes::text::failure_cause[], :report_sha256s::text::bytea[],
                  :exit_codes::text::integer[], :messages::text::text[], :run_seconds::text::double precision[],
                  :cpu_seconds::text::double precision[], :memory_bytes_peaks::text::bigint[], :outputs::text::text[],
                  :result_sha256s::text::bytea[], :receipt_ids::text::uuid[], :charged::text::bigint[],
                  :fees::text::bigint[])
           AS c (id, state, cause, report_sha256, exit_code, message, run_seconds, cpu_seconds, memory_bytes_peak,
                 outputs, result_sha256, receipt_id, charged, fee)
     WHERE attempts.id = c.id),
slices_changed AS (
    UPDATE slices SET
           state = c.state, failure_count = c.failure_count, killed_count = c.killed_count, cause = c.cause,
           avoid_node_id = c.avoid_node_id, accepted_attempt_id = c.accepted_attempt_id,
           queued_at = CASE WHEN c.state = 'queued' THEN clock_timestamp() ELSE slices.queued_at END,
           finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'cancelled') THEN clock_timestamp() END
      FROM unnest(:slice_job_ids::text::uuid[], :slice_indexes::text::integer[], :slice_states::text::slice_state[],
                  :failure_counts::text::integer[], :killed_counts::text::smallint[], :slice_causes::text::failure_cause[],
                  :avoid_node_ids::text::uuid[], :accepted_attempt_ids::text::uuid[])
           AS c (job_id, slice_index, state, failure_count, killed_count, cause, avoid_node_id, accepted_attempt_id)
     WHERE slices.job_id = c.job_id AND slices.slice_index = c.slice_index),
jobs_changed AS (
    UPDATE jobs SET succeeded_count = c.succeeded, failed_count = c.failed, cancelled_count = c.cancelled,
           state = c.state, run_seconds_sum = c.run_seconds_sum, held_remaining = c.held_remaining,
           charged_microcredits = c.charged,
           finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'cancelled') THEN clock_timestamp() END
      FROM unnest(:job_ids::text::uuid[], :succeeded::text::integer[], :failed::text::integer[], :cancelled::text::integer[],
                  :job_states::text::job_state[], :run_seconds_sums::text::double precision[],
                  :held_remaining::text::bigint[], :job_charged::text::bigint[])
           AS c (id, succeeded, failed, cancelled, state, run_seconds_sum, held_remaining, charged)
     WHERE jobs.id = c.id),
receipts_kept AS (
    INSERT INTO receipts (id, node_id, token)
    SELECT * FROM unnest(:kept_receipt_ids::text::uuid[], :receipt_node_ids::text::uuid[], :receipt_tokens::text::text[])
    -- One call's results may go two ways, in two transactions, under one receipt.
    ON CONFLICT (id) DO NOTHING)
INSERT INTO events (kind, account_id, job_id, body)
SELECT e.kind, e.account_id, e.job_id, e.body::jsonb
  FROM unnest(:event_kinds::text::text[], :event_account_ids::text::uuid[], :event_job_ids::text::uuid[], :event_bodies::text::text[])
       AS e (kind, account_id, job_id, body);

-- name: extend_leases
-- Beats of many nodes in one statement; an attempt is extended only for the node that holds it. It waits for nobody:
-- whoever holds many rows and waits for one more meets, sooner or later, a completion that waits for one of his (a new
-- lease for a slot waits until it is known whether the attempt there is still live). Returns what was passed over.
-- Not worth waiting for the disk: a lease outlasts two beats, so what a crash of the server takes back, the next beat gives.
WITH beats AS (SELECT * FROM unnest(:ids::text::uuid[], :node_ids::text::uuid[]) AS b (id, node_id)),
     locked AS (SELECT a.id FROM attempts a JOIN beats b ON b.id = a.id AND b.node_id = a.node_id
                 WHERE a.state IN ('leased', 'running') FOR UPDATE OF a SKIP LOCKED),
     extended AS (UPDATE attempts
                     SET expires_at = clock_timestamp() + :lease_seconds::double precision * interval '1 second'
                    FROM locked CROSS JOIN set_config('synchronous_commit', 'off', true)
                   WHERE attempts.id = locked.id)
SELECT a.id FROM attempts a JOIN beats b ON b.id = a.id AND b.node_id = a.node_id
 WHERE a.state IN ('leased', 'running') AND NOT EXISTS (SELECT 1 FROM locked WHERE locked.id = a.id);

-- name: extend_lease!
-- One that was passed over: waits for whoever holds it, holding nothing itself.
UPDATE attempts SET expires_at = clock_timestamp() + :lease_seconds::double precision * interval '1 second'
 WHERE id = :id AND state IN ('leased', 'running');

-- name: list_unacknowledged
SELECT a.id FROM attempts a
  JOIN unnest(:ids::text::uuid[], :node_ids::text::uuid[]) AS b (id, node_id)
    ON b.id = a.id AND b.node_id = a.node_id
 WHERE a.state = 'leased';

-- name: list_overdue
SELECT id FROM attempts
 WHERE state IN ('leased', 'running')
   AND expires_at < clock_timestamp() - :grace_seconds::double precision * interval '1 second'
 ORDER BY expires_at LIMIT :limit_count;

-- name: list_owners
-- Whose job each attempt belongs to; never changes.
SELECT a.id, j.account_id FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.id = ANY(:ids::uuid[]);

-- name: find_held^
-- An attempt as the node that holds it needs it for files and logs.
SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.state, a.log_bytes, j.account_id, j.spec,
       s.attempt_count AS newest_number
  FROM attempts a JOIN jobs j ON j.id = a.job_id
  JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
 WHERE a.id = :id;

-- name: list_attempts
SELECT * FROM attempts WHERE job_id = :job_id AND slice_index = ANY(:slice_indexes::integer[])
 ORDER BY slice_index, number;
