-- name: exchange
-- Ends attempts whose results have come, and leases what their slots run next: one statement, which is a transaction by
-- itself. Nothing was locked before. `held` takes the locks, in the order of all others (a slice, its attempt, its job,
-- by job), and looks whether everything is as the caller believes: the attempt is live, the first of a job of one slice,
-- nothing was saved or charged before, and it was held for as long as its node says that it ran. What is not so is left
-- out, and judged by the way that asks first. That a slice is number 0 goes without saying where a job has one; said, it
-- would let a plan that was made while all was small and is kept read every slice, as `finished_at IS NULL` every open job.
-- Leases are guarded like those of insert_leases. They come after the ends, which make room for them in the index of
-- live slots: the count forces that order, because `granted` cannot begin before all of `ended` is done.
-- The state of queued slices is compared as text, or a plan that is kept might go through the index of all that is
-- queued; rows of jobs that start are locked in order, after the others.
WITH ends AS (
    SELECT * FROM unnest(:ids::text::uuid[], :end_job_ids::text::uuid[], :end_node_ids::text::uuid[],
                         :end_account_ids::text::uuid[], :held_credits::text::bigint[],
                         :report_sha256s::text::bytea[], :exit_codes::text::integer[], :messages::text::text[],
                         :run_seconds::text::double precision[], :cpu_seconds::text::double precision[],
                         :memory_bytes_peaks::text::bigint[], :outputs::text::text[], :result_sha256s::text::bytea[],
                         :receipt_ids::text::uuid[], :charged::text::bigint[], :fees::text::bigint[])
        AS e (id, job_id, node_id, account_id, held_credits, report_sha256, exit_code, message, run_seconds,
              cpu_seconds, memory_bytes_peak, outputs, result_sha256, receipt_id, charged, fee)),
held AS MATERIALIZED (
    SELECT e.*, a.leased_at, clock_timestamp() AS now
      FROM ends e JOIN slices s ON s.job_id = e.job_id
      JOIN attempts a ON a.id = e.id AND a.node_id = e.node_id
      JOIN jobs j ON j.id = e.job_id
     WHERE s.state IN ('leased', 'running') AND s.attempt_count = 1
       AND a.finished_at IS NULL AND a.checkpoint_seconds IS NULL AND a.saved_seconds = 0
       AND a.leased_at + e.run_seconds * interval '1 second' <= clock_timestamp()
       AND j.slice_count = 1 AND j.state = 'running' AND j.verify IS NULL
       AND j.held_remaining = coalesce(e.held_credits, 0) AND j.charged_microcredits = 0
     ORDER BY s.job_id FOR UPDATE OF s, a, j),
ended AS (
    UPDATE attempts SET
           state = 'succeeded', finished_at = h.now, report_sha256 = h.report_sha256,
           exit_code = h.exit_code, message = coalesce(h.message, ''), run_seconds = h.run_seconds,
           cpu_seconds = h.cpu_seconds, memory_bytes_peak = h.memory_bytes_peak,
           outputs = coalesce(h.outputs::jsonb, attempts.outputs), result_sha256 = h.result_sha256,
           receipt_id = h.receipt_id, charged_microcredits = h.charged, fee_microcredits = h.fee,
           earning_state = CASE WHEN h.charged IS NOT NULL THEN 'pending'::earning_state END,
           release_at = CASE WHEN h.charged IS NOT NULL
                             THEN h.now + attempts.holdback_seconds * interval '1 second' END
      FROM held h WHERE attempts.id = h.id
    RETURNING attempts.id, extract(epoch FROM h.now - h.leased_at)::double precision AS held_seconds),
planned AS (
    SELECT * FROM unnest(:lease_ids::text::uuid[], :job_ids::text::uuid[], :slice_indexes::text::integer[],
                         :numbers::text::integer[], :node_ids::text::uuid[], :slots::text::text[],
                         :expected_seconds::text::double precision[], :account_ids::text::uuid[],
                         :rates::text::bigint[], :slice_prices::text::bigint[], :pooled::text::boolean[],
                         :fee_ppms::text::integer[], :holdbacks::text::integer[])
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
     WHERE (SELECT count(*) FROM ended) >= 0
     ORDER BY p.node_id, p.slot
    ON CONFLICT DO NOTHING RETURNING id, job_id, slice_index, number),
slices_moved AS (
    UPDATE slices SET state = m.state, attempt_count = m.number, accepted_attempt_id = m.accepted_id,
           finished_at = m.finished_at
      FROM (SELECT job_id, 0 AS slice_index, 'succeeded'::slice_state AS state, 1 AS number, id AS accepted_id,
                   now AS finished_at FROM held
            UNION ALL
            SELECT job_id, slice_index, 'leased'::slice_state, number, NULL, NULL FROM granted) AS m
     WHERE slices.job_id = m.job_id AND slices.slice_index = m.slice_index),
starting AS MATERIALIZED (
    SELECT id FROM jobs WHERE id IN (SELECT job_id FROM granted) AND state = 'queued' ORDER BY id FOR UPDATE),
jobs_moved AS (
    UPDATE jobs SET state = m.state, started_at = coalesce(jobs.started_at, clock_timestamp()),
           succeeded_count = jobs.succeeded_count + m.succeeded, finished_at = m.finished_at,
           run_seconds_sum = jobs.run_seconds_sum + m.run_seconds, held_remaining = jobs.held_remaining - m.held,
           charged_microcredits = jobs.charged_microcredits + m.charged
      FROM (SELECT job_id AS id, 'succeeded'::job_state AS state, 1 AS succeeded, now AS finished_at, run_seconds,
                   coalesce(held_credits, 0) AS held, coalesce(charged, 0) AS charged FROM held
            UNION ALL
            SELECT id, 'running'::job_state, 0, NULL, 0, 0, 0 FROM starting) AS m
     WHERE jobs.id = m.id),
receipts_kept AS (
    INSERT INTO receipts (id, node_id, token)
    SELECT r.id, r.node_id, r.token
      FROM unnest(:kept_receipt_ids::text::uuid[], :receipt_node_ids::text::uuid[], :receipt_tokens::text::text[])
           AS r (id, node_id, token)
     WHERE r.id IN (SELECT receipt_id FROM held)
    -- One call's results may go two ways, in two transactions, under one receipt.
    ON CONFLICT (id) DO NOTHING),
recorded AS (
    INSERT INTO events (kind, account_id, job_id, body)
    SELECT 'slices_succeeded', account_id, job_id, '{"slices": [[0, 0]]}'::jsonb FROM held
    UNION ALL
    SELECT 'job_succeeded', account_id, job_id, '{}'::jsonb FROM held
    UNION ALL
    SELECT 'slices_leased', p.account_id, g.job_id, jsonb_build_object(
               'slices', jsonb_agg(jsonb_build_array(g.slice_index, g.slice_index) ORDER BY g.slice_index))
      FROM granted g JOIN planned p ON p.id = g.id GROUP BY p.account_id, g.job_id)
SELECT id, held_seconds FROM ended UNION ALL SELECT id, NULL FROM granted;
