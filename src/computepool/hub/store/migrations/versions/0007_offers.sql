-- Offers: the conditions at which an owner lends a node, and what shapes say to them.

CREATE TYPE offer_audience AS ENUM ('anyone', 'own', 'named');

-- A node without a row is lent to anyone at all hours for all work. Apart from nodes, whose rows every beat writes anew;
-- the floor, which every round reads, stays with the node.
CREATE TABLE offers (
    node_id uuid PRIMARY KEY REFERENCES nodes (id),
    -- The hours of the week at which it is lent, 168 bits, the first byte first: bit 0 is Monday from 0:00 to 1:00 on the
    -- owner's clock. Absent: at all hours.
    hours bytea,
    -- Of that clock, a name of the time zone database.
    zone text,
    -- Slices that may run for less are not taken: core/market/offers.py has the steps.
    seconds_min integer NOT NULL DEFAULT 0,
    -- Of jobs that are taken, of the rate card; empty: all.
    kinds text[] NOT NULL DEFAULT '{}',
    -- Whom it is for; all but the first are private pools, and the owner is welcome in each.
    audience offer_audience NOT NULL DEFAULT 'anyone',
    named uuid[] NOT NULL DEFAULT '{}',
    set_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT offers_hours_check CHECK (octet_length(hours) = 21 AND hours <> decode(repeat('00', 21), 'hex')),
    CONSTRAINT offers_zone_check CHECK ((hours IS NULL) = (zone IS NULL)),
    CONSTRAINT offers_seconds_check CHECK (seconds_min IN (0, 10, 60, 300, 1800, 3600, 14400)),
    CONSTRAINT offers_kinds_check CHECK (cardinality(kinds) <= 32 AND array_position(kinds, NULL) IS NULL),
    CONSTRAINT offers_named_check CHECK (
        (audience = 'named') = (cardinality(named) > 0) AND cardinality(named) <= 100
        AND array_position(named, NULL) IS NULL)
);
-- Few nodes keep hours, and fewer different ones: whoever counts supply asks which of them are closed now.
CREATE INDEX offers_hours_idx ON offers (hours, zone) WHERE hours IS NOT NULL;

ALTER TABLE shapes
    -- What the job is, as its owners-to-be choose by it.
    ADD COLUMN job_kind text NOT NULL DEFAULT 'compute',
    -- How long a slice may run, rounded down to the steps of offers; 0: not known, as of all jobs of before.
    ADD COLUMN slice_seconds integer NOT NULL DEFAULT 0
        CONSTRAINT shapes_slice_seconds_check CHECK (slice_seconds >= 0);
