-- Proof of hardware: rounds of seeded, timed work, and what each slot's node has shown by them.

CREATE TYPE proof_state AS ENUM ('unproven', 'proven', 'slower', 'unsure', 'forged');

-- One round: a seed handed out, a commitment, then the segments that the hub wants to see.
CREATE TABLE challenges (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL REFERENCES nodes (id),
    slot text NOT NULL,
    -- What is to be shown, as the node declared it when the round began: another card makes the round void.
    claim text NOT NULL,
    seed bytea NOT NULL,
    size integer NOT NULL,
    products integer NOT NULL,
    -- Of the card's memory, to be filled after the commitment; 0: none.
    memory_bytes bigint NOT NULL DEFAULT 0,
    issued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A commitment that comes later is not taken.
    expires_at timestamptz NOT NULL,
    committed_at timestamptz,
    root bytea,
    -- Which segments are to be opened, chosen after the commitment.
    segments integer[],
    -- Which words of the filled memory are to be read.
    words bigint[],
    opened_at timestamptz,
    -- Whether all that was looked at is what the work comes to.
    is_right boolean,
    CONSTRAINT challenges_work_check CHECK (octet_length(seed) = 32 AND size BETWEEN 64 AND 4096
        AND products BETWEEN 1 AND 4096 AND memory_bytes >= 0),
    CONSTRAINT challenges_expiry_check CHECK (expires_at > issued_at),
    CONSTRAINT challenges_commitment_check CHECK (
        (committed_at IS NULL) = (root IS NULL) AND (committed_at IS NULL) = (segments IS NULL)
        AND (committed_at IS NULL) = (words IS NULL)
        AND octet_length(root) = 32 AND committed_at BETWEEN issued_at AND expires_at),
    CONSTRAINT challenges_opening_check CHECK (
        (opened_at IS NULL) = (is_right IS NULL) AND (opened_at IS NULL OR committed_at IS NOT NULL))
);
-- Serves the count of what was handed out lately, and the rounds since the last verdict.
CREATE INDEX challenges_node_idx ON challenges (node_id, slot, issued_at);

-- What a slot's node has shown. A slot without a row has shown nothing yet.
CREATE TABLE proofs (
    node_id uuid NOT NULL REFERENCES nodes (id),
    slot text NOT NULL,
    -- Of the rounds that it rests on; a node that declares another card begins anew.
    claim text NOT NULL,
    claimed_tier text NOT NULL,
    state proof_state NOT NULL,
    -- What the slot counts as by this proof.
    tier text NOT NULL,
    shown_tflops double precision,
    -- Between the best and the worst round, as a part of the best.
    spread_ratio double precision NOT NULL DEFAULT 0,
    -- In plain words, for the owner.
    reason text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (node_id, slot),
    CONSTRAINT proofs_state_check CHECK (state <> 'unproven'),
    CONSTRAINT proofs_shown_check CHECK ((shown_tflops IS NULL) = (state = 'forged') AND shown_tflops > 0),
    CONSTRAINT proofs_spread_check CHECK (spread_ratio BETWEEN 0 AND 1)
);
