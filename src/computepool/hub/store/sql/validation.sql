-- name: list_checked
-- Of these attempts those whose jobs have their results checked, with where their nodes stand.
SELECT a.id AS attempt_id, j.verify, j.nondeterministic, t.right_weight, t.wrong_weight, t.validated_count, t.counted_at,
       t.standing, t.since, t.wrong_at, t.bugged_count, t.returning_left, t.is_vouched, t.serving_since
  FROM attempts a JOIN jobs j ON j.id = a.job_id LEFT JOIN node_trust t ON t.node_id = a.node_id
 WHERE a.id = ANY(:ids::uuid[]) AND j.verify IS NOT NULL;

-- name: insert_checks!
INSERT INTO checks (attempt_id, job_id, slice_index, node_id, mode, withheld, retro)
SELECT * FROM unnest(:attempt_ids::uuid[], :job_ids::uuid[], :slice_indexes::integer[], :node_ids::uuid[],
                     :modes::verify_mode[], :withheld::boolean[], :retro::boolean[])
ON CONFLICT (attempt_id) DO NOTHING;

-- name: insert_watches!
-- No more than so many wait for a node at a time: of a busy hour a sample is enough.
INSERT INTO watches (attempt_id, job_id, node_id)
SELECT k.* FROM unnest(:attempt_ids::uuid[], :job_ids::uuid[], :node_ids::uuid[]) AS k (attempt_id, job_id, node_id)
 WHERE (SELECT count(*) FROM watches w WHERE w.node_id = k.node_id) < :waiting_max::integer
ON CONFLICT (attempt_id) DO NOTHING;

-- name: take_watches
-- Those that are due, each for a while; not of a node that is tried at this moment.
UPDATE watches w SET look_at = clock_timestamp() + :seconds::double precision * interval '1 second'
  FROM jobs j
 WHERE j.id = w.job_id AND w.attempt_id IN (
       SELECT d.attempt_id FROM watches d
        WHERE d.look_at <= clock_timestamp()
          AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.node_id = d.node_id AND t.closed_at IS NULL)
        ORDER BY d.look_at LIMIT :limit_count FOR UPDATE OF d SKIP LOCKED)
RETURNING w.attempt_id, w.job_id, w.node_id, w.opened_at, j.account_id AS submitter_id, clock_timestamp() AS now;

-- name: watch_again!
UPDATE watches SET look_at = clock_timestamp() + :seconds::double precision * interval '1 second'
 WHERE attempt_id = :attempt_id;

-- name: delete_watch!
DELETE FROM watches WHERE attempt_id = :attempt_id;

-- name: open_retro_checks!
-- Every result of the node that can still be put right: checked jobs, not checked yet, and its pay still held back.
INSERT INTO checks (attempt_id, job_id, slice_index, node_id, mode, withheld, retro)
SELECT a.id, a.job_id, a.slice_index, a.node_id, j.verify, false, true
  FROM attempts a JOIN jobs j ON j.id = a.job_id
  JOIN slices s ON s.job_id = a.job_id AND s.slice_index = a.slice_index AND s.accepted_attempt_id = a.id
 WHERE a.node_id = :node_id AND a.finished_at IS NOT NULL AND a.earning_state = 'pending'
   AND j.verify IS NOT NULL AND NOT j.nondeterministic
 ORDER BY a.finished_at DESC LIMIT :limit_count
ON CONFLICT (attempt_id) DO NOTHING;

-- name: take_checks
-- Those that are due, each for a while: whoever takes one has that long before another hub does.
UPDATE checks SET look_at = clock_timestamp() + :seconds::double precision * interval '1 second'
 WHERE attempt_id IN (SELECT attempt_id FROM checks WHERE state <> 'closed' AND look_at <= clock_timestamp()
                       ORDER BY look_at LIMIT :limit_count FOR UPDATE SKIP LOCKED)
RETURNING attempt_id;

-- name: find_check^
SELECT c.*, a.outputs, a.result_sha256, a.finished_at, a.slot, n.account_id AS owner_id, n.network, n.hardware, j.account_id AS submitter_id,
       j.spec, j.shape_id, j.wall_seconds, j.reserve_microcredits, j.slice_base_microcredits, j.nondeterministic,
       a.job_id <> c.job_id AS is_trial, clock_timestamp() AS now
  FROM checks c JOIN attempts a ON a.id = c.attempt_id JOIN nodes n ON n.id = a.node_id JOIN jobs j ON j.id = c.job_id
 WHERE c.attempt_id = :attempt_id;

-- name: list_runs
-- The runs that were asked for because of it, oldest first. A job whose one lease is over without a result is dead.
-- Jobs of trials and of comparisons run something else, or for something else.
SELECT j.id AS job_id, j.state AS job_state, a.id AS attempt_id, a.state, a.node_id, a.finished_at, a.outputs,
       a.result_sha256, a.slot, n.account_id AS owner_id, n.network, n.hardware
  FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = 1 JOIN nodes n ON n.id = a.node_id
 WHERE j.checks_attempt_id = :attempt_id AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.job_id = j.id)
   AND NOT EXISTS (SELECT 1 FROM comparisons c WHERE c.job_id = j.id) ORDER BY j.id;

-- name: look_again!
UPDATE checks SET look_at = clock_timestamp() + :seconds::double precision * interval '1 second'
 WHERE attempt_id = :attempt_id AND state <> 'closed';

-- name: ask_runs$
-- Guarded by what was seen: two hubs that look at the same moment do not both ask.
UPDATE checks SET asked_count = asked_count + :count::integer
 WHERE attempt_id = :attempt_id AND state = 'open' AND asked_count = :seen::integer RETURNING true;

-- name: insert_check_job!
-- One slice of a job once more, under its own number: to whoever runs it, it looks like any other. With a spec of its
-- own it is something else that is to be done for that slice.
WITH new AS (
    INSERT INTO jobs (id, account_id, name, spec, shape_id, priority, priority_class, prefer, weight_set, slice_count,
                      retries, wall_seconds, reserve_microcredits, held_remaining, slice_base_microcredits,
                      checks_attempt_id)
    SELECT :id, account_id, name, coalesce(:spec::jsonb, spec), :shape_id, priority, priority_class, prefer, weight_set, 1, 0, wall_seconds,
           :reserve::bigint, :reserve::bigint, slice_base_microcredits, :attempt_id
      FROM jobs WHERE id = :job_id
    RETURNING id, account_id, shape_id, priority, priority_class)
INSERT INTO slices (job_id, slice_index, account_id, shape_id, priority, priority_class)
SELECT id, :slice_index, account_id, shape_id, priority, priority_class FROM new;

-- name: list_free_slots
-- Slots that could run something once more now. The submitter's own are none. With their conditions, as in
-- list_candidates; which of them fit is decided by the same gates as everywhere.
SELECT s.*, n.region, n.isolation, n.allows, n.account_id AS owner_id, n.floor_microcredits_per_hour, o.hours, o.zone,
       coalesce(o.seconds_min, 0) AS slice_seconds_min, coalesce(o.kinds, '{}') AS job_kinds,
       CASE WHEN o.audience <> 'anyone' THEN n.account_id || o.named END AS welcome, false AS busy, false AS is_out, n.network,
       n.hardware, t.right_weight, t.wrong_weight, t.validated_count, t.counted_at, t.standing, t.since, t.wrong_at,
       t.bugged_count, t.returning_left, t.is_vouched, t.serving_since
  FROM nodes n JOIN slots s ON s.node_id = n.id LEFT JOIN node_trust t ON t.node_id = n.id
  LEFT JOIN offers o ON o.node_id = n.id
 WHERE n.state = 'active' AND n.account_id <> :submitter_id
   AND n.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
   AND coalesce(t.standing, 'clear') = ANY(:standings::standing[])
   AND (:node_id::uuid IS NULL OR n.id = :node_id::uuid)
   AND (NOT :trusted::boolean OR t.is_vouched OR t.validated_count >= :validated_min::integer)
   AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.node_id = s.node_id AND a.slot = s.name
                      AND a.state IN ('leased', 'running'))
 ORDER BY s.node_id, s.name LIMIT :limit_count;

-- name: insert_trust!
-- Nodes that nobody knew anything about: a row that is not there could not be locked.
INSERT INTO node_trust (node_id) SELECT unnest(:node_ids::uuid[]) ON CONFLICT (node_id) DO NOTHING;

-- name: lock_trust
-- In order of id.
SELECT * FROM node_trust WHERE node_id = ANY(:node_ids::uuid[]) ORDER BY node_id FOR UPDATE;

-- name: list_trust
SELECT * FROM node_trust WHERE node_id = ANY(:node_ids::uuid[]) ORDER BY node_id;

-- name: put_trust!
INSERT INTO node_trust (node_id, right_weight, wrong_weight, validated_count, counted_at, standing, since, wrong_at,
                        bugged_count, returning_left, is_vouched, serving_since)
VALUES (:node_id, :right_weight, :wrong_weight, :validated_count, :counted_at, :standing::standing, :since,
        :wrong_at::integer[], :bugged_count, :returning_left, :is_vouched, :serving_since)
ON CONFLICT (node_id) DO UPDATE
   SET right_weight = excluded.right_weight, wrong_weight = excluded.wrong_weight,
       validated_count = excluded.validated_count, counted_at = excluded.counted_at, standing = excluded.standing,
       since = excluded.since, wrong_at = excluded.wrong_at, bugged_count = excluded.bugged_count,
       returning_left = excluded.returning_left, is_vouched = excluded.is_vouched,
       serving_since = excluded.serving_since;

-- name: rule_check$
UPDATE checks SET state = 'ruled', outcome = :outcome::check_outcome, verdicts = :verdicts
 WHERE attempt_id = :attempt_id AND state = 'open' RETURNING true;

-- name: close_check!
UPDATE checks SET state = 'closed', closed_at = clock_timestamp()
 WHERE attempt_id = :attempt_id AND state = 'ruled';

-- name: insert_effects!
INSERT INTO trust_effects (node_id, effect)
SELECT * FROM unnest(:node_ids::uuid[], :effects::trust_effect[]);

-- name: take_effects
-- Of each node the first, for a while: whoever takes it has that long before another hub does. What comes after it waits:
-- pay that is forfeit is past being looked at again.
UPDATE trust_effects SET look_at = clock_timestamp() + :seconds::double precision * interval '1 second'
 WHERE id IN (SELECT e.id FROM trust_effects e
               WHERE e.look_at <= clock_timestamp()
                 AND NOT EXISTS (SELECT 1 FROM trust_effects b WHERE b.node_id = e.node_id AND b.id < e.id)
               ORDER BY e.id LIMIT :limit_count FOR UPDATE OF e SKIP LOCKED)
RETURNING id, node_id, effect;

-- name: delete_effect!
DELETE FROM trust_effects WHERE id = :id;

-- name: set_nondeterministic!
UPDATE jobs SET nondeterministic = true WHERE id = :id;

-- name: copy_result$
-- The right result of another run, as an attempt of the slice that it was run again for. Nothing is owed for it here:
-- whoever ran it is paid there.
INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, leased_at, expires_at, started_at,
                      finished_at, exit_code, message, run_seconds, cpu_seconds, memory_bytes_peak, outputs,
                      result_sha256, report_sha256)
SELECT :id, s.job_id, s.slice_index, s.attempt_count + 1, a.node_id, a.slot, 'succeeded', a.leased_at, a.expires_at,
       a.started_at, a.finished_at, a.exit_code, :message, a.run_seconds, a.cpu_seconds, a.memory_bytes_peak,
       a.outputs, a.result_sha256, a.report_sha256
  FROM attempts a, slices s
 WHERE a.id = :right_id AND s.job_id = :job_id AND s.slice_index = :slice_index
RETURNING id;

-- name: replace_result!
-- Of a slice that was delivered with a wrong one.
UPDATE slices SET accepted_attempt_id = :accepted_id, attempt_count = attempt_count + 1
 WHERE job_id = :job_id AND slice_index = :slice_index AND state = 'succeeded' AND accepted_attempt_id = :wrong_id;

-- name: is_wrong_result$
-- Whether the slice still has the result of the attempt that was found wrong, delivered or kept back. Locked.
SELECT coalesce(accepted_attempt_id = :attempt_id, state = 'verifying') FROM slices
 WHERE job_id = :job_id AND slice_index = :slice_index FOR UPDATE;

-- name: list_unreleased
-- Attempts of a node whose pay can still be kept from it.
SELECT id FROM attempts
 WHERE node_id = :node_id AND earning_state IN ('pending', 'disputed') ORDER BY id LIMIT :limit_count;

-- name: list_bugged
-- Nodes whose cool-off may be over.
SELECT node_id FROM node_trust WHERE standing = 'bugged' ORDER BY node_id LIMIT :limit_count;

-- name: list_returning
-- Nodes on their way back that are here and have nothing to prove at this moment.
SELECT t.node_id FROM node_trust t JOIN nodes n ON n.id = t.node_id
 WHERE t.standing = 'returning' AND n.state = 'active'
   AND n.last_seen_at >= clock_timestamp() - :silence_seconds::double precision * interval '1 second'
   AND NOT EXISTS (SELECT 1 FROM trials r WHERE r.node_id = t.node_id AND r.closed_at IS NULL)
 ORDER BY t.node_id LIMIT :limit_count;

-- name: list_subjects
-- Results that are known to be right, somebody trusted having got the same, and that nobody who owns this node has had
-- to do with. None that only a command can compare: it would have to be asked for, too. Newest first, by checks_known_idx, of which no more than so many are looked at.
SELECT c.attempt_id
  FROM (SELECT attempt_id, job_id, verdicts, closed_at FROM checks
         WHERE state = 'closed' AND outcome = 'agreed' AND mode = 'audit'
         ORDER BY closed_at DESC LIMIT :looked_at_max) AS c
  JOIN jobs j ON j.id = c.job_id JOIN nodes n ON n.id = :node_id
 WHERE NOT j.nondeterministic AND j.spec #>> '{compare,kind}' IS DISTINCT FROM 'command'
   AND j.account_id <> n.account_id
   AND NOT EXISTS (SELECT 1 FROM jsonb_object_keys(c.verdicts) AS v (id) JOIN attempts a ON a.id = v.id::uuid
                     JOIN nodes m ON m.id = a.node_id WHERE m.account_id = n.account_id)
   AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.node_id = :node_id AND t.attempt_id = c.attempt_id)
 ORDER BY c.closed_at DESC LIMIT :limit_count;

-- name: list_subjects_of
-- The same of one submitter's jobs, newest first, by jobs_audited_idx: no more than so many, and so many of each.
SELECT c.attempt_id
  FROM nodes n
 CROSS JOIN LATERAL (
       SELECT id FROM jobs
        WHERE account_id = :submitter_id AND account_id <> n.account_id AND verify = 'audit' AND NOT nondeterministic
        ORDER BY id DESC LIMIT :looked_at_max) AS j
 CROSS JOIN LATERAL (
       SELECT k.attempt_id, k.slice_index FROM checks k
        WHERE k.job_id = j.id AND k.state = 'closed' AND k.outcome = 'agreed' AND k.mode = 'audit'
          AND NOT EXISTS (SELECT 1 FROM jsonb_object_keys(k.verdicts) AS v (id) JOIN attempts a ON a.id = v.id::uuid
                            JOIN nodes m ON m.id = a.node_id WHERE m.account_id = n.account_id)
          AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.node_id = n.id AND t.attempt_id = k.attempt_id)
        ORDER BY k.slice_index DESC LIMIT :limit_count) AS c
 WHERE n.id = :node_id
 ORDER BY j.id DESC, c.slice_index DESC LIMIT :limit_count;

-- name: insert_trial$
-- Nothing: the node is tried by another hub at this moment.
INSERT INTO trials (job_id, node_id, attempt_id, watched_job_id)
VALUES (:job_id, :node_id, :attempt_id, :watched_job_id)
ON CONFLICT (node_id) WHERE closed_at IS NULL DO NOTHING RETURNING true;

-- name: list_ended_trials
SELECT t.job_id AS trial_job_id, t.attempt_id AS subject_id, t.watched_job_id, r.id AS job_id, r.state AS job_state,
       a.id AS attempt_id, a.state, a.node_id, a.finished_at, a.outputs, a.result_sha256, a.slot,
       n.account_id AS owner_id, n.network, n.hardware
  FROM trials t JOIN jobs r ON r.id = t.job_id JOIN attempts a ON a.job_id = t.job_id AND a.number = 1
  JOIN nodes n ON n.id = t.node_id
 WHERE t.closed_at IS NULL AND a.finished_at IS NOT NULL ORDER BY t.job_id LIMIT :limit_count;

-- name: close_trial$
UPDATE trials SET closed_at = clock_timestamp(), was_right = :was_right
 WHERE job_id = :job_id AND closed_at IS NULL RETURNING true;

-- name: list_recent_verdicts
-- By node, newest first: of its own results that were checked, of those that it ran to check others, and of those whose
-- answers were known. What was wrong while it was watched is checked, and counts as such.
SELECT k.node_id, v.at, v.right
  FROM unnest(:node_ids::uuid[]) AS k (node_id)
 CROSS JOIN LATERAL (
    SELECT * FROM (
        (SELECT c.closed_at AS at, (c.verdicts ->> c.attempt_id::text)::boolean AS right FROM checks c
          WHERE c.node_id = k.node_id AND c.state = 'closed' ORDER BY c.opened_at DESC LIMIT :limit_count)
        UNION ALL
        (SELECT c.closed_at, (c.verdicts ->> a.id::text)::boolean FROM attempts a JOIN jobs j ON j.id = a.job_id
           JOIN checks c ON c.attempt_id = j.checks_attempt_id
          WHERE a.node_id = k.node_id AND a.finished_at IS NOT NULL AND a.state = 'succeeded' AND c.state = 'closed'
            AND j.checks_attempt_id IS NOT NULL AND c.node_id <> k.node_id
            AND c.verdicts ? a.id::text AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.job_id = j.id)
          ORDER BY a.finished_at DESC LIMIT :limit_count)
        UNION ALL
        (SELECT t.closed_at, t.was_right FROM trials t
          WHERE t.node_id = k.node_id AND t.was_right IS NOT NULL AND (t.was_right OR t.watched_job_id IS NULL)
          ORDER BY t.closed_at DESC LIMIT :limit_count)) AS u
     ORDER BY at DESC LIMIT :limit_count) AS v
 ORDER BY k.node_id, v.at DESC;

-- name: list_result_groups
-- How many delivered slices of a job came from which node, and what the checks of them have come to. What a node got
-- while it was watched or tried is no result of the job.
SELECT a.node_id, c.outcome, (c.state = 'closed') AS closed, count(*) AS count
  FROM slices s JOIN attempts a ON a.id = s.accepted_attempt_id
  LEFT JOIN (checks c JOIN attempts r ON r.id = c.attempt_id AND r.job_id = c.job_id)
    ON c.job_id = s.job_id AND c.slice_index = s.slice_index
 WHERE s.job_id = :job_id AND s.state = 'succeeded' GROUP BY 1, 2, 3;

-- name: sum_check_jobs^
-- Runs that check its results, slices with known answers that watch its nodes, and runs that check those.
SELECT count(*) AS count, coalesce(sum(r.charged_microcredits), 0)::bigint AS microcredits
  FROM (SELECT r.charged_microcredits
          FROM checks c JOIN attempts a ON a.id = c.attempt_id AND a.job_id = c.job_id
          JOIN jobs r ON r.checks_attempt_id = c.attempt_id
         WHERE c.job_id = :job_id AND NOT EXISTS (SELECT 1 FROM trials t WHERE t.job_id = r.id)
        UNION ALL
        SELECT r.charged_microcredits FROM trials t JOIN jobs r ON r.id = t.job_id WHERE t.watched_job_id = :job_id
        UNION ALL
        SELECT r.charged_microcredits
          FROM trials t JOIN attempts a ON a.job_id = t.job_id JOIN jobs r ON r.checks_attempt_id = a.id
         WHERE t.watched_job_id = :job_id) AS r;

-- name: list_distrusted
-- Nodes that are not clear, those whose standing has changed last first, through node_trust_standing_idx: few.
SELECT t.*, n.name AS node_name, n.account_id AS owner_id
  FROM node_trust t JOIN nodes n ON n.id = t.node_id
 WHERE t.standing <> 'clear'
   AND (:before::uuid IS NULL OR (coalesce(t.since, '-infinity'), t.node_id) <
        (SELECT coalesce(b.since, '-infinity'), b.node_id FROM node_trust b WHERE b.node_id = :before::uuid))
 ORDER BY coalesce(t.since, '-infinity') DESC, t.node_id DESC LIMIT :limit_count;
