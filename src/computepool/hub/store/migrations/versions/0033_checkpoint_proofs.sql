-- The last checkpoint of every attempt, so that a slice can go on without one that nobody can go on from. What a slice
-- goes on from is in job_checkpoints, as before.

CREATE TYPE checkpoint_verdict AS ENUM ('cleared', 'forged', 'undecided');

CREATE TABLE attempt_checkpoints (
    attempt_id uuid PRIMARY KEY REFERENCES attempts (id),
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    attempt_number integer NOT NULL,
    -- Like those of job_checkpoints.
    number integer NOT NULL,
    sha256 bytea NOT NULL,
    files jsonb NOT NULL,
    size_bytes bigint NOT NULL,
    progress double precision,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Attempts of its slice with a higher number begin without it. Null: nobody doubts it.
    left_out_after integer,
    -- What it has come to, and when that was found; only of what was left out.
    verdict checkpoint_verdict,
    judged_at timestamptz,
    CONSTRAINT attempt_checkpoints_number_check CHECK (number >= 1 AND attempt_number >= 1),
    CONSTRAINT attempt_checkpoints_hash_check CHECK (octet_length(sha256) = 32),
    CONSTRAINT attempt_checkpoints_files_check CHECK (jsonb_typeof(files) = 'array' AND jsonb_array_length(files) >= 1),
    CONSTRAINT attempt_checkpoints_size_check CHECK (size_bytes >= 0),
    CONSTRAINT attempt_checkpoints_progress_check CHECK (progress >= 0 AND progress <= 1),
    CONSTRAINT attempt_checkpoints_left_out_check CHECK (left_out_after > attempt_number),
    CONSTRAINT attempt_checkpoints_verdict_check CHECK (
        (verdict IS NULL) = (judged_at IS NULL) AND (verdict IS NULL OR left_out_after IS NOT NULL))
);
CREATE INDEX attempt_checkpoints_slice_idx ON attempt_checkpoints (job_id, slice_index, attempt_number);
CREATE INDEX attempt_checkpoints_unjudged_idx ON attempt_checkpoints (job_id, slice_index)
    WHERE left_out_after IS NOT NULL AND verdict IS NULL;

-- What slices go on from today. Pay for older ones is released by the clock, as was agreed.
INSERT INTO attempt_checkpoints (attempt_id, job_id, slice_index, attempt_number, number, sha256, files, size_bytes,
                                 progress, accepted_at)
SELECT attempt_id, job_id, slice_index, attempt_number, number, sha256, files, size_bytes, progress, accepted_at
  FROM job_checkpoints;
