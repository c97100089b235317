-- Results that are run again by others: which, by whom, what came of it, and where nodes stand by it.

CREATE TYPE verify_mode AS ENUM ('audit', 'quorum', 'none');
CREATE TYPE standing AS ENUM ('clear', 'suspect', 'bugged', 'returning', 'barred');
CREATE TYPE check_state AS ENUM ('open', 'ruled', 'closed');
CREATE TYPE check_outcome AS ENUM ('agreed', 'found_wrong', 'undecided', 'no_auditor');

ALTER TABLE jobs
    -- How its results are checked; null: they are not.
    ADD COLUMN verify verify_mode CONSTRAINT jobs_verify_check CHECK (verify <> 'none'),
    -- Runs of it that should have agreed did not.
    ADD COLUMN nondeterministic boolean NOT NULL DEFAULT false,
    -- It runs one slice of another job again, to check the result of this attempt.
    ADD COLUMN checks_attempt_id uuid;
CREATE INDEX jobs_checks_idx ON jobs (checks_attempt_id) WHERE checks_attempt_id IS NOT NULL;
CREATE INDEX slices_verifying_idx ON slices (job_id) WHERE state = 'verifying';

CREATE TABLE node_trust (
    node_id uuid PRIMARY KEY REFERENCES nodes (id),
    -- Discounted counts, as of counted_at; validated_count is of both and never fades.
    right_weight double precision NOT NULL DEFAULT 0,
    wrong_weight double precision NOT NULL DEFAULT 0,
    validated_count integer NOT NULL DEFAULT 0,
    counted_at timestamptz,
    standing standing NOT NULL DEFAULT 'clear',
    since timestamptz,
    -- validated_count at each of the last wrong results.
    wrong_at integer[] NOT NULL DEFAULT '{}',
    bugged_count integer NOT NULL DEFAULT 0,
    returning_left integer NOT NULL DEFAULT 0,
    -- The operator vouches for it.
    is_vouched boolean NOT NULL DEFAULT false,
    serving_since timestamptz,
    CONSTRAINT node_trust_weights_check CHECK (right_weight >= 0 AND wrong_weight >= 0),
    CONSTRAINT node_trust_counts_check CHECK (validated_count >= 0 AND bugged_count >= 0 AND returning_left >= 0)
);
CREATE INDEX node_trust_standing_idx ON node_trust (standing, node_id) WHERE standing <> 'clear';

CREATE TABLE checks (
    -- Whose result is checked.
    attempt_id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    node_id uuid NOT NULL,
    mode verify_mode NOT NULL,
    -- The result is not delivered before this is over.
    withheld boolean NOT NULL,
    -- Opened because another result of the node was wrong.
    retro boolean NOT NULL DEFAULT false,
    state check_state NOT NULL DEFAULT 'open',
    outcome check_outcome,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it is to be looked at next: whoever looks moves it on, so that two hubs do not.
    look_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz,
    -- How many further runs were asked for.
    asked_count integer NOT NULL DEFAULT 0,
    -- By attempt: right, wrong, or null where nobody is blamed.
    verdicts jsonb NOT NULL DEFAULT '{}',
    -- What is still to be done about nodes: [[node, effect], ...].
    effects jsonb NOT NULL DEFAULT '[]',
    CONSTRAINT checks_outcome_check CHECK ((state = 'open') = (outcome IS NULL)),
    CONSTRAINT checks_closed_check CHECK ((state = 'closed') = (closed_at IS NOT NULL))
);
CREATE INDEX checks_due_idx ON checks (look_at) WHERE state <> 'closed';
CREATE INDEX checks_job_idx ON checks (job_id, slice_index);
CREATE INDEX checks_node_idx ON checks (node_id, opened_at);

-- The way back of a node: results that are known to be right, which it has to get, too, for nothing.
CREATE TABLE trials (
    -- The job that the node runs.
    job_id uuid PRIMARY KEY,
    node_id uuid NOT NULL,
    -- Whose result is known to be right.
    attempt_id uuid NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz,
    -- Null: it came to nothing.
    was_right boolean,
    CONSTRAINT trials_closed_check CHECK (closed_at IS NOT NULL OR was_right IS NULL)
);
CREATE UNIQUE INDEX trials_open_idx ON trials (node_id) WHERE closed_at IS NULL;
CREATE INDEX trials_node_idx ON trials (node_id, attempt_id);
