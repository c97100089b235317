-- name: insert_secrets!
INSERT INTO job_secrets (job_id, sealed) SELECT * FROM unnest(:job_ids::uuid[], :sealed::bytea[]);

-- name: delete_ended
-- Only jobs under way have a row here, so that looking at all of them is cheap. SKIP LOCKED: another hub may be at it.
WITH ended AS (
    SELECT s.job_id FROM job_secrets s JOIN jobs j ON j.id = s.job_id
     WHERE j.finished_at IS NOT NULL LIMIT :limit_count FOR UPDATE OF s SKIP LOCKED)
DELETE FROM job_secrets s USING ended e WHERE s.job_id = e.job_id RETURNING s.job_id;
