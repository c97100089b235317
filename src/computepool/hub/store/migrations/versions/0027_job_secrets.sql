-- What a job is given to know and nobody else may read.

CREATE TABLE job_secrets (
    job_id uuid PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    -- Nonce and ciphertext (AES-GCM) of the names and values, under a key that is derived and not stored.
    sealed bytea NOT NULL,
    CONSTRAINT job_secrets_sealed_check CHECK (octet_length(sealed) > 28)
);
