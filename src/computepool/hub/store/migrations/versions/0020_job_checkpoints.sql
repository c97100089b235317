-- What leaves the machine of a running attempt: the next one of its slice goes on from it, and its owner is paid to it.

ALTER TABLE attempts
    -- Whole seconds of its work that its last accepted checkpoint holds, and when that was accepted.
    ADD COLUMN saved_seconds integer NOT NULL DEFAULT 0,
    ADD COLUMN saved_at timestamptz,
    ADD CONSTRAINT attempts_saved_check CHECK (saved_seconds >= 0 AND (saved_at IS NOT NULL OR saved_seconds = 0));

-- One row a slice: the last that was accepted, by whichever attempt. Their numbers only grow.
CREATE TABLE job_checkpoints (
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    attempt_id uuid NOT NULL REFERENCES attempts (id),
    attempt_number integer NOT NULL,
    number integer NOT NULL,
    -- Of the manifest, as of a result's.
    sha256 bytea NOT NULL,
    files jsonb NOT NULL,
    size_bytes bigint NOT NULL,
    progress double precision,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id, slice_index),
    CONSTRAINT job_checkpoints_number_check CHECK (number >= 1 AND attempt_number >= 1),
    CONSTRAINT job_checkpoints_hash_check CHECK (octet_length(sha256) = 32),
    CONSTRAINT job_checkpoints_files_check CHECK (jsonb_typeof(files) = 'array' AND jsonb_array_length(files) >= 1),
    CONSTRAINT job_checkpoints_size_check CHECK (size_bytes >= 0),
    CONSTRAINT job_checkpoints_progress_check CHECK (progress >= 0 AND progress <= 1)
);
