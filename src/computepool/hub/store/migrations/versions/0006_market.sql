-- The market: versions of the rate card, what is kept of every bucket from tick to tick, and the history of spot.

-- Every rate card that a hub has started with. Attempts name the version that priced them.
CREATE TABLE rate_cards (
    version text PRIMARY KEY CONSTRAINT rate_cards_version_check CHECK (version ~ '^[0-9a-f]{16}$'),
    -- TOML, as the operator wrote it. Two texts that say the same are one version, and the first one is kept.
    content text NOT NULL,
    first_used_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row: when the market last moved. All hubs share one tick.
CREATE TABLE market_clock (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT market_clock_only_row_check CHECK (only_row),
    ticked_at timestamptz NOT NULL
);

-- Each bucket (a tier in a region of the rate card) as of its last tick: core/market/spot.py. Ratios are parts in a
-- million, prices microcredits per hour.
CREATE TABLE spot_states (
    tier text NOT NULL,
    region text NOT NULL,
    surge_ppm integer NOT NULL,
    -- Where the surge is going, the bound of its last move, and the direction of that.
    target_ppm integer NOT NULL,
    step_ppm integer NOT NULL,
    direction smallint NOT NULL,
    spot_microcredits_per_hour bigint NOT NULL,
    reference_microcredits_per_hour bigint NOT NULL,
    rate_card_version text NOT NULL,
    -- Slots that were lent for no more than spot, how many of them were busy at that price, and slices that waited and
    -- would have paid it.
    slot_count integer NOT NULL,
    busy_count integer NOT NULL,
    waiting_count integer NOT NULL,
    -- Somebody waits who pays spot: nobody starts for less.
    contested boolean NOT NULL,
    -- How long a slice holds a slot, as expected of those that ran; absent while none does.
    seconds_mean integer,
    -- What those that ran would pay at most, as [ceiling, expected seconds of all of them].
    bids jsonb NOT NULL DEFAULT '[]',
    at timestamptz NOT NULL,
    PRIMARY KEY (tier, region),
    CONSTRAINT spot_states_surge_check CHECK (surge_ppm > 0 AND target_ppm > 0 AND step_ppm > 0),
    CONSTRAINT spot_states_direction_check CHECK (direction IN (-1, 0, 1)),
    CONSTRAINT spot_states_price_check CHECK (
        spot_microcredits_per_hour >= 0 AND reference_microcredits_per_hour >= 0),
    CONSTRAINT spot_states_counts_check CHECK (
        busy_count >= 0 AND busy_count <= slot_count AND waiting_count >= 0),
    CONSTRAINT spot_states_seconds_check CHECK (seconds_mean > 0)
);

-- The same over time: a row for each bucket that had slots at a tick. Rows older than 90 days are dropped by the tick.
CREATE TABLE spot_history (
    tier text NOT NULL,
    region text NOT NULL,
    at timestamptz NOT NULL,
    surge_ppm integer NOT NULL CONSTRAINT spot_history_surge_check CHECK (surge_ppm > 0),
    spot_microcredits_per_hour bigint NOT NULL
        CONSTRAINT spot_history_price_check CHECK (spot_microcredits_per_hour >= 0),
    reference_microcredits_per_hour bigint NOT NULL,
    rate_card_version text NOT NULL,
    slot_count integer NOT NULL,
    busy_count integer NOT NULL,
    waiting_count integer NOT NULL,
    PRIMARY KEY (tier, region, at),
    CONSTRAINT spot_history_counts_check CHECK (
        busy_count >= 0 AND busy_count <= slot_count AND waiting_count >= 0)
);
CREATE INDEX spot_history_at_idx ON spot_history (at);
