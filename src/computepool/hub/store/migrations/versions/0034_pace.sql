-- How fast runs went with a PNode, against what its figures promise.
ALTER TABLE pnodes
    -- Of runs over several PNodes since its agent described it; the newest counts for half. Null: none that tells.
    ADD COLUMN pace_ratio double precision,
    -- When the last step of them was.
    ADD COLUMN paced_at timestamptz,
    ADD CONSTRAINT pnodes_pace_check CHECK (pace_ratio > 0 AND pace_ratio < 'Infinity'),
    ADD CONSTRAINT pnodes_paced_check CHECK ((pace_ratio IS NULL) = (paced_at IS NULL));
