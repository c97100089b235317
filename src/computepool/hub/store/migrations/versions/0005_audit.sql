-- Audit: the chain over the ledger, the days that were closed, and the way to a node's attempts of a day.

-- Transfers in batches, each with a hash over its rows and the batch before it: core/ledger/audit.py. Ids become visible
-- out of order, so a batch is cut only where no transaction that could still show a smaller id is running.
CREATE TABLE audit_batches (
    -- From 1, without gaps.
    number bigint PRIMARY KEY,
    -- The batch covers all ids from first to last, whether used or not; the next one begins after it.
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    row_count integer NOT NULL,
    amount_sum bigint NOT NULL,
    -- The earliest and the latest `at` of its rows. A statement finds by them where its period begins.
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    previous_sha256 bytea NOT NULL,
    sha256 bytea NOT NULL,
    -- 16 bytes a row: its id, and the beginning of its own hash. To name the row that is bad.
    fingerprints bytea NOT NULL,
    sealed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT audit_batches_number_check CHECK (number >= 1),
    CONSTRAINT audit_batches_range_check CHECK (first_id >= 1 AND last_id >= first_id AND first_at <= last_at),
    CONSTRAINT audit_batches_rows_check CHECK (row_count >= 1 AND octet_length(fingerprints) = 16 * row_count),
    CONSTRAINT audit_batches_hash_check CHECK (octet_length(sha256) = 32 AND octet_length(previous_sha256) = 32)
);
CREATE INDEX audit_batches_first_at_idx ON audit_batches (first_at);
CREATE INDEX audit_batches_last_at_idx ON audit_batches (last_at);
CREATE TRIGGER audit_batches_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_batches
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Rows are appended in the order of their ids and times, nearly: a summary of each few pages finds a range of either,
-- and costs a submit or a completion next to nothing, unlike a tree with an entry for every row.
CREATE INDEX ledger_transfers_range_idx ON ledger_transfers USING brin (id, at)
    WITH (pages_per_range = 32, autosummarize = on);

-- Days that an operator has closed, and what they came to. Closed again, a day must come to the same.
CREATE TABLE book_closings (
    -- In UTC.
    day date PRIMARY KEY,
    closed_at timestamptz NOT NULL DEFAULT now(),
    closed_by uuid NOT NULL REFERENCES accounts (id),
    -- Of the day's figures: core/ledger/closing.py.
    sha256 bytea NOT NULL CONSTRAINT book_closings_hash_check CHECK (octet_length(sha256) = 32)
);
CREATE TRIGGER book_closings_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON book_closings
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The payout file of a day.
CREATE INDEX payouts_sent_idx ON payouts (sent_at) WHERE sent_at IS NOT NULL;

-- A node's attempts of a day or a month. Entered when an attempt ends, not when it is leased.
CREATE INDEX attempts_node_end_idx ON attempts (node_id, finished_at) WHERE finished_at IS NOT NULL;
