-- Networks: specs, runs and who owns them, seats and placements, checkpoints, curves; and what a seat is paid to.

CREATE TYPE run_state AS ENUM (
    'placing', 'preparing', 'running', 'recovering', 'stopping', 'stopped', 'succeeded', 'failed');

-- ## What jobs and attempts know of it

-- Set where the job pays for the seats of a run: its slices are given out by the run's owner and by nobody else.
ALTER TABLE jobs ADD COLUMN run_id uuid;

-- Of a seat: whole seconds from its lease to the run's last complete checkpoint or to its end. It is paid for no more,
-- whatever ended it. Absent: an ordinary attempt.
ALTER TABLE attempts ADD COLUMN checkpoint_seconds integer
    CONSTRAINT attempts_checkpoint_check CHECK (checkpoint_seconds >= 0);

-- ## Networks

CREATE TABLE networks (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    name text NOT NULL,
    -- VNodes, edges, loss, optimizer: core/networks/spec.py. The canonical text, whose hash is the digest.
    spec text NOT NULL,
    digest bytea NOT NULL CONSTRAINT networks_digest_check CHECK (length(digest) = 32),
    vnode_count integer NOT NULL CONSTRAINT networks_vnodes_check CHECK (vnode_count > 0),
    parameter_count bigint NOT NULL CONSTRAINT networks_parameters_check CHECK (parameter_count >= 0),
    -- Who creates it again with the same key gets the same network.
    idempotency_key text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Gone for people; its runs keep their history.
    deleted_at timestamptz
);
CREATE INDEX networks_account_idx ON networks (account_id, id);
CREATE UNIQUE INDEX networks_key_unique ON networks (account_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Nodes that host VNodes, as their agents say. A node without a row hosts none.
CREATE TABLE pnodes (
    node_id uuid PRIMARY KEY REFERENCES nodes (id),
    -- What decides whether bits are equal: library, instruction set or GPU, threads.
    numeric_class text NOT NULL CONSTRAINT pnodes_class_check CHECK (length(numeric_class) BETWEEN 1 AND 200),
    -- Of one slot: what VNodes may take, and what it computes.
    memory_bytes bigint NOT NULL CONSTRAINT pnodes_memory_check CHECK (memory_bytes > 0),
    flops_per_second double precision NOT NULL
        CONSTRAINT pnodes_flops_check CHECK (flops_per_second > 0 AND flops_per_second < 'infinity'),
    -- Where others have dialled it; empty: only by relay.
    address text NOT NULL DEFAULT '',
    -- Contents that it holds, newest first: runs on them need not fetch them.
    held_sha256s bytea[] NOT NULL DEFAULT '{}' CONSTRAINT pnodes_held_check CHECK (cardinality(held_sha256s) <= 64),
    told_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- ## Runs

CREATE TABLE runs (
    id uuid PRIMARY KEY,
    network_id uuid NOT NULL REFERENCES networks (id),
    account_id uuid NOT NULL REFERENCES accounts (id),
    -- What pays for its seats; another one each time that it is resumed.
    job_id uuid NOT NULL CONSTRAINT runs_job_unique UNIQUE,
    state run_state NOT NULL DEFAULT 'placing',
    -- Who gives orders, by a lease that is renewed every second: a process that serves gRPC. Taken over when it runs
    -- out. Taking over raises the epoch, so that no two ever give orders in the same one.
    owner_id uuid,
    owner_address text NOT NULL DEFAULT '',
    owner_until timestamptz,
    epoch integer NOT NULL DEFAULT 0 CONSTRAINT runs_epoch_check CHECK (epoch >= 0),
    -- How many steps it is to make, how far its curve is whole, and the newest step that every VNode has stored.
    steps integer NOT NULL,
    step integer NOT NULL DEFAULT 0,
    checkpoint_step integer NOT NULL DEFAULT 0,
    -- Reports of checkpoints count from this epoch on.
    reports_from_epoch integer NOT NULL DEFAULT 1,
    numeric_class text NOT NULL DEFAULT '',
    -- 0: exact so far.
    inexact_from_step integer NOT NULL DEFAULT 0,
    recoveries integer NOT NULL DEFAULT 0,
    -- Why it waits or ended, in words.
    message text NOT NULL DEFAULT '',
    -- What was asked for: ceiling, seats, nodes. And its data, [{sha256, size_bytes, format}].
    options jsonb NOT NULL,
    data jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When what was set aside for it is used up.
    expires_at timestamptz NOT NULL,
    stop_asked_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT runs_steps_check CHECK (
        steps > 0 AND checkpoint_step >= 0 AND step >= checkpoint_step AND step <= steps),
    CONSTRAINT runs_exact_check CHECK (inexact_from_step BETWEEN 0 AND steps),
    CONSTRAINT runs_reports_check CHECK (reports_from_epoch BETWEEN 0 AND epoch + 1),
    CONSTRAINT runs_recoveries_check CHECK (recoveries >= 0),
    CONSTRAINT runs_owner_check CHECK ((owner_id IS NULL) = (owner_until IS NULL)),
    CONSTRAINT runs_finished_check CHECK (
        (state IN ('stopped', 'succeeded', 'failed')) = (finished_at IS NOT NULL)),
    -- Who looks at it never sees a run in a state that somebody must have written without an epoch of their own.
    CONSTRAINT runs_started_check CHECK (epoch > 0 OR state IN ('placing', 'stopped', 'failed'))
);
CREATE INDEX runs_network_idx ON runs (network_id, id);
CREATE INDEX runs_account_idx ON runs (account_id, id);
-- What needs an owner.
CREATE INDEX runs_open_idx ON runs (owner_until) WHERE finished_at IS NULL;

-- Places that a run takes on PNodes: one slice of its job each.
CREATE TABLE run_seats (
    run_id uuid NOT NULL REFERENCES runs (id),
    seat text NOT NULL,
    slice_index integer NOT NULL,
    -- Absent: vacant.
    attempt_id uuid,
    node_id uuid,
    numeric_class text NOT NULL DEFAULT '',
    address text NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, seat),
    CONSTRAINT run_seats_slice_unique UNIQUE (run_id, slice_index),
    CONSTRAINT run_seats_vacant_check CHECK ((attempt_id IS NULL) = (node_id IS NULL))
);
CREATE UNIQUE INDEX run_seats_attempt_unique ON run_seats (attempt_id) WHERE attempt_id IS NOT NULL;

-- Where every VNode lives. Its incarnation grows each time that it is placed anew.
CREATE TABLE placements (
    run_id uuid NOT NULL,
    vnode_id text NOT NULL,
    replica integer NOT NULL,
    -- In the order of the network.
    position integer NOT NULL,
    seat text NOT NULL,
    incarnation integer NOT NULL CONSTRAINT placements_incarnation_check CHECK (incarnation > 0),
    PRIMARY KEY (run_id, vnode_id, replica),
    CONSTRAINT placements_seat_fkey FOREIGN KEY (run_id, seat) REFERENCES run_seats (run_id, seat)
);

-- Whatever the code believes: what fences old hosts and owners off never goes back.
CREATE FUNCTION refuse_lower_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the epoch of a run never falls' USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE TRIGGER runs_epoch_never_falls BEFORE UPDATE ON runs
    FOR EACH ROW WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION refuse_lower_epoch();
CREATE FUNCTION refuse_old_incarnation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a VNode is placed anew in a new incarnation only'
        USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE TRIGGER placements_incarnation_grows BEFORE UPDATE ON placements
    FOR EACH ROW WHEN (NEW.incarnation < OLD.incarnation
                       OR NEW.incarnation = OLD.incarnation AND NEW.seat <> OLD.seat)
    EXECUTE FUNCTION refuse_old_incarnation();

-- ## What runs leave behind

-- Steps of which some VNode has stored its state; complete once every one has.
CREATE TABLE run_checkpoints (
    run_id uuid NOT NULL REFERENCES runs (id),
    step integer NOT NULL CONSTRAINT run_checkpoints_step_check CHECK (step > 0),
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    complete_at timestamptz,
    -- Another PNode has come to the same bits.
    audited_at timestamptz,
    PRIMARY KEY (run_id, step),
    CONSTRAINT run_checkpoints_audit_check CHECK (audited_at IS NULL OR complete_at IS NOT NULL)
);

CREATE TABLE run_checkpoint_parts (
    run_id uuid NOT NULL,
    step integer NOT NULL,
    vnode_id text NOT NULL,
    epoch integer NOT NULL CONSTRAINT run_checkpoint_parts_epoch_check CHECK (epoch > 0),
    -- Of the bytes in the blob store, and of the state itself, which is the same however it is written down.
    sha256 bytea NOT NULL CONSTRAINT run_checkpoint_parts_hash_check CHECK (length(sha256) = 32),
    size_bytes bigint NOT NULL CONSTRAINT run_checkpoint_parts_size_check CHECK (size_bytes >= 0),
    digest bytea NOT NULL,
    PRIMARY KEY (run_id, step, vnode_id),
    CONSTRAINT run_checkpoint_parts_step_fkey FOREIGN KEY (run_id, step)
        REFERENCES run_checkpoints (run_id, step) ON DELETE CASCADE
);

-- Contents that hosts of a run have stored, counted among its owner's bytes until they are freed.
CREATE TABLE run_blobs (
    run_id uuid NOT NULL REFERENCES runs (id),
    sha256 bytea NOT NULL CONSTRAINT run_blobs_hash_check CHECK (length(sha256) = 32),
    size_bytes bigint NOT NULL CONSTRAINT run_blobs_size_check CHECK (size_bytes >= 0),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, sha256)
);
-- Whether anybody else has the same content.
CREATE INDEX run_blobs_sha256_idx ON run_blobs (sha256);
CREATE INDEX artifacts_sha256_idx ON artifacts (sha256);

-- What happened to a run, for whoever watches. One number counts its lines and the steps of its curve.
CREATE TABLE run_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL,
    epoch integer NOT NULL,
    step integer NOT NULL,
    message text NOT NULL
);
CREATE INDEX run_events_run_idx ON run_events (run_id, id);

-- The curve: one row for each step, the newest epoch's.
CREATE TABLE run_metrics (
    run_id uuid NOT NULL,
    step integer NOT NULL CONSTRAINT run_metrics_step_check CHECK (step > 0),
    event_id bigint NOT NULL DEFAULT nextval('run_events_id_seq'),
    epoch integer NOT NULL CONSTRAINT run_metrics_epoch_check CHECK (epoch > 0),
    -- The bits of the double that is the loss: nothing is rounded on the way.
    loss_bits bigint NOT NULL,
    samples_per_second double precision NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, step)
);
CREATE INDEX run_metrics_event_idx ON run_metrics (run_id, event_id);
