-- Money: the ledger, and what jobs and attempts know of it. All amounts are whole microcredits.

-- ## The ledger

CREATE TYPE ledger_account_kind AS ENUM (
    'submitter_available', 'submitter_held', 'owner_pending', 'owner_available', 'receivable', 'fee',
    'payout_clearing', 'world');
CREATE TYPE ledger_transfer_kind AS ENUM (
    'top_up', 'hold', 'settle', 'pay_to', 'refund', 'release', 'reverse', 'spend_earnings', 'payout_reserve',
    'payout_confirm', 'payout_fail', 'payout_return', 'top_up_refund', 'chargeback', 'repay', 'bonus');

-- What each account comes to: the sum of its transfers, kept so that nobody has to add them up.
CREATE TABLE ledger_accounts (
    -- Kind, slash, and the person's id or the shard: core/ledger/accounts.py. In "C" so that the order of locks is the
    -- same here and in Python.
    id text COLLATE "C" PRIMARY KEY,
    kind ledger_account_kind NOT NULL,
    -- The person; absent for the platform's own.
    account_id uuid,
    shard smallint NOT NULL DEFAULT 0,
    balance bigint NOT NULL DEFAULT 0,
    CONSTRAINT ledger_accounts_id_check CHECK (id = kind::text || '/' || coalesce(account_id::text, shard::text)),
    CONSTRAINT ledger_accounts_owner_check CHECK (
        (account_id IS NULL) = (kind IN ('fee', 'payout_clearing', 'world')) AND (account_id IS NULL OR shard = 0)),
    -- Whatever the code believes, nobody spends what is not there. docs/decisions/0009 says why each kind has a side.
    CONSTRAINT ledger_accounts_side_check CHECK (
        CASE WHEN kind IN ('world', 'receivable') THEN balance BETWEEN -1000000000000000000 AND 0
             ELSE balance BETWEEN 0 AND 1000000000000000000 END)
);
-- Few rows, written all day: room for their next versions on the same page.
ALTER TABLE ledger_accounts SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01,
                                 autovacuum_vacuum_cost_delay = 0);

-- The platform's own are there from the start; people's are opened when they are first used.
INSERT INTO ledger_accounts (id, kind, shard)
SELECT kind::text || '/' || shard, kind, shard
  FROM unnest(ARRAY['fee', 'payout_clearing', 'world']::ledger_account_kind[], ARRAY[16, 1, 16])
           AS platform (kind, shard_count), generate_series(0, shard_count - 1) AS shard;

-- Every movement, for ever. One row names both sides. No foreign keys: written at every submit and completion.
CREATE TABLE ledger_transfers (
    id bigint GENERATED ALWAYS AS IDENTITY,
    -- The posting's name, used once for ever; all that belongs to a job begins with the job's id and a slash.
    key text COLLATE "C" NOT NULL,
    -- Its place in the posting.
    leg smallint NOT NULL,
    kind ledger_transfer_kind NOT NULL,
    source_id text COLLATE "C" NOT NULL,
    target_id text COLLATE "C" NOT NULL,
    amount bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    job_id uuid,
    -- Absent where one settlement is for several attempts: what each came to stands in attempts.
    attempt_id uuid,
    payout_id uuid,
    top_up_id uuid,
    PRIMARY KEY (key, leg),
    CONSTRAINT ledger_transfers_key_check CHECK (length(key) BETWEEN 1 AND 200 AND leg BETWEEN 0 AND 31),
    CONSTRAINT ledger_transfers_sides_check CHECK (source_id <> target_id),
    CONSTRAINT ledger_transfers_amount_check CHECK (amount BETWEEN 1 AND 1000000000000000)
);
-- A person's statement. What moves between two accounts of one person at every job stands under its source alone; the
-- platform's own accounts have too many to be listed.
CREATE INDEX ledger_transfers_source_idx ON ledger_transfers (source_id, id)
    WHERE source_id NOT LIKE 'fee/%' AND source_id NOT LIKE 'world/%';
CREATE INDEX ledger_transfers_target_idx ON ledger_transfers (target_id, id)
    WHERE target_id NOT LIKE 'fee/%' AND target_id NOT LIKE 'world/%' AND kind NOT IN ('hold', 'refund');

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% never change: post the opposite instead', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME;
END $$;
-- By statement: a row that is written pays nothing for it.
CREATE TRIGGER ledger_transfers_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_transfers
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- ## What jobs and attempts know of it

ALTER TABLE jobs
    -- What is left of the job's hold; together they are what the submitters' held accounts come to.
    ADD COLUMN held_remaining bigint NOT NULL DEFAULT 0
        CONSTRAINT jobs_held_remaining_check CHECK (held_remaining >= 0),
    -- The most that one of its slices can cost. What is held covers it for every slice that is not finished.
    ADD COLUMN reserve_microcredits bigint NOT NULL DEFAULT 0
        CONSTRAINT jobs_reserve_check CHECK (reserve_microcredits >= 0),
    -- What its attempts have cost so far.
    ADD COLUMN charged_microcredits bigint NOT NULL DEFAULT 0
        CONSTRAINT jobs_charged_check CHECK (charged_microcredits >= 0);

CREATE TYPE earning_state AS ENUM ('pending', 'disputed', 'released', 'reversed');

ALTER TABLE attempts
    -- Frozen when the lease was given, with the version of the rate card that it came from.
    ADD COLUMN rate_microcredits_per_hour bigint
        CONSTRAINT attempts_rate_check CHECK (rate_microcredits_per_hour >= 0),
    ADD COLUMN rate_card_version text,
    -- The platform's share and the owner's holdback, as they were then.
    ADD COLUMN fee_ppm integer CONSTRAINT attempts_fee_ppm_check CHECK (fee_ppm BETWEEN 0 AND 200000),
    ADD COLUMN holdback_seconds integer CONSTRAINT attempts_holdback_check CHECK (holdback_seconds >= 0),
    -- What the submitter was charged for it, owner's part and fee together; the transfers may sum several attempts.
    ADD COLUMN charged_microcredits bigint
        CONSTRAINT attempts_charged_check CHECK (charged_microcredits >= 0),
    -- The platform's part of that.
    ADD COLUMN fee_microcredits bigint
        CONSTRAINT attempts_fee_check CHECK (fee_microcredits BETWEEN 0 AND coalesce(charged_microcredits, 0)),
    -- Where the owner's part stands, and when the holdback is over. Absent where nothing was charged.
    ADD COLUMN earning_state earning_state,
    ADD COLUMN release_at timestamptz,
    ADD CONSTRAINT attempts_earning_check CHECK (
        (earning_state IS NULL) = (release_at IS NULL)
        AND (earning_state IS NULL) = (coalesce(charged_microcredits, 0) = 0));
CREATE INDEX attempts_release_idx ON attempts (release_at) WHERE earning_state = 'pending';
