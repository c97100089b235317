-- name: insert_run!
INSERT INTO runs (id, network_id, account_id, job_id, steps, inexact_from_step, options, data, expires_at)
VALUES (:id, :network_id, :account_id, :job_id, :steps, :inexact_from_step, :options, :data,
        clock_timestamp() + :seconds::double precision * interval '1 second');

-- name: set_job_run!
UPDATE jobs SET run_id = :run_id WHERE id = :job_id;

-- name: insert_seats!
INSERT INTO run_seats (run_id, seat, slice_index)
SELECT :run_id, * FROM unnest(:seats::text[], :slice_indexes::integer[]);

-- name: find_run^
SELECT r.*, n.name AS network_name FROM runs r JOIN networks n ON n.id = r.network_id WHERE r.id = :id;

-- name: find_run_of_job^
SELECT r.*, n.name AS network_name FROM runs r JOIN networks n ON n.id = r.network_id WHERE r.job_id = :job_id;

-- name: lock_run^
SELECT r.*, n.name AS network_name FROM runs r JOIN networks n ON n.id = r.network_id WHERE r.id = :id
   FOR UPDATE OF r;

-- name: list_runs
-- Newest first: ids are ordered by time. An operator lists all (account_id is null).
SELECT r.*, n.name AS network_name FROM runs r JOIN networks n ON n.id = r.network_id
 WHERE (:account_id::uuid IS NULL OR r.account_id = :account_id)
   AND (:network_id::uuid IS NULL OR r.network_id = :network_id)
   AND (:before::uuid IS NULL OR r.id < :before)
 ORDER BY r.id DESC LIMIT :limit_count;

-- name: count_open$
SELECT count(*) FROM runs WHERE network_id = :network_id AND finished_at IS NULL;

-- name: ask_stop!
UPDATE runs SET stop_asked_at = coalesce(stop_asked_at, clock_timestamp()) WHERE id = :id AND finished_at IS NULL;

-- name: resume_run!
-- Nobody owns it until somebody claims it, which raises the epoch.
UPDATE runs SET state = 'placing', job_id = :job_id, steps = :steps, options = :options, step = checkpoint_step,
       recoveries = 0, message = '', owner_id = NULL, owner_until = NULL, owner_address = '', stop_asked_at = NULL, finished_at = NULL,
       reports_from_epoch = epoch + 1, expires_at = clock_timestamp() + :seconds::double precision * interval '1 second'
 WHERE id = :id;

-- Who owns a run

-- name: claim_runs
-- Compare and set: whoever finds the lease run out takes the run, in an epoch that nobody gave orders in. SKIP LOCKED:
-- another process is taking some of them at this moment. Through runs_open_idx.
WITH free AS MATERIALIZED (
    SELECT id FROM runs
     WHERE finished_at IS NULL AND (owner_until IS NULL OR owner_until < clock_timestamp())
       AND (:id::uuid IS NULL OR id = :id)
     ORDER BY owner_until NULLS FIRST LIMIT :limit_count FOR UPDATE SKIP LOCKED)
UPDATE runs SET owner_id = :owner_id, owner_address = :owner_address, epoch = runs.epoch + 1,
       owner_until = clock_timestamp() + :lease_seconds::double precision * interval '1 second'
  FROM free WHERE runs.id = free.id RETURNING runs.id;

-- name: renew_runs
-- What is not in the answer has another owner by now, or is over.
WITH mine AS (SELECT id FROM runs WHERE id = ANY(:ids::uuid[]) AND owner_id = :owner_id AND finished_at IS NULL
               ORDER BY id FOR UPDATE)
UPDATE runs SET owner_until = clock_timestamp() + :lease_seconds::double precision * interval '1 second'
  FROM mine WHERE runs.id = mine.id RETURNING runs.id, runs.stop_asked_at IS NOT NULL AS stop_asked;

-- name: release_runs!
-- An owner that ends: others need not wait for its lease to run out.
UPDATE runs SET owner_until = clock_timestamp() WHERE owner_id = :owner_id AND finished_at IS NULL;

-- name: write_run$
-- Guarded by owner and epoch: who was overtaken writes nothing, and gives no order that follows from it.
UPDATE runs SET state = :state::run_state, epoch = :epoch, step = :step, checkpoint_step = :checkpoint_step,
       reports_from_epoch = :reports_from_epoch, numeric_class = :numeric_class,
       inexact_from_step = :inexact_from_step, recoveries = :recoveries, message = :message,
       finished_at = CASE WHEN :over::boolean THEN clock_timestamp() END,
       owner_id = CASE WHEN :over::boolean THEN NULL ELSE owner_id END,
       owner_until = CASE WHEN :over::boolean THEN NULL ELSE owner_until END
 WHERE id = :id AND owner_id = :owner_id AND epoch = :known_epoch AND finished_at IS NULL
RETURNING id;

-- name: load_run^
SELECT r.*, n.name AS network_name, n.spec, extract(epoch FROM r.expires_at - clock_timestamp())::double precision AS seconds_left
  FROM runs r JOIN networks n ON n.id = r.network_id WHERE r.id = :id;

-- name: list_seats
SELECT * FROM run_seats WHERE run_id = :run_id ORDER BY slice_index;

-- name: list_placements
SELECT * FROM placements WHERE run_id = :run_id ORDER BY position;

-- name: find_seat^
-- Of whoever holds this attempt.
SELECT s.run_id, s.seat, s.node_id, s.numeric_class, r.owner_id, r.owner_address, r.epoch, r.state, r.data, r.account_id,
       coalesce(r.owner_until > clock_timestamp(), false) AS is_owned
  FROM run_seats s JOIN runs r ON r.id = s.run_id WHERE s.attempt_id = :attempt_id;

-- name: set_seats!
UPDATE run_seats SET attempt_id = c.attempt_id, node_id = c.node_id, numeric_class = c.numeric_class,
       address = c.address
  FROM unnest(:seats::text[], :attempt_ids::uuid[], :node_ids::uuid[], :numeric_classes::text[], :addresses::text[])
       AS c (seat, attempt_id, node_id, numeric_class, address)
 WHERE run_seats.run_id = :run_id AND run_seats.seat = c.seat;

-- name: set_placements!
INSERT INTO placements (run_id, vnode_id, replica, position, seat, incarnation)
SELECT :run_id, * FROM unnest(:vnode_ids::text[], :replicas::integer[], :positions::integer[], :seats::text[],
                              :incarnations::integer[])
ON CONFLICT (run_id, vnode_id, replica) DO UPDATE
   SET position = excluded.position, seat = excluded.seat, incarnation = excluded.incarnation
 WHERE placements.incarnation <> excluded.incarnation;

-- Seats are slices

-- name: mark_seats!
-- These attempts are seats: paid to a checkpoint, of which there is none yet. What their slices suffered before says
-- nothing of the next PNode: a run counts its losses itself.
WITH marked AS (
    UPDATE attempts SET checkpoint_seconds = 0 WHERE id = ANY(:ids::uuid[]) RETURNING job_id, slice_index)
UPDATE slices SET killed_count = 0, failure_count = 0 FROM marked
 WHERE slices.job_id = marked.job_id AND slices.slice_index = marked.slice_index;

-- name: pay_seats!
-- To this moment, or to when what was set aside is used up. Only hosts that have said that they run.
WITH paid AS (SELECT id FROM attempts WHERE id = ANY(:ids::uuid[]) AND state = 'running' ORDER BY id FOR UPDATE)
UPDATE attempts SET checkpoint_seconds = greatest(checkpoint_seconds, floor(extract(
           epoch FROM least(clock_timestamp(), :until::timestamptz) - leased_at))::integer)
  FROM paid WHERE attempts.id = paid.id AND checkpoint_seconds IS NOT NULL;

-- name: list_heads
-- What the next lease of these slices needs; those that are not queued have one, or have ended.
SELECT slice_index, attempt_count FROM slices
 WHERE job_id = :job_id AND slice_index = ANY(:slice_indexes::integer[]) AND state = 'queued';

-- name: list_ended
-- Of these attempts those that are over, and runs whose job is.
SELECT a.id AS attempt_id, NULL::uuid AS run_id FROM attempts a
 WHERE a.id = ANY(:attempt_ids::uuid[]) AND a.state NOT IN ('leased', 'running')
UNION ALL
SELECT NULL, r.id FROM runs r JOIN jobs j ON j.id = r.job_id
 WHERE r.id = ANY(:run_ids::uuid[]) AND j.finished_at IS NOT NULL;

-- name: list_alive
-- Of these attempts those whose agent, or host, was heard since: their leases reach further than they did.
SELECT id FROM attempts
 WHERE id = ANY(:ids::uuid[]) AND state IN ('leased', 'running')
   AND expires_at > clock_timestamp() + (:lease_seconds::double precision - :seconds::double precision)
                                        * interval '1 second';

-- What a run leaves behind

-- name: insert_events!
INSERT INTO run_events (run_id, kind, epoch, step, message)
SELECT :run_id, * FROM unnest(:kinds::text[], :epochs::integer[], :steps::integer[], :messages::text[]);

-- name: upsert_metrics
-- A step that is done again in a later epoch stands for the earlier one; whether it came to other bits is told.
WITH before AS (SELECT step, loss_bits FROM run_metrics WHERE run_id = :run_id AND step = ANY(:steps::integer[])),
written AS (
    INSERT INTO run_metrics (run_id, step, epoch, loss_bits, samples_per_second)
    SELECT :run_id, * FROM unnest(:steps::integer[], :epochs::integer[], :loss_bits::bigint[],
                                  :rates::double precision[])
    ON CONFLICT (run_id, step) DO UPDATE
       SET event_id = excluded.event_id, epoch = excluded.epoch, loss_bits = excluded.loss_bits,
           samples_per_second = excluded.samples_per_second, at = clock_timestamp()
     WHERE run_metrics.epoch < excluded.epoch
    RETURNING step, loss_bits)
SELECT w.step FROM written w JOIN before b ON b.step = w.step WHERE b.loss_bits <> w.loss_bits ORDER BY w.step;

-- name: list_feed
-- Lines and steps after a number, in order. All writers of a run hold its row, so that no number appears late.
SELECT * FROM (
    (SELECT id, at, kind, epoch, step, message, NULL::bigint AS loss_bits, 0::double precision AS samples_per_second
       FROM run_events WHERE run_id = :run_id AND id > :after ORDER BY id LIMIT :limit_count)
    UNION ALL
    (SELECT event_id, at, 'step', epoch, step, '', loss_bits, samples_per_second
       FROM run_metrics WHERE run_id = :run_id AND event_id > :after ORDER BY event_id LIMIT :limit_count)) AS feed
 ORDER BY id LIMIT :limit_count;

-- name: list_metrics
SELECT step, epoch, loss_bits, samples_per_second, at FROM run_metrics
 WHERE run_id = :run_id AND step > :after ORDER BY step LIMIT :limit_count;

-- name: upsert_parts
-- What a VNode stored of a step. A later epoch stands for an earlier one; another state is told.
WITH given AS (
    SELECT * FROM unnest(:steps::integer[], :vnode_ids::text[], :epochs::integer[], :sha256s::bytea[],
                         :sizes::bigint[], :digests::bytea[]) AS g (step, vnode_id, epoch, sha256, size_bytes, digest)),
opened AS (
    INSERT INTO run_checkpoints (run_id, step) SELECT DISTINCT :run_id::uuid, step FROM given
    ON CONFLICT DO NOTHING),
before AS (
    SELECT p.step, p.vnode_id, p.digest FROM run_checkpoint_parts p JOIN given g
        ON p.run_id = :run_id AND p.step = g.step AND p.vnode_id = g.vnode_id),
written AS (
    INSERT INTO run_checkpoint_parts (run_id, step, vnode_id, epoch, sha256, size_bytes, digest)
    SELECT :run_id, * FROM given
    ON CONFLICT (run_id, step, vnode_id) DO UPDATE
       SET epoch = excluded.epoch, sha256 = excluded.sha256, size_bytes = excluded.size_bytes,
           digest = excluded.digest
     WHERE run_checkpoint_parts.epoch < excluded.epoch
    RETURNING step, vnode_id, digest)
SELECT w.step, w.vnode_id FROM written w JOIN before b ON b.step = w.step AND b.vnode_id = w.vnode_id
 WHERE b.digest <> w.digest ORDER BY w.step, w.vnode_id;

-- name: list_reports
-- Beyond the last complete step, of epochs that count.
SELECT step, vnode_id FROM run_checkpoint_parts
 WHERE run_id = :run_id AND step > :after AND epoch >= :from_epoch ORDER BY step DESC LIMIT :limit_count;

-- name: complete_checkpoint!
UPDATE run_checkpoints SET complete_at = coalesce(complete_at, clock_timestamp())
 WHERE run_id = :run_id AND step = :step;

-- name: list_parts
SELECT vnode_id, epoch, sha256, size_bytes, digest FROM run_checkpoint_parts
 WHERE run_id = :run_id AND step = :step ORDER BY vnode_id;

-- name: list_checkpoints
-- Newest first.
SELECT c.step, c.first_at, c.complete_at, c.audited_at,
       (SELECT coalesce(sum(p.size_bytes), 0) FROM run_checkpoint_parts p WHERE p.run_id = c.run_id AND p.step = c.step)::bigint
           AS size_bytes
  FROM run_checkpoints c WHERE c.run_id = :run_id ORDER BY c.step DESC LIMIT :limit_count;

-- name: delete_old_checkpoints
-- All but the newest complete ones and those that audits may begin at, and what never became complete before the
-- newest of them. Says which contents they were made of.
WITH kept AS (
    SELECT step FROM run_checkpoints WHERE run_id = :run_id AND complete_at IS NOT NULL ORDER BY step DESC
     LIMIT :keep),
old AS (
    DELETE FROM run_checkpoints c
     WHERE c.run_id = :run_id AND c.step < (SELECT max(step) FROM kept) AND c.step NOT IN (SELECT step FROM kept)
       AND c.step <> ALL (:spared::integer[])
       AND (:before::integer IS NULL OR c.step < :before)
    RETURNING c.step)
SELECT DISTINCT p.sha256 FROM run_checkpoint_parts p JOIN old ON old.step = p.step WHERE p.run_id = :run_id;

-- name: delete_checkpoints
-- All of a network's runs, with the contents that they were made of.
WITH gone AS (
    DELETE FROM run_checkpoints c USING runs r WHERE r.id = c.run_id AND r.network_id = :network_id
    RETURNING c.run_id, c.step)
SELECT DISTINCT p.run_id, p.sha256 FROM run_checkpoint_parts p
  JOIN gone ON gone.run_id = p.run_id AND gone.step = p.step;

-- Contents

-- name: insert_blob$
INSERT INTO run_blobs (run_id, sha256, size_bytes) VALUES (:run_id, :sha256, :size_bytes)
ON CONFLICT DO NOTHING RETURNING size_bytes;

-- name: find_blob$
SELECT size_bytes FROM run_blobs WHERE run_id = :run_id AND sha256 = :sha256;

-- name: is_loose$
-- Whether no checkpoint of the run needs this content.
SELECT NOT EXISTS (SELECT 1 FROM run_checkpoint_parts WHERE run_id = :run_id AND sha256 = :sha256);

-- name: lock_content!
-- Whoever stores a content and whoever frees it take turns, so that no file goes between a look and a row.
SELECT pg_advisory_xact_lock(('x' || encode(substring(:sha256::bytea FROM 1 FOR 8), 'hex'))::bit(64)::bigint);

-- name: list_loose_blobs
-- Contents of a run that no checkpoint needs any more. Young ones may belong to a checkpoint that is on its way.
SELECT b.sha256 FROM run_blobs b
 WHERE b.run_id = :run_id
   AND b.created_at < clock_timestamp() - :young_seconds::double precision * interval '1 second'
   AND NOT EXISTS (SELECT 1 FROM run_checkpoint_parts p WHERE p.run_id = b.run_id AND p.sha256 = b.sha256)
 ORDER BY b.sha256 LIMIT :limit_count;

-- name: delete_blob$
DELETE FROM run_blobs WHERE run_id = :run_id AND sha256 = :sha256 RETURNING size_bytes;

-- name: is_content_used$
-- By another run, or as somebody's file.
SELECT EXISTS (SELECT 1 FROM run_blobs WHERE sha256 = :sha256) OR EXISTS (SELECT 1 FROM artifacts WHERE sha256 = :sha256);
