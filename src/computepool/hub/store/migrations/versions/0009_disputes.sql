-- Disputes over pay, and checkpoints of the books, so that a close need not read all of history. Three views, each of
-- which says once what several queries ask.

-- ## Disputes

CREATE TYPE dispute_state AS ENUM ('open', 'upheld', 'dismissed');
-- Who or what has doubted the pay: the submitter, the operator, a receipt that does not hold, books that refuse.
CREATE TYPE dispute_origin AS ENUM ('submitter', 'operator', 'receipt', 'books');

-- While one is open, the attempt's earning_state is 'disputed' and nothing is released. Upheld: everything went back.
CREATE TABLE disputes (
    id uuid PRIMARY KEY,
    attempt_id uuid NOT NULL REFERENCES attempts (id),
    origin dispute_origin NOT NULL,
    state dispute_state NOT NULL DEFAULT 'open',
    -- Whose job it was, and whose node: both may read of it.
    submitter_id uuid NOT NULL REFERENCES accounts (id),
    owner_id uuid NOT NULL REFERENCES accounts (id),
    -- Why the pay is doubted, and why it was decided so. Both sides read them.
    reason text NOT NULL,
    note text NOT NULL DEFAULT '',
    opened_at timestamptz NOT NULL DEFAULT now(),
    -- Absent: the hub itself.
    opened_by uuid REFERENCES accounts (id),
    decided_at timestamptz,
    decided_by uuid REFERENCES accounts (id),
    CONSTRAINT disputes_reason_check CHECK (length(reason) BETWEEN 1 AND 300 AND length(note) <= 300),
    CONSTRAINT disputes_opened_check CHECK ((origin IN ('submitter', 'operator')) = (opened_by IS NOT NULL)),
    CONSTRAINT disputes_decided_check CHECK (
        (state = 'open') = (decided_at IS NULL) AND (decided_by IS NULL OR decided_at IS NOT NULL)),
    CONSTRAINT disputes_sides_check CHECK (submitter_id <> owner_id)
);
-- Pay is frozen once at a time, and taken back once for ever.
CREATE UNIQUE INDEX disputes_open_idx ON disputes (attempt_id) WHERE state = 'open';
CREATE UNIQUE INDEX disputes_upheld_idx ON disputes (attempt_id) WHERE state = 'upheld';
-- A submitter who was told no does not ask again.
CREATE UNIQUE INDEX disputes_once_idx ON disputes (attempt_id) WHERE origin = 'submitter';
CREATE INDEX disputes_attempt_idx ON disputes (attempt_id, opened_at);
CREATE INDEX disputes_submitter_idx ON disputes (submitter_id, id);
CREATE INDEX disputes_owner_idx ON disputes (owner_id, id);
CREATE INDEX disputes_state_idx ON disputes (state, id);

-- A dispute with the pay that it is about.
CREATE VIEW disputed_pay AS
SELECT d.*, a.job_id, a.slice_index, a.number, a.node_id, a.charged_microcredits, a.release_at,
       a.charged_microcredits - a.fee_microcredits AS earned_microcredits
  FROM disputes d JOIN attempts a ON a.id = d.attempt_id;

-- Pay that was frozen before anybody could decide on it.
INSERT INTO disputes (id, attempt_id, origin, submitter_id, owner_id, reason)
SELECT gen_random_uuid(), a.id, CASE WHEN r.state = 'refused' THEN 'receipt' ELSE 'books' END::dispute_origin,
       j.account_id, n.account_id, 'frozen before disputes were kept'
  FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN nodes n ON n.id = a.node_id
  LEFT JOIN receipts r ON r.id = a.receipt_id
 WHERE a.earning_state = 'disputed';

-- ## Checkpoints

-- What a transfer does: to each account that it names, and to the hold of its job (as `job/` and the job's id).
CREATE VIEW ledger_sides AS
SELECT id, at, source_id AS name, -amount AS delta FROM ledger_transfers
UNION ALL SELECT id, at, target_id, amount FROM ledger_transfers
UNION ALL SELECT id, at, ('job/' || job_id::text) COLLATE "C", -amount FROM ledger_transfers
           WHERE starts_with(source_id, 'submitter_held/')
UNION ALL SELECT id, at, ('job/' || job_id::text) COLLATE "C", amount FROM ledger_transfers
           WHERE starts_with(target_id, 'submitter_held/');

-- What all transfers up to the end of a sealed batch come to: core/ledger/checkpoint.py. The sums of the newest one
-- stand in book_sums, for each account and for each job that holds something; the older ones keep theirs by kind.
CREATE TABLE book_checkpoints (
    -- From 1, without gaps.
    number bigint PRIMARY KEY,
    batch_number bigint NOT NULL REFERENCES audit_batches (number),
    batch_sha256 bytea NOT NULL,
    -- The batch's last id, and a time that no transfer up to it is younger than.
    last_id bigint NOT NULL,
    last_at timestamptz NOT NULL,
    kind_sums jsonb NOT NULL,
    sums_sha256 bytea NOT NULL,
    previous_sha256 bytea NOT NULL,
    sha256 bytea NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT book_checkpoints_number_check CHECK (number >= 1),
    CONSTRAINT book_checkpoints_hash_check CHECK (
        octet_length(batch_sha256) = 32 AND octet_length(sums_sha256) = 32 AND octet_length(previous_sha256) = 32
        AND octet_length(sha256) = 32)
);
CREATE INDEX book_checkpoints_last_at_idx ON book_checkpoints (last_at);
CREATE TRIGGER book_checkpoints_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON book_checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE book_sums (
    name text COLLATE "C" PRIMARY KEY,
    amount bigint NOT NULL
);

-- Nothing is held for a job that is over: so who looks for holds need not look at finished jobs.
ALTER TABLE jobs ADD CONSTRAINT jobs_finished_hold_check CHECK (finished_at IS NULL OR held_remaining = 0);

-- ## The queue

-- Which runs of the queue have slices waiting. Walks from one run to the next through slices_queue_idx: the cost is the
-- number of runs that are asked for, not of slices.
CREATE VIEW queued_runs AS
WITH RECURSIVE runs AS (
    (SELECT shape_id, priority_class, account_id FROM slices WHERE state = 'queued'
      ORDER BY shape_id, priority_class DESC, account_id LIMIT 1)
    UNION ALL
    SELECT n.shape_id, n.priority_class, n.account_id FROM runs r CROSS JOIN LATERAL (
        (SELECT s.shape_id, s.priority_class, s.account_id FROM slices s
          WHERE s.state = 'queued' AND s.shape_id = r.shape_id AND s.priority_class = r.priority_class
            AND s.account_id > r.account_id
          ORDER BY s.shape_id, s.priority_class DESC, s.account_id LIMIT 1)
        UNION ALL
        (SELECT s.shape_id, s.priority_class, s.account_id FROM slices s
          WHERE s.state = 'queued' AND s.shape_id = r.shape_id AND s.priority_class < r.priority_class
          ORDER BY s.shape_id, s.priority_class DESC, s.account_id LIMIT 1)
        UNION ALL
        (SELECT s.shape_id, s.priority_class, s.account_id FROM slices s
          WHERE s.state = 'queued' AND s.shape_id > r.shape_id
          ORDER BY s.shape_id, s.priority_class DESC, s.account_id LIMIT 1)
        LIMIT 1) AS n)
SELECT shape_id, priority_class, account_id FROM runs;
