-- When each slot is next asked to show its speed.
CREATE TABLE sittings (
    node_id uuid NOT NULL REFERENCES nodes (id),
    -- As in proofs: one CPU slot stands for all of them.
    slot text NOT NULL,
    -- Drawn at random, and told to nobody.
    due_at timestamptz NOT NULL,
    -- Since when the hub wants it; absent: not yet.
    asked_at timestamptz,
    -- When the node was first told, with the slot idle; absent: not yet.
    told_at timestamptz,
    -- Requests in a row that went unanswered.
    missed_count integer NOT NULL DEFAULT 0,
    -- Verdicts in a row that were unsure.
    unsure_count integer NOT NULL DEFAULT 0,
    PRIMARY KEY (node_id, slot),
    CONSTRAINT sittings_told_check CHECK (told_at IS NULL OR asked_at IS NOT NULL),
    CONSTRAINT sittings_counts_check CHECK (missed_count >= 0 AND unsure_count >= 0)
);
CREATE INDEX sittings_due_idx ON sittings (due_at) WHERE asked_at IS NULL;
CREATE INDEX sittings_asked_idx ON sittings (node_id) WHERE asked_at IS NOT NULL;

-- Nodes that are enrolled already.
INSERT INTO sittings (node_id, slot, due_at)
SELECT s.node_id, s.name, clock_timestamp() - ln(1 - random()) * interval '3 days'
  FROM slots s JOIN nodes n ON n.id = s.node_id
 WHERE NOT n.synthetic AND n.state <> 'removed' AND (s.kind = 'gpu' OR s.name = 'cpu:0');

-- A proof that was lost by silence stays as a row, with the reason for the owner; it shows as little as a forged one.
ALTER TABLE proofs
    DROP CONSTRAINT proofs_state_check,
    DROP CONSTRAINT proofs_shown_check,
    ADD CONSTRAINT proofs_shown_check CHECK (
        (shown_tflops IS NULL) = (state IN ('forged', 'unproven')) AND shown_tflops > 0);

-- Where nodes call from, to tell strangers from neighbours: 93.184.216.0/24, or a /48 of IPv6; absent: unknown.
ALTER TABLE nodes ADD COLUMN network text;
CREATE INDEX nodes_network_idx ON nodes (network) WHERE network IS NOT NULL;

ALTER TABLE accounts
    -- How many new nodes it may bring in 30 days, by the operator's word; absent: as many as others.
    ADD COLUMN new_nodes_max integer,
    ADD CONSTRAINT accounts_new_nodes_check CHECK (new_nodes_max >= 0);

-- Inputs that no job may name, by the operator's word.
CREATE TABLE blocked_inputs (
    -- Of a file, or of the text of a script.
    sha256 bytea PRIMARY KEY,
    why text NOT NULL,
    blocked_by uuid NOT NULL REFERENCES accounts (id),
    blocked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT blocked_inputs_sha256_check CHECK (octet_length(sha256) = 32)
);

-- Whose jobs are to be stopped: looked for every few seconds, and nearly always nobody's.
CREATE INDEX accounts_suspended_idx ON accounts (id) WHERE suspended_at IS NOT NULL;
