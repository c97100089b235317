-- name: lock_attempt^
-- The attempt that a checkpoint is claimed for, and what its slice has. The slice is locked already.
SELECT a.job_id, a.slice_index, a.number, a.state, a.saved_seconds,
       extract(epoch FROM clock_timestamp() - a.leased_at)::double precision AS held_seconds,
       k.attempt_number AS kept_attempt_number, k.number AS kept_number, k.sha256 AS kept_sha256
  FROM attempts a
  LEFT JOIN job_checkpoints k ON k.job_id = a.job_id AND k.slice_index = a.slice_index
 WHERE a.id = :id FOR UPDATE OF a;

-- name: save_checkpoint!
-- For the slice, which goes on from it, and for the attempt, which is paid by it once somebody has.
WITH saved AS (
    UPDATE attempts SET saved_seconds = :saved_seconds, saved_at = clock_timestamp() WHERE id = :attempt_id),
claimed AS (
    SELECT :job_id::uuid AS job_id, :slice_index::integer AS slice_index, :attempt_id::uuid AS attempt_id,
           :attempt_number::integer AS attempt_number, :number::integer AS number, :sha256::bytea AS sha256,
           :files::jsonb AS files, :size_bytes::bigint AS size_bytes, :progress::double precision AS progress),
kept AS (
    INSERT INTO attempt_checkpoints (job_id, slice_index, attempt_id, attempt_number, number, sha256, files, size_bytes,
                                     progress)
    SELECT * FROM claimed
    ON CONFLICT (attempt_id) DO UPDATE SET
           number = excluded.number, sha256 = excluded.sha256, files = excluded.files,
           size_bytes = excluded.size_bytes, progress = excluded.progress, accepted_at = excluded.accepted_at)
INSERT INTO job_checkpoints (job_id, slice_index, attempt_id, attempt_number, number, sha256, files, size_bytes, progress)
SELECT * FROM claimed
ON CONFLICT (job_id, slice_index) DO UPDATE SET
       attempt_id = excluded.attempt_id, attempt_number = excluded.attempt_number, number = excluded.number,
       sha256 = excluded.sha256, files = excluded.files, size_bytes = excluded.size_bytes,
       progress = excluded.progress, accepted_at = excluded.accepted_at;

-- name: find_kept^
SELECT attempt_number, files FROM job_checkpoints WHERE job_id = :job_id AND slice_index = :slice_index;

-- name: list_progress
SELECT slice_index, progress FROM job_checkpoints
 WHERE job_id = :job_id AND slice_index = ANY(:slice_indexes::integer[]) AND progress IS NOT NULL;
