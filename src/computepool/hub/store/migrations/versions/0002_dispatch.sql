-- Dispatch: order between accounts, prices and speeds of slots, receipts of their own, hubs that know of each other.

CREATE TYPE priority_class AS ENUM ('low', 'normal', 'high');
CREATE TYPE preference AS ENUM ('value', 'cheapest', 'fastest');
CREATE TYPE receipt_state AS ENUM ('unverified', 'verified', 'refused');
ALTER TYPE failure_cause ADD VALUE 'poisonous';

ALTER TABLE accounts
    -- The account's part of the fleet while others wait too, against theirs.
    ADD COLUMN fair_weight double precision NOT NULL DEFAULT 1
        CONSTRAINT accounts_fair_weight_check CHECK (fair_weight BETWEEN 0.01 AND 100),
    -- The highest class that its jobs may ask for; above normal only by the operator's grant.
    ADD COLUMN priority_class_max priority_class NOT NULL DEFAULT 'normal';

-- The least that the owner lends a slot of this node for.
ALTER TABLE nodes ADD COLUMN floor_microcredits_per_hour bigint NOT NULL DEFAULT 0
    CONSTRAINT nodes_floor_check CHECK (floor_microcredits_per_hour >= 0);

-- As the node declares; absent: what its tier is known for.
ALTER TABLE slots ADD COLUMN speed_tflops double precision
    CONSTRAINT slots_speed_check CHECK (speed_tflops > 0);

-- The most that a slice of this shape pays, rounded down in steps of 5 %; absent: any price.
ALTER TABLE shapes ADD COLUMN ceiling_microcredits_per_hour bigint;

ALTER TABLE jobs
    ADD COLUMN priority_class priority_class NOT NULL DEFAULT 'normal',
    ADD COLUMN prefer preference NOT NULL DEFAULT 'value',
    -- The set of placement weights that this job was given, for comparing sets by their outcomes.
    ADD COLUMN weight_set text NOT NULL DEFAULT 'default',
    -- Wanted by then; a wish, unlike expires_at.
    ADD COLUMN deadline_at timestamptz,
    -- Of the slices that succeeded: with their count, how long a slice of this job is expected to run.
    ADD COLUMN run_seconds_sum double precision NOT NULL DEFAULT 0;
CREATE INDEX jobs_deadline_idx ON jobs (deadline_at) WHERE finished_at IS NULL AND deadline_at IS NOT NULL;

ALTER TABLE slices
    ADD COLUMN account_id uuid,
    ADD COLUMN priority_class priority_class NOT NULL DEFAULT 'normal',
    -- Nodes that went silent while they ran it.
    ADD COLUMN killed_count smallint NOT NULL DEFAULT 0,
    -- When it was moved to the front of its account's slices for the sake of its deadline; happens once.
    ADD COLUMN raised_at timestamptz;
UPDATE slices SET account_id = jobs.account_id FROM jobs WHERE jobs.id = slices.job_id;
ALTER TABLE slices ALTER COLUMN account_id SET NOT NULL;

-- The queue: one ordered run per shape, class and account. A backlog of one never hides another, and the order
-- between accounts, which changes with every grant, is not written into the index.
DROP INDEX slices_queue_idx;
CREATE INDEX slices_queue_idx
    ON slices (shape_id, priority_class DESC, account_id, priority DESC, queued_at, job_id, slice_index)
    WHERE state = 'queued';

-- One signed statement of a node about one or more results, as it came.
CREATE TABLE receipts (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL,
    token text NOT NULL,
    state receipt_state NOT NULL DEFAULT 'unverified',
    created_at timestamptz NOT NULL DEFAULT now()
);
-- What the auditor has still to look at.
CREATE INDEX receipts_unverified_idx ON receipts (created_at) WHERE state = 'unverified';

ALTER TABLE attempts
    -- What the account's fair share was charged when the lease was given; corrected at the attempt's end.
    ADD COLUMN expected_seconds double precision NOT NULL DEFAULT 0,
    ADD COLUMN receipt_id uuid;
INSERT INTO receipts (id, node_id, token)
    SELECT id, node_id, receipt FROM attempts WHERE receipt IS NOT NULL AND receipt <> '';
UPDATE attempts SET receipt_id = id WHERE receipt IS NOT NULL AND receipt <> '';
ALTER TABLE attempts DROP COLUMN receipt;
CREATE INDEX attempts_receipt_idx ON attempts (receipt_id) WHERE receipt_id IS NOT NULL;

-- No foreign keys between the tables that every slice's life writes: each would look up its parent once per row,
-- and lock an account's row for all its submits. Parents are written in the same transaction and never deleted.
-- docs/decisions/0005 has the measurement; tests/support/orphans.py looks for orphans after every storm.
ALTER TABLE jobs DROP CONSTRAINT jobs_account_id_fkey, DROP CONSTRAINT jobs_shape_id_fkey;
ALTER TABLE slices DROP CONSTRAINT slices_job_id_fkey;
ALTER TABLE attempts DROP CONSTRAINT attempts_slice_fkey, DROP CONSTRAINT attempts_node_id_fkey;
ALTER TABLE log_chunks DROP CONSTRAINT log_chunks_attempt_id_fkey;

-- Slot-seconds that accounts have had, fading with time: who has had least is served first.
CREATE TABLE fair_usage (
    account_id uuid PRIMARY KEY,
    slot_seconds double precision NOT NULL,
    -- The figure stands as of then.
    counted_at timestamptz NOT NULL
);

-- Evidence of how nodes end what they take, per class of jobs: core/trust/reputation.py says what it means.
CREATE TABLE reliabilities (
    node_id uuid NOT NULL,
    job_class text NOT NULL,
    finished double precision NOT NULL,
    failed double precision NOT NULL,
    faults_running integer NOT NULL,
    counted_at timestamptz NOT NULL,
    PRIMARY KEY (node_id, job_class)
);

-- What each hub process has free, told once a second, so that a slice is not given a larger slot here while a
-- tighter one waits elsewhere.
CREATE TABLE hub_summaries (
    hub_process_id uuid PRIMARY KEY,
    -- {"<kind>|<tier>": free slots}
    free jsonb NOT NULL,
    told_at timestamptz NOT NULL
);

-- Changes that every hub process must hear of: attempts to stop, nodes and accounts that are not what they were.
-- NOTIFY tells at once and may be lost; this is read once a second and cannot be. Rows older than an hour are dropped.
CREATE TABLE hub_changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- controls, node or account.
    kind text NOT NULL,
    -- The node or the account.
    subject_id uuid,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX hub_changes_at_idx ON hub_changes (at);

-- These rows are written a few times within seconds and then rest: room on the page for the next version, and
-- vacuum by the thousand rather than by the fifth part of a table of millions.
ALTER TABLE jobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE slices SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05,
                        autovacuum_vacuum_cost_delay = 0);
ALTER TABLE attempts SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01,
                          autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
