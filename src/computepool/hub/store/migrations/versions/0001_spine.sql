-- The spine: accounts, nodes, jobs, slices, attempts, files, logs, events.
-- Enum labels equal the Python enums and the wire strings; tests/integration/test_schema.py compares them.

CREATE TYPE slice_state AS ENUM ('queued', 'leased', 'running', 'succeeded', 'failed', 'cancelled');
CREATE TYPE attempt_state AS ENUM ('leased', 'running', 'succeeded', 'failed', 'lost', 'cancelled');
CREATE TYPE job_state AS ENUM ('queued', 'running', 'succeeded', 'failed', 'cancelled');
CREATE TYPE node_state AS ENUM ('active', 'paused', 'draining', 'removed');
CREATE TYPE slot_kind AS ENUM ('gpu', 'cpu');
CREATE TYPE isolation_level AS ENUM ('sandboxed', 'container', 'gvisor');
CREATE TYPE account_role AS ENUM ('submitter', 'owner', 'operator');
CREATE TYPE failure_cause AS ENUM (
    'owner_returned', 'superseded', 'out_of_memory', 'gpu_lost', 'network_lost', 'node_vanished', 'exit_code',
    'timed_out', 'sandbox_refused', 'input_missing', 'hub_fault', 'cancelled', 'expired');

-- One row: who this hub is. Every hub process that shares the database shares it.
CREATE TABLE hub_facts (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT hub_facts_only_row_check CHECK (only_row),
    hub_id uuid NOT NULL,
    -- The blob directory carries the same id; a hub with another directory refuses to start.
    blob_store_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Keys of the hub itself. `signing` keys are Ed25519 and sign tokens; the one `lease` key derives lease secrets.
CREATE TABLE hub_keys (
    kid text PRIMARY KEY,
    purpose text NOT NULL CONSTRAINT hub_keys_purpose_check CHECK (purpose IN ('signing', 'lease')),
    secret bytea NOT NULL,
    public_key bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Announced at once, used for signing from here on, so that agents know it before they need it.
    signs_from timestamptz NOT NULL DEFAULT now(),
    -- No longer accepted from here on.
    retires_at timestamptz
);

CREATE TABLE accounts (
    id uuid PRIMARY KEY,
    -- Lower case; the person's name for signing in.
    email text NOT NULL CONSTRAINT accounts_email_unique UNIQUE,
    name text NOT NULL,
    -- argon2id; absent for people who sign in by link only.
    password_hash text,
    roles account_role[] NOT NULL,
    queued_slices_max integer NOT NULL,
    stored_bytes_max bigint NOT NULL,
    calls_per_minute_max integer NOT NULL,
    -- Sum of the account's artifacts.
    stored_bytes bigint NOT NULL DEFAULT 0 CONSTRAINT accounts_stored_bytes_check CHECK (stored_bytes >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    suspended_at timestamptz
);

CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    name text NOT NULL,
    -- SHA-256 of the secret. The secret is 256 random bits, so a slow hash would protect nothing.
    secret_sha256 bytea NOT NULL CONSTRAINT api_keys_secret_unique UNIQUE,
    roles account_role[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_keys_account_idx ON api_keys (account_id, created_at);

CREATE TABLE sign_in_links (
    token_sha256 bytea PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    used_at timestamptz
);

CREATE TABLE invites (
    token_sha256 bytea PRIMARY KEY,
    created_by uuid NOT NULL REFERENCES accounts (id),
    roles account_role[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    used_by uuid REFERENCES accounts (id),
    used_at timestamptz
);

CREATE TABLE nodes (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    name text NOT NULL,
    -- Raw Ed25519 key: the node's identity. Enrolling again with it is the same node.
    public_key bytea NOT NULL CONSTRAINT nodes_public_key_unique UNIQUE,
    state node_state NOT NULL DEFAULT 'active',
    synthetic boolean NOT NULL,
    isolation isolation_level NOT NULL,
    -- ISO-2, as the owner says.
    region text,
    hardware jsonb NOT NULL,
    agent_version text NOT NULL,
    -- The agent's present start, and the ones before it: a call of a replaced agent is refused.
    boot_id uuid,
    past_boot_ids uuid[] NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz
);
CREATE INDEX nodes_account_idx ON nodes (account_id, id);

CREATE TABLE slots (
    node_id uuid NOT NULL REFERENCES nodes (id),
    name text NOT NULL,
    kind slot_kind NOT NULL,
    tier text NOT NULL,
    vram_bytes bigint NOT NULL,
    cores integer NOT NULL,
    ram_bytes bigint NOT NULL,
    disk_bytes bigint NOT NULL,
    PRIMARY KEY (node_id, name)
);

-- The quantised hard gates that many slices share; rows never change.
CREATE TABLE shapes (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL CONSTRAINT shapes_digest_unique UNIQUE,
    gpu boolean NOT NULL,
    vram_bytes bigint NOT NULL,
    cores integer NOT NULL,
    ram_bytes bigint NOT NULL,
    disk_bytes bigint NOT NULL,
    tiers text[] NOT NULL,
    regions text[] NOT NULL,
    isolation isolation_level NOT NULL
);

CREATE TABLE jobs (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    name text NOT NULL,
    -- What to run, as the submitter sent it.
    spec jsonb NOT NULL,
    shape_id integer NOT NULL REFERENCES shapes (id),
    priority smallint NOT NULL,
    slice_count integer NOT NULL CONSTRAINT jobs_slice_count_check CHECK (slice_count BETWEEN 1 AND 100000),
    retries smallint NOT NULL,
    wall_seconds integer NOT NULL,
    state job_state NOT NULL DEFAULT 'queued',
    succeeded_count integer NOT NULL DEFAULT 0,
    failed_count integer NOT NULL DEFAULT 0,
    cancelled_count integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    -- Unfinished slices fail then.
    expires_at timestamptz,
    CONSTRAINT jobs_counts_check CHECK (
        succeeded_count >= 0 AND failed_count >= 0 AND cancelled_count >= 0
        AND succeeded_count + failed_count + cancelled_count <= slice_count),
    CONSTRAINT jobs_finished_check CHECK (
        (state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)
        AND (finished_at IS NOT NULL) = (succeeded_count + failed_count + cancelled_count = slice_count))
);
CREATE INDEX jobs_account_idx ON jobs (account_id, id);
CREATE INDEX jobs_open_idx ON jobs (account_id) WHERE finished_at IS NULL;
CREATE INDEX jobs_expiry_idx ON jobs (expires_at) WHERE finished_at IS NULL AND expires_at IS NOT NULL;

CREATE TABLE slices (
    job_id uuid NOT NULL REFERENCES jobs (id),
    slice_index integer NOT NULL,
    shape_id integer NOT NULL,
    priority smallint NOT NULL,
    state slice_state NOT NULL DEFAULT 'queued',
    -- Attempts so far; the next one gets this number plus one, so numbers only grow (fencing).
    attempt_count integer NOT NULL DEFAULT 0,
    -- Ends that spent the retry budget.
    failure_count integer NOT NULL DEFAULT 0,
    avoid_node_id uuid,
    cause failure_cause,
    accepted_attempt_id uuid,
    queued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    PRIMARY KEY (job_id, slice_index),
    CONSTRAINT slices_finished_check CHECK (
        (state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT slices_accepted_check CHECK ((state = 'succeeded') = (accepted_attempt_id IS NOT NULL)),
    CONSTRAINT slices_cause_check CHECK ((cause IS NOT NULL) = (state IN ('failed', 'cancelled')))
);
-- The queue: one ordered run per shape, so that a backlog of one shape never hides another.
CREATE INDEX slices_queue_idx ON slices (shape_id, priority DESC, queued_at, job_id, slice_index)
    WHERE state = 'queued';

CREATE TABLE attempts (
    id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    number integer NOT NULL,
    node_id uuid NOT NULL REFERENCES nodes (id),
    slot text NOT NULL,
    state attempt_state NOT NULL DEFAULT 'leased',
    leased_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The lease ends here unless the node is heard; the database's clock.
    expires_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    cause failure_cause,
    exit_code integer,
    message text NOT NULL DEFAULT '',
    -- As the node claims; what is paid is never more than the hub's own clock allows.
    run_seconds double precision,
    cpu_seconds double precision,
    memory_bytes_peak bigint,
    -- [{path, sha256, size_bytes}]
    outputs jsonb NOT NULL DEFAULT '[]',
    result_sha256 bytea,
    receipt text,
    -- Digest of the completion that ended it: the same completion again gets the same answer.
    report_sha256 bytea,
    log_bytes bigint NOT NULL DEFAULT 0,
    CONSTRAINT attempts_number_unique UNIQUE (job_id, slice_index, number),
    CONSTRAINT attempts_slice_fkey FOREIGN KEY (job_id, slice_index) REFERENCES slices (job_id, slice_index),
    CONSTRAINT attempts_finished_check CHECK (
        (state IN ('succeeded', 'failed', 'lost', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT attempts_cause_check CHECK (
        (cause IS NOT NULL) = (state IN ('failed', 'lost', 'cancelled')))
);
-- The two guards against double allocation. Whatever the code believes, the database refuses a second one.
CREATE UNIQUE INDEX attempts_live_slice_idx ON attempts (job_id, slice_index) WHERE state IN ('leased', 'running');
CREATE UNIQUE INDEX attempts_live_slot_idx ON attempts (node_id, slot) WHERE state IN ('leased', 'running');
CREATE INDEX attempts_expiry_idx ON attempts (expires_at) WHERE state IN ('leased', 'running');

-- Which account may read which content. The bytes lie in the blob store, once per hash.
CREATE TABLE artifacts (
    account_id uuid NOT NULL REFERENCES accounts (id),
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, sha256)
);

CREATE TABLE log_chunks (
    attempt_id uuid NOT NULL REFERENCES attempts (id),
    -- Where in the attempt's log this piece begins.
    start_offset bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (attempt_id, start_offset)
);

-- One feed of everything that happened. Ids become visible out of order; xid lets a reader follow in commit order.
CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL,
    account_id uuid,
    job_id uuid,
    node_id uuid,
    body jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX events_job_idx ON events (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX events_xid_idx ON events (xid, id);

-- The first answer to a keyed request, given again when the key is used again.
CREATE TABLE idempotency (
    account_id uuid NOT NULL REFERENCES accounts (id),
    key text NOT NULL,
    request_sha256 bytea NOT NULL,
    job_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, key)
);
