-- An attempt that was superseded has worked for nothing, by nobody's fault of its own: its time is made good out of the
-- fee that its slice has brought.

ALTER TYPE ledger_transfer_kind ADD VALUE 'make_good';

ALTER TABLE attempts
    -- What was paid for its time out of the fee; zero: nothing was due. Absent: not looked at, or not superseded.
    ADD COLUMN made_good_microcredits bigint,
    ADD CONSTRAINT attempts_made_good_check CHECK (
        made_good_microcredits IS NULL OR made_good_microcredits >= 0 AND cause IS NOT DISTINCT FROM 'superseded');

-- Those that wait to be looked at: until the pay for what was delivered in their place is out of reach.
CREATE INDEX attempts_superseded_idx ON attempts (finished_at)
    WHERE cause = 'superseded' AND made_good_microcredits IS NULL;
