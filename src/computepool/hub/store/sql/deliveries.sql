-- name: lock_held
-- Attempts that are live for the node that reports them and the newest of their slices, with all that their end needs.
-- One statement: slices, their attempts and then the jobs are locked, each in order. A lock that had to be waited for
-- is given with the row as it is then; whatever has moved on meanwhile is left out, and judged by the long way.
-- So is what is to be checked: it may have to be kept back.
-- Live is told by finished_at: by its state, a plan that is kept might go through the index of all that is live.
-- Each held attempt has its job among those counted, so FULL JOIN means the same as JOIN, and cannot be done by loops.
WITH wanted AS (SELECT * FROM unnest(:ids::text::uuid[], :node_ids::text::uuid[]) AS w (id, node_id)),
held AS MATERIALIZED (
    SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.slot, a.leased_at, a.expected_seconds,
           coalesce(a.rate_microcredits_per_hour, 0) AS rate_microcredits_per_hour, a.slice_price_microcredits,
           coalesce(a.fee_ppm, 0) AS fee_ppm, a.saved_seconds, n.account_id AS owner_id
      FROM wanted w JOIN attempts a ON a.id = w.id AND a.node_id = w.node_id
      JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
      JOIN nodes n ON n.id = a.node_id
     WHERE a.finished_at IS NULL AND s.state IN ('leased', 'running') AND s.attempt_count = a.number
       AND a.checkpoint_seconds IS NULL
     ORDER BY s.job_id, s.slice_index FOR UPDATE OF s, a),
counted AS MATERIALIZED (
    SELECT id, account_id, slice_count, succeeded_count, failed_count, cancelled_count, started_at, run_seconds_sum,
           wall_seconds, held_remaining, reserve_microcredits, charged_microcredits, verify
      FROM jobs WHERE id IN (SELECT job_id FROM held) ORDER BY id FOR UPDATE)
SELECT held.*, c.account_id, c.slice_count, c.succeeded_count, c.failed_count, c.cancelled_count, c.started_at,
       c.run_seconds_sum, c.wall_seconds, c.held_remaining, c.reserve_microcredits, c.charged_microcredits,
       clock_timestamp() AS now
  FROM held FULL JOIN counted c ON c.id = held.job_id WHERE c.verify IS NULL;

-- name: record_deliveries!
-- Writes the ends of attempts and of their slices, what their jobs have come to, receipts and events, at once.
WITH ends AS (
    SELECT * FROM unnest(:ids::text::uuid[], :job_ids::text::uuid[], :slice_indexes::text::integer[],
                         :report_sha256s::text::bytea[], :exit_codes::text::integer[], :messages::text::text[],
                         :run_seconds::text::double precision[], :cpu_seconds::text::double precision[],
                         :memory_bytes_peaks::text::bigint[], :outputs::text::text[], :result_sha256s::text::bytea[],
                         :receipt_ids::text::uuid[], :charged::text::bigint[], :fees::text::bigint[])
        AS e (id, job_id, slice_index, report_sha256, exit_code, message, run_seconds, cpu_seconds, memory_bytes_peak,
              outputs, result_sha256, receipt_id, charged, fee)),
attempts_ended AS (
    UPDATE attempts SET
           state = 'succeeded', finished_at = :now::timestamptz, report_sha256 = e.report_sha256,
           exit_code = e.exit_code, message = coalesce(e.message, ''), run_seconds = e.run_seconds,
           cpu_seconds = e.cpu_seconds, memory_bytes_peak = e.memory_bytes_peak,
           outputs = coalesce(e.outputs::jsonb, attempts.outputs), result_sha256 = e.result_sha256,
           receipt_id = e.receipt_id, charged_microcredits = e.charged, fee_microcredits = e.fee,
           earning_state = CASE WHEN e.charged IS NOT NULL THEN 'pending'::earning_state END,
           release_at = CASE WHEN e.charged IS NOT NULL
                             THEN clock_timestamp() + attempts.holdback_seconds * interval '1 second' END
      FROM ends e WHERE attempts.id = e.id),
slices_ended AS (
    UPDATE slices SET state = 'succeeded', accepted_attempt_id = e.id, finished_at = clock_timestamp()
      FROM ends e WHERE slices.job_id = e.job_id AND slices.slice_index = e.slice_index),
jobs_counted AS (
    UPDATE jobs SET succeeded_count = c.succeeded, state = c.state, run_seconds_sum = c.run_seconds_sum,
           held_remaining = c.held_remaining, charged_microcredits = c.charged,
           -- Whoever should have started it may have been killed before.
           started_at = coalesce(jobs.started_at, clock_timestamp()),
           finished_at = CASE WHEN c.state IN ('succeeded', 'failed', 'cancelled') THEN clock_timestamp() END
      FROM unnest(:counted_job_ids::text::uuid[], :succeeded::text::integer[], :job_states::text::job_state[],
                  :run_seconds_sums::text::double precision[], :held_remaining::text::bigint[],
                  :job_charged::text::bigint[])
           AS c (id, succeeded, state, run_seconds_sum, held_remaining, charged)
     WHERE jobs.id = c.id),
receipts_kept AS (
    INSERT INTO receipts (id, node_id, token)
    SELECT * FROM unnest(:kept_receipt_ids::text::uuid[], :receipt_node_ids::text::uuid[],
                         :receipt_tokens::text::text[])
    -- One call's results may go two ways, in two transactions, under one receipt.
    ON CONFLICT (id) DO NOTHING)
INSERT INTO events (kind, account_id, job_id, body)
SELECT e.kind, e.account_id, e.job_id, e.body::jsonb
  FROM unnest(:event_kinds::text::text[], :event_account_ids::text::uuid[], :event_job_ids::text::uuid[],
              :event_bodies::text::text[])
       AS e (kind, account_id, job_id, body);

-- name: lock_withheld^
-- One attempt whose result was kept back, with all that its acceptance needs; locked as above. Its end was metered when
-- it was delivered: `now` is that moment.
WITH held AS MATERIALIZED (
    SELECT a.id, a.job_id, a.slice_index, a.number, a.node_id, a.slot, a.leased_at, a.expected_seconds,
           coalesce(a.rate_microcredits_per_hour, 0) AS rate_microcredits_per_hour, a.slice_price_microcredits,
           coalesce(a.fee_ppm, 0) AS fee_ppm, a.saved_seconds, n.account_id AS owner_id, a.finished_at, a.run_seconds
      FROM attempts a JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index
      JOIN nodes n ON n.id = a.node_id
     WHERE a.id = :id AND a.state = 'succeeded' AND s.state = 'verifying' FOR UPDATE OF s, a),
counted AS MATERIALIZED (
    SELECT id, account_id, slice_count, succeeded_count, failed_count, cancelled_count, started_at, run_seconds_sum,
           wall_seconds, held_remaining, reserve_microcredits, charged_microcredits
      FROM jobs WHERE id IN (SELECT job_id FROM held) FOR UPDATE)
SELECT held.id, held.job_id, held.slice_index, held.number, held.node_id, held.slot, held.leased_at,
       held.expected_seconds, held.rate_microcredits_per_hour, held.slice_price_microcredits, held.fee_ppm,
       held.saved_seconds, held.owner_id, c.account_id, c.slice_count, c.succeeded_count, c.failed_count,
       c.cancelled_count, c.started_at, c.run_seconds_sum, c.wall_seconds, c.held_remaining, c.reserve_microcredits,
       c.charged_microcredits, held.finished_at AS now, held.run_seconds
  FROM held JOIN counted c ON c.id = held.job_id;

-- name: record_acceptance!
WITH attempt_paid AS (
    UPDATE attempts SET charged_microcredits = :charged::bigint, fee_microcredits = :fee::bigint,
           earning_state = CASE WHEN :charged::bigint IS NOT NULL THEN 'pending'::earning_state END,
           release_at = CASE WHEN :charged::bigint IS NOT NULL
                             THEN clock_timestamp() + holdback_seconds * interval '1 second' END
     WHERE id = :id),
slice_ended AS (
    UPDATE slices SET state = 'succeeded', accepted_attempt_id = :accepted_id, finished_at = clock_timestamp(),
           attempt_count = attempt_count + (:accepted_id::uuid <> :id::uuid)::integer
     WHERE job_id = :job_id AND slice_index = :slice_index)
UPDATE jobs SET succeeded_count = :succeeded, state = :job_state::job_state, run_seconds_sum = :run_seconds_sum,
       held_remaining = :held_remaining, charged_microcredits = :job_charged,
       finished_at = CASE WHEN :job_state::job_state IN ('succeeded', 'failed', 'cancelled') THEN clock_timestamp() END
 WHERE id = :job_id;
