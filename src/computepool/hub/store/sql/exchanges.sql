-- name: exchange
-- Ends attempts whose results have come, and leases what their slots run next: one statement, which is a transaction by
-- itself. Nothing was locked before but queued slices.
-- `held` locks slices and their attempts, and waits for none: whoever cancels a job locks all of its slices in order, and
-- if both waited, they would wait for each other. `counted` locks their jobs, in order, and is all that is waited for.
-- They look whether everything is as the caller believes: the attempt is live, the first of its slice, nothing of it was
-- saved before, and it was held for as long as its node says that it ran; what is left to run of its job stays covered,
-- and a job that ends here has succeeded. What is not so is left out, and judged by the way that asks first.
-- A job that is started here and locked by somebody else is one that they start; if they did not in the end, its first
-- result does.
-- Leases are guarded like those of insert_leases. They come after the ends, which make room for them in the index of
-- live slots: the count forces that order, because `granted` cannot begin before all of `ended` is done.
-- The state of queued slices is compared as text, or a plan that is kept might go through the index of all that is
-- queued. FULL JOIN means the same as JOIN here, and cannot be done by loops.
-- What a job has come to is reckoned from the row that was locked: an update looks first at the row as it was when the
-- statement began, and if others have changed it since, the table's checks would see a mixture. What moves slices and
-- jobs stands in lists of their own: for a row that others have changed, a UNION ALL within the update would be made
-- again, when the attempts have ended, and come to nothing; the row would silently stay behind.
WITH ends AS (
    SELECT * FROM unnest(:ids::text::uuid[], :end_job_ids::text::uuid[], :end_slice_indexes::text::integer[],
                         :end_node_ids::text::uuid[], :report_sha256s::text::bytea[], :exit_codes::text::integer[],
                         :messages::text::text[], :run_seconds::text::double precision[],
                         :cpu_seconds::text::double precision[], :memory_bytes_peaks::text::bigint[],
                         :outputs::text::text[], :result_sha256s::text::bytea[], :receipt_ids::text::uuid[],
                         :charged::text::bigint[], :fees::text::bigint[])
        AS e (id, job_id, slice_index, node_id, report_sha256, exit_code, message, run_seconds, cpu_seconds,
              memory_bytes_peak, outputs, result_sha256, receipt_id, charged, fee)),
held AS MATERIALIZED (
    SELECT e.*, a.leased_at
      FROM ends e JOIN slices s ON s.job_id = e.job_id AND s.slice_index = e.slice_index
      JOIN attempts a ON a.id = e.id AND a.node_id = e.node_id
     WHERE s.state IN ('leased', 'running') AND s.attempt_count = 1
       AND a.finished_at IS NULL AND a.checkpoint_seconds IS NULL AND a.saved_seconds = 0
       AND a.leased_at + e.run_seconds * interval '1 second' <= clock_timestamp()
     ORDER BY s.job_id, s.slice_index FOR NO KEY UPDATE OF s, a SKIP LOCKED),
together AS MATERIALIZED (
    SELECT job_id, count(*)::integer AS ended_count, sum(run_seconds) AS run_seconds,
           coalesce(sum(charged), 0)::bigint AS charged,
           string_agg(format('[%s, %s]', slice_index, slice_index), ', ' ORDER BY slice_index) AS told
      FROM held GROUP BY job_id),
counted AS MATERIALIZED (
    SELECT j.id, j.account_id, j.verify, j.succeeded_count + t.ended_count AS succeeded_count,
           j.slice_count - j.succeeded_count - j.failed_count - j.cancelled_count AS open_count,
           j.failed_count + j.cancelled_count AS spoilt_count, j.run_seconds_sum + t.run_seconds AS run_seconds_sum,
           j.held_remaining, j.reserve_microcredits, j.charged_microcredits + t.charged AS charged_microcredits,
           t.ended_count, t.charged, t.told
      FROM together t JOIN jobs j ON j.id = t.job_id ORDER BY j.id FOR NO KEY UPDATE OF j),
judged AS MATERIALIZED (
    SELECT *, open_count - ended_count AS left_count, clock_timestamp() AS now,
           open_count >= ended_count AND verify IS NULL
           AND (open_count > ended_count OR spoilt_count = 0)
           AND held_remaining - charged >= (open_count - ended_count) * reserve_microcredits AS passes
      FROM counted),
taken AS MATERIALIZED (
    SELECT held.*, j.open_count, j.held_remaining, j.now
      FROM held FULL JOIN judged j ON j.id = held.job_id WHERE coalesce(j.passes, false)),
ended AS (
    UPDATE attempts SET
           state = 'succeeded', finished_at = t.now, report_sha256 = t.report_sha256,
           exit_code = t.exit_code, message = coalesce(t.message, ''), run_seconds = t.run_seconds,
           cpu_seconds = t.cpu_seconds, memory_bytes_peak = t.memory_bytes_peak,
           outputs = coalesce(t.outputs::jsonb, attempts.outputs), result_sha256 = t.result_sha256,
           receipt_id = t.receipt_id, charged_microcredits = t.charged, fee_microcredits = t.fee,
           earning_state = CASE WHEN t.charged IS NOT NULL THEN 'pending'::earning_state END,
           release_at = CASE WHEN t.charged IS NOT NULL
                             THEN t.now + attempts.holdback_seconds * interval '1 second' END
      FROM taken t WHERE attempts.id = t.id
    RETURNING attempts.id, extract(epoch FROM t.now - t.leased_at)::double precision AS held_seconds,
              t.open_count, t.held_remaining),
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
moved_slices AS MATERIALIZED (
    SELECT job_id, slice_index, 'succeeded'::slice_state AS state, 1 AS number, id AS accepted_id, now AS finished_at
      FROM taken
    UNION ALL
    SELECT job_id, slice_index, 'leased'::slice_state, number, NULL, NULL FROM granted),
slices_moved AS (
    UPDATE slices SET state = m.state, attempt_count = m.number, accepted_attempt_id = m.accepted_id,
           finished_at = m.finished_at
      FROM moved_slices m WHERE slices.job_id = m.job_id AND slices.slice_index = m.slice_index),
starting AS MATERIALIZED (
    SELECT id FROM jobs WHERE id IN (SELECT job_id FROM granted EXCEPT SELECT id FROM judged WHERE passes)
       AND state = 'queued' FOR NO KEY UPDATE SKIP LOCKED),
moved_jobs AS MATERIALIZED (
    SELECT id, CASE WHEN left_count > 0 THEN 'running'::job_state ELSE 'succeeded' END AS state,
           CASE WHEN left_count = 0 THEN now END AS finished_at, succeeded_count, run_seconds_sum,
           CASE WHEN left_count > 0 THEN held_remaining - charged ELSE 0 END AS held_remaining, charged_microcredits
      FROM judged WHERE passes
    UNION ALL
    SELECT id, 'running'::job_state, NULL, NULL, NULL, NULL, NULL FROM starting),
jobs_moved AS (
    UPDATE jobs SET state = m.state, started_at = coalesce(jobs.started_at, clock_timestamp()),
           finished_at = m.finished_at, succeeded_count = coalesce(m.succeeded_count, jobs.succeeded_count),
           run_seconds_sum = coalesce(m.run_seconds_sum, jobs.run_seconds_sum),
           held_remaining = coalesce(m.held_remaining, jobs.held_remaining),
           charged_microcredits = coalesce(m.charged_microcredits, jobs.charged_microcredits)
      FROM moved_jobs m WHERE jobs.id = m.id),
receipts_kept AS (
    INSERT INTO receipts (id, node_id, token)
    SELECT r.id, r.node_id, r.token
      FROM unnest(:kept_receipt_ids::text::uuid[], :receipt_node_ids::text::uuid[], :receipt_tokens::text::text[])
           AS r (id, node_id, token)
     WHERE r.id IN (SELECT receipt_id FROM taken)
    -- One call's results may go two ways, in two transactions, under one receipt.
    ON CONFLICT (id) DO NOTHING),
recorded AS (
    INSERT INTO events (kind, account_id, job_id, body)
    SELECT 'slices_succeeded', account_id, id, format('{"slices": [%s]}', told)::jsonb FROM judged WHERE passes
    UNION ALL
    SELECT 'job_succeeded', account_id, id, '{}'::jsonb FROM judged WHERE passes AND left_count = 0
    UNION ALL
    SELECT 'slices_leased', p.account_id, g.job_id, jsonb_build_object(
               'slices', jsonb_agg(jsonb_build_array(g.slice_index, g.slice_index) ORDER BY g.slice_index))
      FROM granted g JOIN planned p ON p.id = g.id GROUP BY p.account_id, g.job_id)
SELECT id, held_seconds, open_count, held_remaining FROM ended UNION ALL SELECT id, NULL, NULL, NULL FROM granted;
