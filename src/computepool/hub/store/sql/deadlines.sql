-- name: list_near
-- Open jobs that may be pressing and have slices to raise. The horizon repeats core/jobs/deadline.py, so that a long
-- list of jobs that have time does not hide one that has none; core has the last word. By jobs_deadline_idx, and for
-- each job through its account's own run of slices_queue_idx, where raised slices come first and are passed over.
SELECT j.id AS job_id, j.account_id, j.deadline_at, j.wall_seconds, j.succeeded_count, j.run_seconds_sum,
       clock_timestamp() AS now
  FROM jobs j
 WHERE j.finished_at IS NULL AND j.deadline_at IS NOT NULL
   AND j.deadline_at < clock_timestamp() + :runs::double precision * interval '1 second' * least(j.wall_seconds,
       coalesce(j.run_seconds_sum / nullif(j.succeeded_count, 0), :expected_seconds::double precision))
   -- LIMIT keeps it a question per job: as a join the planner would begin with all that is queued.
   AND (SELECT s.slice_index FROM slices s
         WHERE s.shape_id = j.shape_id AND s.priority_class = j.priority_class AND s.account_id = j.account_id
           AND s.state = 'queued' AND s.priority = j.priority AND s.job_id = j.id AND s.raised_at IS NULL
         LIMIT 1) IS NOT NULL
 ORDER BY j.deadline_at, j.id LIMIT :limit_count;

-- name: raise_slices
-- In the order of locks. SKIP LOCKED: what is being placed at this moment needs no help.
WITH chosen AS (
    SELECT s.job_id, s.slice_index FROM slices s
     WHERE s.job_id = ANY(:job_ids::uuid[]) AND s.state = 'queued' AND s.raised_at IS NULL
     ORDER BY s.job_id, s.slice_index LIMIT :limit_count FOR UPDATE SKIP LOCKED)
UPDATE slices SET priority = :priority, raised_at = clock_timestamp()
  FROM chosen WHERE slices.job_id = chosen.job_id AND slices.slice_index = chosen.slice_index
RETURNING slices.job_id, slices.slice_index;
