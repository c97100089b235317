-- Payments: cash in and out, where it goes, what providers say of it, and accounts that are frozen for it.
-- Cash is counted in minor units (paise, cents) of its currency; the credits that stand for it are beside it.

CREATE TYPE top_up_state AS ENUM ('requested', 'paid', 'failed', 'refunded', 'charged_back', 'paid_back_twice');
CREATE TYPE payout_state AS ENUM (
    'requested', 'reserved', 'approved', 'sent', 'unknown', 'confirmed', 'failed', 'returned');
CREATE TYPE claim_verdict AS ENUM ('applied', 'old_news', 'refused');

-- Accounts that may neither submit nor be paid out. A table and not a column: it keeps who lifted what, and hubs of
-- yesterday read every column of an account.
CREATE TABLE account_freezes (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    why text NOT NULL,
    -- The top-up whose cash was taken back.
    top_up_id uuid,
    frozen_at timestamptz NOT NULL DEFAULT now(),
    lifted_at timestamptz,
    lifted_by uuid REFERENCES accounts (id),
    CONSTRAINT account_freezes_lifted_check CHECK ((lifted_at IS NULL) = (lifted_by IS NULL))
);
CREATE UNIQUE INDEX account_freezes_in_force_idx ON account_freezes (account_id) WHERE lifted_at IS NULL;

CREATE TABLE top_ups (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    idempotency_key text NOT NULL,
    provider text NOT NULL,
    -- ISO 4217.
    currency text NOT NULL CONSTRAINT top_ups_currency_check CHECK (currency ~ '^[A-Z]{3}$'),
    amount_minor bigint NOT NULL CONSTRAINT top_ups_minor_check CHECK (amount_minor > 0),
    amount_microcredits bigint NOT NULL
        CONSTRAINT top_ups_amount_check CHECK (amount_microcredits BETWEEN 1 AND 1000000000000000),
    state top_up_state NOT NULL DEFAULT 'requested',
    -- The provider's own name for it, and where and how the person pays; once the provider has said so.
    provider_reference text,
    pay_url text NOT NULL DEFAULT '',
    instructions text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    paid_at timestamptz,
    -- By refund or chargeback, whichever came first.
    paid_back_at timestamptz,
    -- When the provider was last asked what became of it.
    asked_at timestamptz,
    CONSTRAINT top_ups_key_unique UNIQUE (account_id, idempotency_key),
    CONSTRAINT top_ups_paid_check CHECK ((state IN ('requested', 'failed')) = (paid_at IS NULL)),
    CONSTRAINT top_ups_paid_back_check CHECK (
        (state IN ('refunded', 'charged_back', 'paid_back_twice')) = (paid_back_at IS NOT NULL))
);
CREATE INDEX top_ups_account_idx ON top_ups (account_id, id);
CREATE INDEX top_ups_day_idx ON top_ups (account_id, created_at);
CREATE INDEX top_ups_open_idx ON top_ups (asked_at NULLS FIRST, id) WHERE state = 'requested';

-- Where an account's money goes. Rows never change: a payout keeps the one it was asked for with.
CREATE TABLE payout_details (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    -- ISO-2; decides currency and minimum.
    region text NOT NULL CONSTRAINT payout_details_region_check CHECK (region ~ '^[A-Z]{2}$'),
    currency text NOT NULL CONSTRAINT payout_details_currency_check CHECK (currency ~ '^[A-Z]{3}$'),
    -- As the provider understands it: a bank account, an address, a token.
    destination text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX payout_details_account_idx ON payout_details (account_id, created_at);

CREATE TABLE payouts (
    id uuid PRIMARY KEY,
    account_id uuid NOT NULL REFERENCES accounts (id),
    idempotency_key text NOT NULL,
    -- What was asked for; the cash is as many whole minor units as it pays for.
    asked_microcredits bigint NOT NULL,
    provider text NOT NULL,
    details_id uuid NOT NULL REFERENCES payout_details (id),
    currency text NOT NULL CONSTRAINT payouts_currency_check CHECK (currency ~ '^[A-Z]{3}$'),
    amount_minor bigint NOT NULL CONSTRAINT payouts_minor_check CHECK (amount_minor > 0),
    amount_microcredits bigint NOT NULL
        CONSTRAINT payouts_amount_check CHECK (amount_microcredits BETWEEN 1 AND asked_microcredits),
    state payout_state NOT NULL DEFAULT 'requested',
    provider_reference text,
    -- Why it failed, for the owner to read.
    failure text,
    created_at timestamptz NOT NULL DEFAULT now(),
    reserved_at timestamptz,
    approved_at timestamptz,
    approved_by uuid REFERENCES accounts (id),
    -- Written before the provider is called, and once.
    sent_at timestamptz,
    -- The provider said that it has it.
    acknowledged_at timestamptz,
    confirmed_at timestamptz,
    returned_at timestamptz,
    failed_at timestamptz,
    asked_at timestamptz,
    CONSTRAINT payouts_key_unique UNIQUE (account_id, idempotency_key),
    CONSTRAINT payouts_asked_check CHECK (asked_microcredits <= 1000000000000000),
    CONSTRAINT payouts_reserved_check CHECK ((state = 'requested') = (reserved_at IS NULL)),
    CONSTRAINT payouts_approved_check CHECK (
        (approved_at IS NOT NULL OR state NOT IN ('approved', 'sent', 'unknown', 'confirmed', 'returned'))
        AND (approved_at IS NULL) = (approved_by IS NULL)),
    CONSTRAINT payouts_sent_check CHECK (
        (sent_at IS NOT NULL OR state NOT IN ('sent', 'unknown', 'confirmed', 'returned'))
        AND (sent_at IS NULL OR state NOT IN ('requested', 'reserved', 'approved'))
        AND (sent_at IS NULL OR approved_at IS NOT NULL)),
    CONSTRAINT payouts_confirmed_check CHECK ((state IN ('confirmed', 'returned')) = (confirmed_at IS NOT NULL)),
    CONSTRAINT payouts_returned_check CHECK ((state = 'returned') = (returned_at IS NOT NULL)),
    CONSTRAINT payouts_failed_check CHECK (
        (state = 'failed') = (failed_at IS NOT NULL) AND (failed_at IS NULL) = (failure IS NULL))
);
CREATE INDEX payouts_account_idx ON payouts (account_id, id);
CREATE INDEX payouts_day_idx ON payouts (account_id, created_at);
CREATE INDEX payouts_waiting_idx ON payouts (state, id) WHERE state IN ('requested', 'reserved', 'approved');
CREATE INDEX payouts_open_idx ON payouts (asked_at NULLS FIRST, id) WHERE state IN ('approved', 'sent', 'unknown');

-- Whatever the code believes: a payout is sent once, and what it is never changes. Only refuses.
CREATE FUNCTION refuse_payout_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.sent_at IS NOT NULL AND NEW.sent_at IS DISTINCT FROM OLD.sent_at THEN
        RAISE EXCEPTION 'payout % was sent already', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    IF (NEW.id, NEW.account_id, NEW.provider, NEW.details_id, NEW.currency, NEW.amount_minor, NEW.amount_microcredits)
       IS DISTINCT FROM
       (OLD.id, OLD.account_id, OLD.provider, OLD.details_id, OLD.currency, OLD.amount_minor, OLD.amount_microcredits)
    THEN
        RAISE EXCEPTION 'payout % cannot be made another', OLD.id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER payouts_refuse_change BEFORE UPDATE ON payouts FOR EACH ROW EXECUTE FUNCTION refuse_payout_change();

-- Every word of a provider, or of the operator in its stead, and what became of it.
CREATE TABLE provider_events (
    provider text NOT NULL,
    -- The provider's own; those that begin with ~ are answers to our questions, or the operator's.
    event_id text NOT NULL,
    kind text NOT NULL,
    -- The top-up or payout that it speaks of, by our id, if it is one.
    subject_id uuid NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    reference text NOT NULL,
    body_sha256 bytea NOT NULL,
    verdict claim_verdict NOT NULL,
    -- Why it was refused.
    doubt text,
    -- The operator who said it by hand.
    said_by uuid REFERENCES accounts (id),
    received_at timestamptz NOT NULL DEFAULT now(),
    -- An operator has looked at the refusal.
    reviewed_at timestamptz,
    reviewed_by uuid REFERENCES accounts (id),
    note text NOT NULL DEFAULT '',
    PRIMARY KEY (provider, event_id),
    CONSTRAINT provider_events_doubt_check CHECK ((verdict = 'refused') = (doubt IS NOT NULL)),
    CONSTRAINT provider_events_reviewed_check CHECK ((reviewed_at IS NULL) = (reviewed_by IS NULL))
);
CREATE INDEX provider_events_subject_idx ON provider_events (subject_id, received_at);
CREATE INDEX provider_events_refused_idx ON provider_events (received_at, provider, event_id)
    WHERE verdict = 'refused' AND reviewed_at IS NULL;

-- The few transfers that are cash, among very many that are not: for the comparison with a provider's books.
CREATE INDEX ledger_transfers_cash_idx ON ledger_transfers (at) WHERE top_up_id IS NOT NULL OR payout_id IS NOT NULL;
