-- What a PNode sends to others, and how long the first byte of it takes: placements and plans reckon with it.

-- As its owner says; null: nothing was said.
ALTER TABLE pnodes
    ADD COLUMN bytes_per_second double precision CONSTRAINT pnodes_rate_check
        CHECK (bytes_per_second > 0 AND bytes_per_second < 'infinity'),
    ADD COLUMN latency_seconds double precision CONSTRAINT pnodes_latency_check
        CHECK (latency_seconds >= 0 AND latency_seconds < 'infinity'),
    -- As a hub saw it when a host stored a large content; null: none was stored yet.
    ADD COLUMN measured_bytes_per_second double precision CONSTRAINT pnodes_measured_rate_check
        CHECK (measured_bytes_per_second > 0 AND measured_bytes_per_second < 'infinity');
