-- Audits of runs: what came of replaying spans elsewhere, and nodes that computed wrongly.

-- How a host loses its seat to an audit, and why pay that was settled goes back.
ALTER TYPE failure_cause ADD VALUE 'wrong_result';
ALTER TYPE failure_cause ADD VALUE 'doubted';
ALTER TYPE dispute_origin ADD VALUE 'audit';

-- Nodes that are known to compute wrongly: they get no seats for a while.
CREATE TABLE bugged_nodes (
    node_id uuid PRIMARY KEY REFERENCES nodes (id),
    bugged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The run whose audit has shown it.
    run_id uuid NOT NULL REFERENCES runs (id)
);

CREATE TYPE audit_outcome AS ENUM ('agreed', 'wrong', 'undecided', 'unverified');

-- One row for each span between two checkpoints of a seat that was looked at, written when it is decided.
CREATE TABLE run_audits (
    id uuid PRIMARY KEY,
    run_id uuid NOT NULL REFERENCES runs (id),
    epoch integer NOT NULL,
    seat text NOT NULL,
    -- Who filled the seat then.
    attempt_id uuid NOT NULL,
    node_id uuid NOT NULL REFERENCES nodes (id),
    -- From the checkpoint after so many steps to the one after so many.
    from_step integer NOT NULL,
    until_step integer NOT NULL,
    outcome audit_outcome NOT NULL,
    -- Who has replayed it, in order.
    witness_ids uuid[] NOT NULL,
    message text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT run_audits_span_check CHECK (epoch > 0 AND from_step >= 0 AND until_step > from_step),
    CONSTRAINT run_audits_agreed_check CHECK (outcome <> 'agreed' OR cardinality(witness_ids) > 0),
    CONSTRAINT run_audits_other_check CHECK (NOT node_id = ANY(witness_ids))
);
CREATE INDEX run_audits_run_idx ON run_audits (run_id, id);
-- What is known of a node, newest first.
CREATE INDEX run_audits_node_idx ON run_audits (node_id, id DESC) WHERE outcome IN ('agreed', 'wrong');
