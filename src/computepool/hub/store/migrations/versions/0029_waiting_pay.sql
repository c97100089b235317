-- Pay waits for its node: to pass probation, or a suspicion. It must not stand before all other pay meanwhile.

ALTER TABLE attempts
    -- When its holdback was over, of pay that waits since then. release_at is when it is looked at again.
    ADD COLUMN pay_waits_since timestamptz;

-- A node's, for when its wait is over.
CREATE INDEX attempts_waiting_pay_idx ON attempts (node_id)
    WHERE earning_state = 'pending' AND pay_waits_since IS NOT NULL;
