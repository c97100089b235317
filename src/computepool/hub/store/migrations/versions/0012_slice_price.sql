-- Fixed prices per slice: what jobs have agreed to, what was frozen with a lease, and what shapes are gated by. And which
-- leases were given in a private pool.

ALTER TABLE jobs
    -- What a slice costs before tier and region of the slot that takes it, by the rate card of the submit or by the
    -- submitter's own figure; never more than the job's reserve. Absent: the job pays by the second.
    ADD COLUMN slice_base_microcredits bigint
        CONSTRAINT jobs_slice_base_check CHECK (slice_base_microcredits > 0);

ALTER TABLE attempts
    -- Frozen when the lease was given, in place of a rate: what the slice costs when it is delivered. A try that failed by
    -- the submitter's own fault costs the part of it that the run was of the wall limit.
    ADD COLUMN slice_price_microcredits bigint,
    -- The slot was lent to a private pool: at its owner's price, which says nothing of what strangers pay.
    ADD COLUMN pooled boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT attempts_slice_price_check CHECK (
        slice_price_microcredits IS NULL OR slice_price_microcredits >= 0 AND rate_microcredits_per_hour IS NULL);

ALTER TABLE shapes
    -- Of jobs with a fixed price: what an hour comes to before tier and region, over the whole wall limit. The ceiling
    -- beside it is what the most that a slice may cost comes to.
    ADD COLUMN base_ceiling_microcredits_per_hour bigint,
    ADD CONSTRAINT shapes_base_ceiling_check CHECK (
        base_ceiling_microcredits_per_hour IS NULL
        OR base_ceiling_microcredits_per_hour > 0 AND coalesce(ceiling_microcredits_per_hour, 0) > 0);
