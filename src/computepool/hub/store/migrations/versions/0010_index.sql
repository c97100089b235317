-- The price index: what an hour cost between strangers, at every tick of the market: core/market/index.py.

-- A row for each bucket in which something was paid for that is evidence of a price. Prices are microcredits per hour.
-- Rows older than 90 days are dropped by the tick.
CREATE TABLE price_index (
    tier text NOT NULL,
    region text NOT NULL,
    -- Of the tick; the deals are those that ended since the one before.
    at timestamptz NOT NULL,
    -- The median by seconds.
    price_microcredits_per_hour bigint NOT NULL,
    reference_microcredits_per_hour bigint NOT NULL,
    rate_card_version text NOT NULL,
    deal_count integer NOT NULL,
    -- Paid for by all of them.
    seconds bigint NOT NULL,
    PRIMARY KEY (tier, region, at),
    CONSTRAINT price_index_price_check CHECK (price_microcredits_per_hour > 0 AND reference_microcredits_per_hour >= 0),
    CONSTRAINT price_index_deals_check CHECK (deal_count > 0 AND seconds > 0)
);
CREATE INDEX price_index_at_idx ON price_index (at);
