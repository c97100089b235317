-- Generated from the migrations by `make generate`: what they come to.
CREATE TYPE public.account_role AS ENUM (
    'submitter',
    'owner',
    'operator'
);
CREATE TYPE public.attempt_state AS ENUM (
    'leased',
    'running',
    'succeeded',
    'failed',
    'lost',
    'cancelled'
);
CREATE TYPE public.audit_outcome AS ENUM (
    'agreed',
    'wrong',
    'undecided',
    'unverified'
);
CREATE TYPE public.check_outcome AS ENUM (
    'agreed',
    'found_wrong',
    'undecided',
    'no_auditor'
);
CREATE TYPE public.check_state AS ENUM (
    'open',
    'ruled',
    'closed'
);
CREATE TYPE public.checkpoint_verdict AS ENUM (
    'cleared',
    'forged',
    'undecided'
);
CREATE TYPE public.claim_verdict AS ENUM (
    'applied',
    'old_news',
    'refused'
);
CREATE TYPE public.dispute_origin AS ENUM (
    'submitter',
    'operator',
    'receipt',
    'books',
    'audit'
);
CREATE TYPE public.dispute_state AS ENUM (
    'open',
    'upheld',
    'dismissed'
);
CREATE TYPE public.earning_state AS ENUM (
    'pending',
    'disputed',
    'released',
    'reversed'
);
CREATE TYPE public.failure_cause AS ENUM (
    'owner_returned',
    'superseded',
    'out_of_memory',
    'gpu_lost',
    'network_lost',
    'node_vanished',
    'exit_code',
    'timed_out',
    'sandbox_refused',
    'input_missing',
    'hub_fault',
    'cancelled',
    'expired',
    'poisonous',
    'wrong_result',
    'doubted',
    'packages_failed',
    'packages_unreachable',
    'not_allowed'
);
CREATE TYPE public.isolation_level AS ENUM (
    'sandboxed',
    'container',
    'gvisor'
);
CREATE TYPE public.job_state AS ENUM (
    'queued',
    'running',
    'succeeded',
    'failed',
    'cancelled'
);
CREATE TYPE public.ledger_account_kind AS ENUM (
    'submitter_available',
    'submitter_held',
    'owner_pending',
    'owner_available',
    'receivable',
    'fee',
    'payout_clearing',
    'world'
);
CREATE TYPE public.ledger_transfer_kind AS ENUM (
    'top_up',
    'hold',
    'settle',
    'pay_to',
    'refund',
    'release',
    'reverse',
    'spend_earnings',
    'payout_reserve',
    'payout_confirm',
    'payout_fail',
    'payout_return',
    'top_up_refund',
    'chargeback',
    'repay',
    'bonus',
    'make_good'
);
CREATE TYPE public.node_state AS ENUM (
    'active',
    'paused',
    'draining',
    'removed'
);
CREATE TYPE public.offer_audience AS ENUM (
    'anyone',
    'own',
    'named'
);
CREATE TYPE public.payout_state AS ENUM (
    'requested',
    'reserved',
    'approved',
    'sent',
    'unknown',
    'confirmed',
    'failed',
    'returned'
);
CREATE TYPE public.preference AS ENUM (
    'value',
    'cheapest',
    'fastest'
);
CREATE TYPE public.priority_class AS ENUM (
    'low',
    'normal',
    'high'
);
CREATE TYPE public.proof_state AS ENUM (
    'unproven',
    'proven',
    'slower',
    'unsure',
    'forged'
);
CREATE TYPE public.receipt_state AS ENUM (
    'unverified',
    'verified',
    'refused'
);
CREATE TYPE public.run_state AS ENUM (
    'placing',
    'preparing',
    'running',
    'recovering',
    'stopping',
    'stopped',
    'succeeded',
    'failed'
);
CREATE TYPE public.slice_state AS ENUM (
    'queued',
    'leased',
    'running',
    'verifying',
    'succeeded',
    'failed',
    'cancelled'
);
CREATE TYPE public.slot_kind AS ENUM (
    'gpu',
    'cpu'
);
CREATE TYPE public.standing AS ENUM (
    'clear',
    'suspect',
    'bugged',
    'returning',
    'barred'
);
CREATE TYPE public.top_up_state AS ENUM (
    'requested',
    'paid',
    'failed',
    'refunded',
    'charged_back',
    'paid_back_twice'
);
CREATE TYPE public.trust_effect AS ENUM (
    'freeze_pay',
    'retro_audit',
    'stop_leases',
    'forfeit_pay',
    'unfreeze_pay'
);
CREATE TYPE public.verify_mode AS ENUM (
    'audit',
    'quorum',
    'none'
);
CREATE FUNCTION public.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '% never change: post the opposite instead', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE FUNCTION public.refuse_lower_epoch() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'the epoch of a run never falls' USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE FUNCTION public.refuse_old_incarnation() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'a VNode is placed anew in a new incarnation only'
        USING ERRCODE = 'restrict_violation', TABLE = TG_TABLE_NAME;
END $$;
CREATE FUNCTION public.refuse_payout_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
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
CREATE TABLE public.account_freezes (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    why text NOT NULL,
    top_up_id uuid,
    frozen_at timestamp with time zone DEFAULT now() NOT NULL,
    lifted_at timestamp with time zone,
    lifted_by uuid,
    CONSTRAINT account_freezes_lifted_check CHECK (((lifted_at IS NULL) = (lifted_by IS NULL)))
);
CREATE TABLE public.accounts (
    id uuid NOT NULL,
    email text NOT NULL,
    name text NOT NULL,
    password_hash text,
    roles public.account_role[] NOT NULL,
    queued_slices_max integer NOT NULL,
    stored_bytes_max bigint NOT NULL,
    calls_per_minute_max integer NOT NULL,
    stored_bytes bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    suspended_at timestamp with time zone,
    fair_weight double precision DEFAULT 1 NOT NULL,
    priority_class_max public.priority_class DEFAULT 'normal'::public.priority_class NOT NULL,
    new_nodes_max integer,
    CONSTRAINT accounts_fair_weight_check CHECK (((fair_weight >= (0.01)::double precision) AND (fair_weight <= (100)::double precision))),
    CONSTRAINT accounts_new_nodes_check CHECK ((new_nodes_max >= 0)),
    CONSTRAINT accounts_stored_bytes_check CHECK ((stored_bytes >= 0))
);
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.api_keys (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    name text NOT NULL,
    secret_sha256 bytea NOT NULL,
    roles public.account_role[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone
);
CREATE TABLE public.artifacts (
    account_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.attempt_checkpoints (
    attempt_id uuid NOT NULL,
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    attempt_number integer NOT NULL,
    number integer NOT NULL,
    sha256 bytea NOT NULL,
    files jsonb NOT NULL,
    size_bytes bigint NOT NULL,
    progress double precision,
    accepted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    left_out_after integer,
    verdict public.checkpoint_verdict,
    judged_at timestamp with time zone,
    CONSTRAINT attempt_checkpoints_files_check CHECK (((jsonb_typeof(files) = 'array'::text) AND (jsonb_array_length(files) >= 1))),
    CONSTRAINT attempt_checkpoints_hash_check CHECK ((octet_length(sha256) = 32)),
    CONSTRAINT attempt_checkpoints_left_out_check CHECK ((left_out_after > attempt_number)),
    CONSTRAINT attempt_checkpoints_number_check CHECK (((number >= 1) AND (attempt_number >= 1))),
    CONSTRAINT attempt_checkpoints_progress_check CHECK (((progress >= (0)::double precision) AND (progress <= (1)::double precision))),
    CONSTRAINT attempt_checkpoints_size_check CHECK ((size_bytes >= 0)),
    CONSTRAINT attempt_checkpoints_verdict_check CHECK ((((verdict IS NULL) = (judged_at IS NULL)) AND ((verdict IS NULL) OR (left_out_after IS NOT NULL))))
);
CREATE TABLE public.attempts (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    number integer NOT NULL,
    node_id uuid NOT NULL,
    slot text NOT NULL,
    state public.attempt_state DEFAULT 'leased'::public.attempt_state NOT NULL,
    leased_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    cause public.failure_cause,
    exit_code integer,
    message text DEFAULT ''::text NOT NULL,
    run_seconds double precision,
    cpu_seconds double precision,
    memory_bytes_peak bigint,
    outputs jsonb DEFAULT '[]'::jsonb NOT NULL,
    result_sha256 bytea,
    report_sha256 bytea,
    log_bytes bigint DEFAULT 0 NOT NULL,
    expected_seconds double precision DEFAULT 0 NOT NULL,
    receipt_id uuid,
    rate_microcredits_per_hour bigint,
    rate_card_version text,
    fee_ppm integer,
    holdback_seconds integer,
    charged_microcredits bigint,
    fee_microcredits bigint,
    earning_state public.earning_state,
    release_at timestamp with time zone,
    checkpoint_seconds integer,
    slice_price_microcredits bigint,
    pooled boolean DEFAULT false NOT NULL,
    saved_seconds integer DEFAULT 0 NOT NULL,
    saved_at timestamp with time zone,
    made_good_microcredits bigint,
    pay_waits_since timestamp with time zone,
    CONSTRAINT attempts_cause_check CHECK (((cause IS NOT NULL) = (state = ANY (ARRAY['failed'::public.attempt_state, 'lost'::public.attempt_state, 'cancelled'::public.attempt_state])))),
    CONSTRAINT attempts_charged_check CHECK ((charged_microcredits >= 0)),
    CONSTRAINT attempts_checkpoint_check CHECK ((checkpoint_seconds >= 0)),
    CONSTRAINT attempts_earning_check CHECK ((((earning_state IS NULL) = (release_at IS NULL)) AND ((earning_state IS NULL) = (COALESCE(charged_microcredits, (0)::bigint) = 0)))),
    CONSTRAINT attempts_fee_check CHECK (((fee_microcredits >= 0) AND (fee_microcredits <= COALESCE(charged_microcredits, (0)::bigint)))),
    CONSTRAINT attempts_fee_ppm_check CHECK (((fee_ppm >= 0) AND (fee_ppm <= 200000))),
    CONSTRAINT attempts_finished_check CHECK (((state = ANY (ARRAY['succeeded'::public.attempt_state, 'failed'::public.attempt_state, 'lost'::public.attempt_state, 'cancelled'::public.attempt_state])) = (finished_at IS NOT NULL))),
    CONSTRAINT attempts_holdback_check CHECK ((holdback_seconds >= 0)),
    CONSTRAINT attempts_made_good_check CHECK (((made_good_microcredits IS NULL) OR ((made_good_microcredits >= 0) AND (NOT (cause IS DISTINCT FROM 'superseded'::public.failure_cause))))),
    CONSTRAINT attempts_rate_check CHECK ((rate_microcredits_per_hour >= 0)),
    CONSTRAINT attempts_saved_check CHECK (((saved_seconds >= 0) AND ((saved_at IS NOT NULL) OR (saved_seconds = 0)))),
    CONSTRAINT attempts_slice_price_check CHECK (((slice_price_microcredits IS NULL) OR ((slice_price_microcredits >= 0) AND (rate_microcredits_per_hour IS NULL))))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.01', autovacuum_analyze_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
CREATE TABLE public.audit_batches (
    number bigint NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    row_count integer NOT NULL,
    amount_sum bigint NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    previous_sha256 bytea NOT NULL,
    sha256 bytea NOT NULL,
    fingerprints bytea NOT NULL,
    sealed_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT audit_batches_hash_check CHECK (((octet_length(sha256) = 32) AND (octet_length(previous_sha256) = 32))),
    CONSTRAINT audit_batches_number_check CHECK ((number >= 1)),
    CONSTRAINT audit_batches_range_check CHECK (((first_id >= 1) AND (last_id >= first_id) AND (first_at <= last_at))),
    CONSTRAINT audit_batches_rows_check CHECK (((row_count >= 1) AND (octet_length(fingerprints) = (16 * row_count))))
);
CREATE TABLE public.blocked_inputs (
    sha256 bytea NOT NULL,
    why text NOT NULL,
    blocked_by uuid NOT NULL,
    blocked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT blocked_inputs_sha256_check CHECK ((octet_length(sha256) = 32))
);
CREATE TABLE public.book_checkpoints (
    number bigint NOT NULL,
    batch_number bigint NOT NULL,
    batch_sha256 bytea NOT NULL,
    last_id bigint NOT NULL,
    last_at timestamp with time zone NOT NULL,
    kind_sums jsonb NOT NULL,
    sums_sha256 bytea NOT NULL,
    previous_sha256 bytea NOT NULL,
    sha256 bytea NOT NULL,
    made_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT book_checkpoints_hash_check CHECK (((octet_length(batch_sha256) = 32) AND (octet_length(sums_sha256) = 32) AND (octet_length(previous_sha256) = 32) AND (octet_length(sha256) = 32))),
    CONSTRAINT book_checkpoints_number_check CHECK ((number >= 1))
);
CREATE TABLE public.book_closings (
    day date NOT NULL,
    closed_at timestamp with time zone DEFAULT now() NOT NULL,
    closed_by uuid NOT NULL,
    sha256 bytea NOT NULL,
    CONSTRAINT book_closings_hash_check CHECK ((octet_length(sha256) = 32))
);
CREATE TABLE public.book_sums (
    name text NOT NULL COLLATE pg_catalog."C",
    amount bigint NOT NULL
);
CREATE TABLE public.challenges (
    id uuid NOT NULL,
    node_id uuid NOT NULL,
    slot text NOT NULL,
    claim text NOT NULL,
    seed bytea NOT NULL,
    size integer NOT NULL,
    products integer NOT NULL,
    memory_bytes bigint DEFAULT 0 NOT NULL,
    issued_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    committed_at timestamp with time zone,
    root bytea,
    segments integer[],
    words bigint[],
    opened_at timestamp with time zone,
    is_right boolean,
    CONSTRAINT challenges_commitment_check CHECK ((((committed_at IS NULL) = (root IS NULL)) AND ((committed_at IS NULL) = (segments IS NULL)) AND ((committed_at IS NULL) = (words IS NULL)) AND (octet_length(root) = 32) AND ((committed_at >= issued_at) AND (committed_at <= expires_at)))),
    CONSTRAINT challenges_expiry_check CHECK ((expires_at > issued_at)),
    CONSTRAINT challenges_opening_check CHECK ((((opened_at IS NULL) = (is_right IS NULL)) AND ((opened_at IS NULL) OR (committed_at IS NOT NULL)))),
    CONSTRAINT challenges_work_check CHECK (((octet_length(seed) = 32) AND ((size >= 64) AND (size <= 4096)) AND ((products >= 1) AND (products <= 4096)) AND (memory_bytes >= 0)))
);
CREATE TABLE public.checks (
    attempt_id uuid NOT NULL,
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    node_id uuid NOT NULL,
    mode public.verify_mode NOT NULL,
    withheld boolean NOT NULL,
    retro boolean DEFAULT false NOT NULL,
    state public.check_state DEFAULT 'open'::public.check_state NOT NULL,
    outcome public.check_outcome,
    opened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    look_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    closed_at timestamp with time zone,
    asked_count integer DEFAULT 0 NOT NULL,
    verdicts jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT checks_closed_check CHECK (((state = 'closed'::public.check_state) = (closed_at IS NOT NULL))),
    CONSTRAINT checks_outcome_check CHECK (((state = 'open'::public.check_state) = (outcome IS NULL)))
);
CREATE TABLE public.comparisons (
    job_id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    number integer NOT NULL,
    one_id uuid NOT NULL,
    other_id uuid NOT NULL,
    opened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT comparisons_number_check CHECK (((number >= 1) AND (number <= 40)))
);
CREATE TABLE public.disputes (
    id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    origin public.dispute_origin NOT NULL,
    state public.dispute_state DEFAULT 'open'::public.dispute_state NOT NULL,
    submitter_id uuid NOT NULL,
    owner_id uuid NOT NULL,
    reason text NOT NULL,
    note text DEFAULT ''::text NOT NULL,
    opened_at timestamp with time zone DEFAULT now() NOT NULL,
    opened_by uuid,
    decided_at timestamp with time zone,
    decided_by uuid,
    CONSTRAINT disputes_decided_check CHECK ((((state = 'open'::public.dispute_state) = (decided_at IS NULL)) AND ((decided_by IS NULL) OR (decided_at IS NOT NULL)))),
    CONSTRAINT disputes_opened_check CHECK (((origin = ANY (ARRAY['submitter'::public.dispute_origin, 'operator'::public.dispute_origin])) = (opened_by IS NOT NULL))),
    CONSTRAINT disputes_reason_check CHECK ((((length(reason) >= 1) AND (length(reason) <= 300)) AND (length(note) <= 300))),
    CONSTRAINT disputes_sides_check CHECK ((submitter_id <> owner_id))
);
CREATE VIEW public.disputed_pay AS
 SELECT d.id,
    d.attempt_id,
    d.origin,
    d.state,
    d.submitter_id,
    d.owner_id,
    d.reason,
    d.note,
    d.opened_at,
    d.opened_by,
    d.decided_at,
    d.decided_by,
    a.job_id,
    a.slice_index,
    a.number,
    a.node_id,
    a.charged_microcredits,
    a.release_at,
    (a.charged_microcredits - a.fee_microcredits) AS earned_microcredits
   FROM (public.disputes d
     JOIN public.attempts a ON ((a.id = d.attempt_id)));
CREATE TABLE public.events (
    id bigint NOT NULL,
    xid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    kind text NOT NULL,
    account_id uuid,
    job_id uuid,
    node_id uuid,
    body jsonb DEFAULT '{}'::jsonb NOT NULL
);
ALTER TABLE public.events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.fair_usage (
    account_id uuid NOT NULL,
    slot_seconds double precision NOT NULL,
    counted_at timestamp with time zone NOT NULL
);
CREATE TABLE public.grid_samples (
    at timestamp with time zone NOT NULL,
    nodes_online integer NOT NULL,
    slot_count integer NOT NULL,
    busy_count integer NOT NULL,
    slices_queued integer NOT NULL,
    CONSTRAINT grid_samples_counts_check CHECK (((nodes_online >= 0) AND (busy_count >= 0) AND (slot_count >= 0) AND (slices_queued >= 0)))
);
CREATE TABLE public.hub_changes (
    id bigint NOT NULL,
    kind text NOT NULL,
    subject_id uuid,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE public.hub_changes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.hub_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.hub_facts (
    only_row boolean DEFAULT true NOT NULL,
    hub_id uuid NOT NULL,
    blob_store_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    pseudonym_key bytea DEFAULT decode(replace(((gen_random_uuid())::text || (gen_random_uuid())::text), '-'::text, ''::text), 'hex'::text) NOT NULL,
    CONSTRAINT hub_facts_only_row_check CHECK (only_row),
    CONSTRAINT hub_facts_pseudonym_check CHECK ((octet_length(pseudonym_key) = 32))
);
CREATE TABLE public.hub_keys (
    kid text NOT NULL,
    purpose text NOT NULL,
    secret bytea NOT NULL,
    public_key bytea,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    signs_from timestamp with time zone DEFAULT now() NOT NULL,
    retires_at timestamp with time zone,
    CONSTRAINT hub_keys_purpose_check CHECK ((purpose = ANY (ARRAY['signing'::text, 'lease'::text])))
);
CREATE TABLE public.hub_summaries (
    hub_process_id uuid NOT NULL,
    free jsonb NOT NULL,
    told_at timestamp with time zone NOT NULL
);
CREATE TABLE public.idempotency (
    account_id uuid NOT NULL,
    key text NOT NULL,
    request_sha256 bytea NOT NULL,
    job_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.invites (
    token_sha256 bytea NOT NULL,
    created_by uuid NOT NULL,
    roles public.account_role[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_by uuid,
    used_at timestamp with time zone
);
CREATE TABLE public.job_checkpoints (
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    attempt_id uuid NOT NULL,
    attempt_number integer NOT NULL,
    number integer NOT NULL,
    sha256 bytea NOT NULL,
    files jsonb NOT NULL,
    size_bytes bigint NOT NULL,
    progress double precision,
    accepted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT job_checkpoints_files_check CHECK (((jsonb_typeof(files) = 'array'::text) AND (jsonb_array_length(files) >= 1))),
    CONSTRAINT job_checkpoints_hash_check CHECK ((octet_length(sha256) = 32)),
    CONSTRAINT job_checkpoints_number_check CHECK (((number >= 1) AND (attempt_number >= 1))),
    CONSTRAINT job_checkpoints_progress_check CHECK (((progress >= (0)::double precision) AND (progress <= (1)::double precision))),
    CONSTRAINT job_checkpoints_size_check CHECK ((size_bytes >= 0))
);
CREATE TABLE public.job_secrets (
    job_id uuid NOT NULL,
    sealed bytea NOT NULL,
    CONSTRAINT job_secrets_sealed_check CHECK ((octet_length(sealed) > 28))
);
CREATE TABLE public.jobs (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    name text NOT NULL,
    spec jsonb NOT NULL,
    shape_id integer NOT NULL,
    priority smallint NOT NULL,
    slice_count integer NOT NULL,
    retries smallint NOT NULL,
    wall_seconds integer NOT NULL,
    state public.job_state DEFAULT 'queued'::public.job_state NOT NULL,
    succeeded_count integer DEFAULT 0 NOT NULL,
    failed_count integer DEFAULT 0 NOT NULL,
    cancelled_count integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    expires_at timestamp with time zone,
    priority_class public.priority_class DEFAULT 'normal'::public.priority_class NOT NULL,
    prefer public.preference DEFAULT 'value'::public.preference NOT NULL,
    weight_set text DEFAULT 'default'::text NOT NULL,
    deadline_at timestamp with time zone,
    run_seconds_sum double precision DEFAULT 0 NOT NULL,
    held_remaining bigint DEFAULT 0 NOT NULL,
    reserve_microcredits bigint DEFAULT 0 NOT NULL,
    charged_microcredits bigint DEFAULT 0 NOT NULL,
    run_id uuid,
    slice_base_microcredits bigint,
    verify public.verify_mode,
    nondeterministic boolean DEFAULT false NOT NULL,
    checks_attempt_id uuid,
    CONSTRAINT jobs_charged_check CHECK ((charged_microcredits >= 0)),
    CONSTRAINT jobs_counts_check CHECK (((succeeded_count >= 0) AND (failed_count >= 0) AND (cancelled_count >= 0) AND (((succeeded_count + failed_count) + cancelled_count) <= slice_count))),
    CONSTRAINT jobs_finished_check CHECK ((((state = ANY (ARRAY['succeeded'::public.job_state, 'failed'::public.job_state, 'cancelled'::public.job_state])) = (finished_at IS NOT NULL)) AND ((finished_at IS NOT NULL) = (((succeeded_count + failed_count) + cancelled_count) = slice_count)))),
    CONSTRAINT jobs_finished_hold_check CHECK (((finished_at IS NULL) OR (held_remaining = 0))),
    CONSTRAINT jobs_held_remaining_check CHECK ((held_remaining >= 0)),
    CONSTRAINT jobs_reserve_check CHECK ((reserve_microcredits >= 0)),
    CONSTRAINT jobs_slice_base_check CHECK ((slice_base_microcredits > 0)),
    CONSTRAINT jobs_slice_count_check CHECK (((slice_count >= 1) AND (slice_count <= 100000))),
    CONSTRAINT jobs_verify_check CHECK ((verify <> 'none'::public.verify_mode))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.05', fillfactor='50');
CREATE TABLE public.ledger_accounts (
    id text NOT NULL COLLATE pg_catalog."C",
    kind public.ledger_account_kind NOT NULL,
    account_id uuid,
    shard smallint DEFAULT 0 NOT NULL,
    balance bigint DEFAULT 0 NOT NULL,
    CONSTRAINT ledger_accounts_id_check CHECK ((id = (((kind)::text || '/'::text) || COALESCE((account_id)::text, (shard)::text)))),
    CONSTRAINT ledger_accounts_owner_check CHECK ((((account_id IS NULL) = (kind = ANY (ARRAY['fee'::public.ledger_account_kind, 'payout_clearing'::public.ledger_account_kind, 'world'::public.ledger_account_kind]))) AND ((account_id IS NULL) OR (shard = 0)))),
    CONSTRAINT ledger_accounts_side_check CHECK (
CASE
    WHEN (kind = ANY (ARRAY['world'::public.ledger_account_kind, 'receivable'::public.ledger_account_kind])) THEN ((balance >= '-1000000000000000000'::bigint) AND (balance <= 0))
    ELSE ((balance >= 0) AND (balance <= '1000000000000000000'::bigint))
END)
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_delay='0');
CREATE TABLE public.ledger_transfers (
    id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    leg smallint NOT NULL,
    kind public.ledger_transfer_kind NOT NULL,
    source_id text NOT NULL COLLATE pg_catalog."C",
    target_id text NOT NULL COLLATE pg_catalog."C",
    amount bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    job_id uuid,
    attempt_id uuid,
    payout_id uuid,
    top_up_id uuid,
    CONSTRAINT ledger_transfers_amount_check CHECK (((amount >= 1) AND (amount <= '1000000000000000'::bigint))),
    CONSTRAINT ledger_transfers_key_check CHECK ((((length(key) >= 1) AND (length(key) <= 200)) AND ((leg >= 0) AND (leg <= 31)))),
    CONSTRAINT ledger_transfers_sides_check CHECK ((source_id <> target_id))
);
CREATE VIEW public.ledger_sides AS
 SELECT ledger_transfers.id,
    ledger_transfers.at,
    ledger_transfers.source_id AS name,
    (- ledger_transfers.amount) AS delta
   FROM public.ledger_transfers
UNION ALL
 SELECT ledger_transfers.id,
    ledger_transfers.at,
    ledger_transfers.target_id AS name,
    ledger_transfers.amount AS delta
   FROM public.ledger_transfers
UNION ALL
 SELECT ledger_transfers.id,
    ledger_transfers.at,
    (('job/'::text || (ledger_transfers.job_id)::text) COLLATE "C") AS name,
    (- ledger_transfers.amount) AS delta
   FROM public.ledger_transfers
  WHERE starts_with(ledger_transfers.source_id, 'submitter_held/'::text)
UNION ALL
 SELECT ledger_transfers.id,
    ledger_transfers.at,
    (('job/'::text || (ledger_transfers.job_id)::text) COLLATE "C") AS name,
    ledger_transfers.amount AS delta
   FROM public.ledger_transfers
  WHERE starts_with(ledger_transfers.target_id, 'submitter_held/'::text);
ALTER TABLE public.ledger_transfers ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.ledger_transfers_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.log_chunks (
    attempt_id uuid NOT NULL,
    start_offset bigint NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE public.market_clock (
    only_row boolean DEFAULT true NOT NULL,
    ticked_at timestamp with time zone NOT NULL,
    CONSTRAINT market_clock_only_row_check CHECK (only_row)
);
CREATE TABLE public.networks (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    name text NOT NULL,
    spec text NOT NULL,
    digest bytea NOT NULL,
    vnode_count integer NOT NULL,
    parameter_count bigint NOT NULL,
    idempotency_key text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    deleted_at timestamp with time zone,
    CONSTRAINT networks_digest_check CHECK ((length(digest) = 32)),
    CONSTRAINT networks_parameters_check CHECK ((parameter_count >= 0)),
    CONSTRAINT networks_vnodes_check CHECK ((vnode_count > 0))
);
CREATE TABLE public.node_trust (
    node_id uuid NOT NULL,
    right_weight double precision DEFAULT 0 NOT NULL,
    wrong_weight double precision DEFAULT 0 NOT NULL,
    validated_count integer DEFAULT 0 NOT NULL,
    counted_at timestamp with time zone,
    standing public.standing DEFAULT 'clear'::public.standing NOT NULL,
    since timestamp with time zone,
    wrong_at integer[] DEFAULT '{}'::integer[] NOT NULL,
    bugged_count integer DEFAULT 0 NOT NULL,
    returning_left integer DEFAULT 0 NOT NULL,
    is_vouched boolean DEFAULT false NOT NULL,
    serving_since timestamp with time zone,
    CONSTRAINT node_trust_counts_check CHECK (((validated_count >= 0) AND (bugged_count >= 0) AND (returning_left >= 0))),
    CONSTRAINT node_trust_weights_check CHECK (((right_weight >= (0)::double precision) AND (wrong_weight >= (0)::double precision)))
);
CREATE TABLE public.nodes (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    name text NOT NULL,
    public_key bytea NOT NULL,
    state public.node_state DEFAULT 'active'::public.node_state NOT NULL,
    synthetic boolean NOT NULL,
    isolation public.isolation_level NOT NULL,
    region text,
    hardware jsonb NOT NULL,
    agent_version text NOT NULL,
    boot_id uuid,
    past_boot_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_seen_at timestamp with time zone,
    floor_microcredits_per_hour bigint DEFAULT 0 NOT NULL,
    allows text[] DEFAULT '{}'::text[] NOT NULL,
    network text,
    CONSTRAINT nodes_allows_check CHECK (((cardinality(allows) <= 256) AND (array_position(allows, NULL::text) IS NULL))),
    CONSTRAINT nodes_floor_check CHECK ((floor_microcredits_per_hour >= 0))
);
CREATE TABLE public.offers (
    node_id uuid NOT NULL,
    hours bytea,
    zone text,
    seconds_min integer DEFAULT 0 NOT NULL,
    kinds text[] DEFAULT '{}'::text[] NOT NULL,
    audience public.offer_audience DEFAULT 'anyone'::public.offer_audience NOT NULL,
    named uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    set_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT offers_hours_check CHECK (((octet_length(hours) = 21) AND (hours <> decode(repeat('00'::text, 21), 'hex'::text)))),
    CONSTRAINT offers_kinds_check CHECK (((cardinality(kinds) <= 32) AND (array_position(kinds, NULL::text) IS NULL))),
    CONSTRAINT offers_named_check CHECK ((((audience = 'named'::public.offer_audience) = (cardinality(named) > 0)) AND (cardinality(named) <= 100) AND (array_position(named, NULL::uuid) IS NULL))),
    CONSTRAINT offers_seconds_check CHECK ((seconds_min = ANY (ARRAY[0, 10, 60, 300, 1800, 3600, 14400]))),
    CONSTRAINT offers_zone_check CHECK (((hours IS NULL) = (zone IS NULL)))
);
CREATE TABLE public.owner_days (
    day date NOT NULL,
    account_id uuid NOT NULL,
    earned_microcredits bigint NOT NULL,
    seconds bigint NOT NULL,
    verified_count integer NOT NULL,
    CONSTRAINT owner_days_sums_check CHECK (((earned_microcredits >= 0) AND (seconds >= 0) AND (verified_count >= 0)))
);
CREATE TABLE public.owner_days_counted (
    day date NOT NULL,
    counted_at timestamp with time zone NOT NULL
);
CREATE TABLE public.payout_details (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    region text NOT NULL,
    currency text NOT NULL,
    destination text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT payout_details_currency_check CHECK ((currency ~ '^[A-Z]{3}$'::text)),
    CONSTRAINT payout_details_region_check CHECK ((region ~ '^[A-Z]{2}$'::text))
);
CREATE TABLE public.payouts (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    asked_microcredits bigint NOT NULL,
    provider text NOT NULL,
    details_id uuid NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    amount_microcredits bigint NOT NULL,
    state public.payout_state DEFAULT 'requested'::public.payout_state NOT NULL,
    provider_reference text,
    failure text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    reserved_at timestamp with time zone,
    approved_at timestamp with time zone,
    approved_by uuid,
    sent_at timestamp with time zone,
    acknowledged_at timestamp with time zone,
    confirmed_at timestamp with time zone,
    returned_at timestamp with time zone,
    failed_at timestamp with time zone,
    asked_at timestamp with time zone,
    CONSTRAINT payouts_amount_check CHECK (((amount_microcredits >= 1) AND (amount_microcredits <= asked_microcredits))),
    CONSTRAINT payouts_approved_check CHECK ((((approved_at IS NOT NULL) OR (state <> ALL (ARRAY['approved'::public.payout_state, 'sent'::public.payout_state, 'unknown'::public.payout_state, 'confirmed'::public.payout_state, 'returned'::public.payout_state]))) AND ((approved_at IS NULL) = (approved_by IS NULL)))),
    CONSTRAINT payouts_asked_check CHECK ((asked_microcredits <= '1000000000000000'::bigint)),
    CONSTRAINT payouts_confirmed_check CHECK (((state = ANY (ARRAY['confirmed'::public.payout_state, 'returned'::public.payout_state])) = (confirmed_at IS NOT NULL))),
    CONSTRAINT payouts_currency_check CHECK ((currency ~ '^[A-Z]{3}$'::text)),
    CONSTRAINT payouts_failed_check CHECK ((((state = 'failed'::public.payout_state) = (failed_at IS NOT NULL)) AND ((failed_at IS NULL) = (failure IS NULL)))),
    CONSTRAINT payouts_minor_check CHECK ((amount_minor > 0)),
    CONSTRAINT payouts_reserved_check CHECK (((state = 'requested'::public.payout_state) = (reserved_at IS NULL))),
    CONSTRAINT payouts_returned_check CHECK (((state = 'returned'::public.payout_state) = (returned_at IS NOT NULL))),
    CONSTRAINT payouts_sent_check CHECK ((((sent_at IS NOT NULL) OR (state <> ALL (ARRAY['sent'::public.payout_state, 'unknown'::public.payout_state, 'confirmed'::public.payout_state, 'returned'::public.payout_state]))) AND ((sent_at IS NULL) OR (state <> ALL (ARRAY['requested'::public.payout_state, 'reserved'::public.payout_state, 'approved'::public.payout_state]))) AND ((sent_at IS NULL) OR (approved_at IS NOT NULL))))
);
CREATE TABLE public.placements (
    run_id uuid NOT NULL,
    vnode_id text NOT NULL,
    replica integer NOT NULL,
    "position" integer NOT NULL,
    seat text NOT NULL,
    incarnation integer NOT NULL,
    CONSTRAINT placements_incarnation_check CHECK ((incarnation > 0))
);
CREATE TABLE public.pnodes (
    node_id uuid NOT NULL,
    numeric_class text NOT NULL,
    memory_bytes bigint NOT NULL,
    flops_per_second double precision NOT NULL,
    address text DEFAULT ''::text NOT NULL,
    held_sha256s bytea[] DEFAULT '{}'::bytea[] NOT NULL,
    told_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    bytes_per_second double precision,
    latency_seconds double precision,
    measured_bytes_per_second double precision,
    pace_ratio double precision,
    paced_at timestamp with time zone,
    CONSTRAINT pnodes_class_check CHECK (((length(numeric_class) >= 1) AND (length(numeric_class) <= 200))),
    CONSTRAINT pnodes_flops_check CHECK (((flops_per_second > (0)::double precision) AND (flops_per_second < 'Infinity'::double precision))),
    CONSTRAINT pnodes_held_check CHECK ((cardinality(held_sha256s) <= 64)),
    CONSTRAINT pnodes_latency_check CHECK (((latency_seconds >= (0)::double precision) AND (latency_seconds < 'Infinity'::double precision))),
    CONSTRAINT pnodes_measured_rate_check CHECK (((measured_bytes_per_second > (0)::double precision) AND (measured_bytes_per_second < 'Infinity'::double precision))),
    CONSTRAINT pnodes_memory_check CHECK ((memory_bytes > 0)),
    CONSTRAINT pnodes_pace_check CHECK (((pace_ratio > (0)::double precision) AND (pace_ratio < 'Infinity'::double precision))),
    CONSTRAINT pnodes_paced_check CHECK (((pace_ratio IS NULL) = (paced_at IS NULL))),
    CONSTRAINT pnodes_rate_check CHECK (((bytes_per_second > (0)::double precision) AND (bytes_per_second < 'Infinity'::double precision)))
);
CREATE TABLE public.price_index (
    tier text NOT NULL,
    region text NOT NULL,
    at timestamp with time zone NOT NULL,
    price_microcredits_per_hour bigint NOT NULL,
    reference_microcredits_per_hour bigint NOT NULL,
    rate_card_version text NOT NULL,
    deal_count integer NOT NULL,
    seconds bigint NOT NULL,
    CONSTRAINT price_index_deals_check CHECK (((deal_count > 0) AND (seconds > 0))),
    CONSTRAINT price_index_price_check CHECK (((price_microcredits_per_hour > 0) AND (reference_microcredits_per_hour >= 0)))
);
CREATE TABLE public.profiles (
    account_id uuid NOT NULL,
    pseudonym text,
    on_leaderboard boolean DEFAULT true NOT NULL,
    shows_titles boolean DEFAULT false NOT NULL,
    CONSTRAINT profiles_pseudonym_check CHECK (((length(pseudonym) >= 3) AND (length(pseudonym) <= 30)))
);
CREATE TABLE public.proofs (
    node_id uuid NOT NULL,
    slot text NOT NULL,
    claim text NOT NULL,
    claimed_tier text NOT NULL,
    state public.proof_state NOT NULL,
    tier text NOT NULL,
    shown_tflops double precision,
    spread_ratio double precision DEFAULT 0 NOT NULL,
    reason text NOT NULL,
    decided_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT proofs_shown_check CHECK ((((shown_tflops IS NULL) = (state = ANY (ARRAY['forged'::public.proof_state, 'unproven'::public.proof_state]))) AND (shown_tflops > (0)::double precision))),
    CONSTRAINT proofs_spread_check CHECK (((spread_ratio >= (0)::double precision) AND (spread_ratio <= (1)::double precision)))
);
CREATE TABLE public.provider_events (
    provider text NOT NULL,
    event_id text NOT NULL,
    kind text NOT NULL,
    subject_id uuid NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    reference text NOT NULL,
    body_sha256 bytea NOT NULL,
    verdict public.claim_verdict NOT NULL,
    doubt text,
    said_by uuid,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    reviewed_at timestamp with time zone,
    reviewed_by uuid,
    note text DEFAULT ''::text NOT NULL,
    CONSTRAINT provider_events_doubt_check CHECK (((verdict = 'refused'::public.claim_verdict) = (doubt IS NOT NULL))),
    CONSTRAINT provider_events_reviewed_check CHECK (((reviewed_at IS NULL) = (reviewed_by IS NULL)))
);
CREATE TABLE public.slices (
    job_id uuid NOT NULL,
    slice_index integer NOT NULL,
    shape_id integer NOT NULL,
    priority smallint NOT NULL,
    state public.slice_state DEFAULT 'queued'::public.slice_state NOT NULL,
    attempt_count integer DEFAULT 0 NOT NULL,
    failure_count integer DEFAULT 0 NOT NULL,
    avoid_node_id uuid,
    cause public.failure_cause,
    accepted_attempt_id uuid,
    queued_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone,
    account_id uuid NOT NULL,
    priority_class public.priority_class DEFAULT 'normal'::public.priority_class NOT NULL,
    killed_count smallint DEFAULT 0 NOT NULL,
    raised_at timestamp with time zone,
    CONSTRAINT slices_accepted_check CHECK (((state = 'succeeded'::public.slice_state) = (accepted_attempt_id IS NOT NULL))),
    CONSTRAINT slices_cause_check CHECK (((cause IS NOT NULL) = (state = ANY (ARRAY['failed'::public.slice_state, 'cancelled'::public.slice_state])))),
    CONSTRAINT slices_finished_check CHECK (((state = ANY (ARRAY['succeeded'::public.slice_state, 'failed'::public.slice_state, 'cancelled'::public.slice_state])) = (finished_at IS NOT NULL)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.01', autovacuum_analyze_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
CREATE VIEW public.queued_runs AS
 WITH RECURSIVE runs AS (
        ( SELECT slices.shape_id,
            slices.priority_class,
            slices.account_id
           FROM public.slices
          WHERE (slices.state = 'queued'::public.slice_state)
          ORDER BY slices.shape_id, slices.priority_class DESC, slices.account_id
         LIMIT 1)
        UNION ALL
         SELECT n.shape_id,
            n.priority_class,
            n.account_id
           FROM (runs r
             CROSS JOIN LATERAL (( SELECT s.shape_id,
                    s.priority_class,
                    s.account_id
                   FROM public.slices s
                  WHERE ((s.state = 'queued'::public.slice_state) AND (s.shape_id = r.shape_id) AND (s.priority_class = r.priority_class) AND (s.account_id > r.account_id))
                  ORDER BY s.shape_id, s.priority_class DESC, s.account_id
                 LIMIT 1)
                UNION ALL
                ( SELECT s.shape_id,
                    s.priority_class,
                    s.account_id
                   FROM public.slices s
                  WHERE ((s.state = 'queued'::public.slice_state) AND (s.shape_id = r.shape_id) AND (s.priority_class < r.priority_class))
                  ORDER BY s.shape_id, s.priority_class DESC, s.account_id
                 LIMIT 1)
                UNION ALL
                ( SELECT s.shape_id,
                    s.priority_class,
                    s.account_id
                   FROM public.slices s
                  WHERE ((s.state = 'queued'::public.slice_state) AND (s.shape_id > r.shape_id))
                  ORDER BY s.shape_id, s.priority_class DESC, s.account_id
                 LIMIT 1)
         LIMIT 1) n)
        )
 SELECT shape_id,
    priority_class,
    account_id
   FROM runs;
CREATE TABLE public.rate_cards (
    version text NOT NULL,
    content text NOT NULL,
    first_used_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT rate_cards_version_check CHECK ((version ~ '^[0-9a-f]{16}$'::text))
);
CREATE TABLE public.receipts (
    id uuid NOT NULL,
    node_id uuid NOT NULL,
    token text NOT NULL,
    state public.receipt_state DEFAULT 'unverified'::public.receipt_state NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.reliabilities (
    node_id uuid NOT NULL,
    job_class text NOT NULL,
    finished double precision NOT NULL,
    failed double precision NOT NULL,
    faults_running integer NOT NULL,
    counted_at timestamp with time zone NOT NULL
);
CREATE TABLE public.run_audits (
    id uuid NOT NULL,
    run_id uuid NOT NULL,
    epoch integer NOT NULL,
    seat text NOT NULL,
    attempt_id uuid NOT NULL,
    node_id uuid NOT NULL,
    from_step integer NOT NULL,
    until_step integer NOT NULL,
    outcome public.audit_outcome NOT NULL,
    witness_ids uuid[] NOT NULL,
    message text NOT NULL,
    decided_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT run_audits_agreed_check CHECK (((outcome <> 'agreed'::public.audit_outcome) OR (cardinality(witness_ids) > 0))),
    CONSTRAINT run_audits_other_check CHECK ((NOT (node_id = ANY (witness_ids)))),
    CONSTRAINT run_audits_span_check CHECK (((epoch > 0) AND (from_step >= 0) AND (until_step > from_step)))
);
CREATE TABLE public.run_blobs (
    run_id uuid NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT run_blobs_hash_check CHECK ((length(sha256) = 32)),
    CONSTRAINT run_blobs_size_check CHECK ((size_bytes >= 0))
);
CREATE TABLE public.run_checkpoint_parts (
    run_id uuid NOT NULL,
    step integer NOT NULL,
    vnode_id text NOT NULL,
    epoch integer NOT NULL,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    digest bytea NOT NULL,
    CONSTRAINT run_checkpoint_parts_epoch_check CHECK ((epoch > 0)),
    CONSTRAINT run_checkpoint_parts_hash_check CHECK ((length(sha256) = 32)),
    CONSTRAINT run_checkpoint_parts_size_check CHECK ((size_bytes >= 0))
);
CREATE TABLE public.run_checkpoints (
    run_id uuid NOT NULL,
    step integer NOT NULL,
    first_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    complete_at timestamp with time zone,
    audited_at timestamp with time zone,
    CONSTRAINT run_checkpoints_audit_check CHECK (((audited_at IS NULL) OR (complete_at IS NOT NULL))),
    CONSTRAINT run_checkpoints_step_check CHECK ((step > 0))
);
CREATE TABLE public.run_events (
    id bigint NOT NULL,
    run_id uuid NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    kind text NOT NULL,
    epoch integer NOT NULL,
    step integer NOT NULL,
    message text NOT NULL
);
ALTER TABLE public.run_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.run_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.run_metrics (
    run_id uuid NOT NULL,
    step integer NOT NULL,
    event_id bigint DEFAULT nextval('public.run_events_id_seq'::regclass) NOT NULL,
    epoch integer NOT NULL,
    loss_bits bigint NOT NULL,
    samples_per_second double precision NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT run_metrics_epoch_check CHECK ((epoch > 0)),
    CONSTRAINT run_metrics_step_check CHECK ((step > 0))
);
CREATE TABLE public.run_seats (
    run_id uuid NOT NULL,
    seat text NOT NULL,
    slice_index integer NOT NULL,
    attempt_id uuid,
    node_id uuid,
    numeric_class text DEFAULT ''::text NOT NULL,
    address text DEFAULT ''::text NOT NULL,
    CONSTRAINT run_seats_vacant_check CHECK (((attempt_id IS NULL) = (node_id IS NULL)))
);
CREATE TABLE public.runs (
    id uuid NOT NULL,
    network_id uuid NOT NULL,
    account_id uuid NOT NULL,
    job_id uuid NOT NULL,
    state public.run_state DEFAULT 'placing'::public.run_state NOT NULL,
    owner_id uuid,
    owner_address text DEFAULT ''::text NOT NULL,
    owner_until timestamp with time zone,
    epoch integer DEFAULT 0 NOT NULL,
    steps integer NOT NULL,
    step integer DEFAULT 0 NOT NULL,
    checkpoint_step integer DEFAULT 0 NOT NULL,
    reports_from_epoch integer DEFAULT 1 NOT NULL,
    numeric_class text DEFAULT ''::text NOT NULL,
    inexact_from_step integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    message text DEFAULT ''::text NOT NULL,
    options jsonb NOT NULL,
    data jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    stop_asked_at timestamp with time zone,
    finished_at timestamp with time zone,
    CONSTRAINT runs_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT runs_exact_check CHECK (((inexact_from_step >= 0) AND (inexact_from_step <= steps))),
    CONSTRAINT runs_finished_check CHECK (((state = ANY (ARRAY['stopped'::public.run_state, 'succeeded'::public.run_state, 'failed'::public.run_state])) = (finished_at IS NOT NULL))),
    CONSTRAINT runs_owner_check CHECK (((owner_id IS NULL) = (owner_until IS NULL))),
    CONSTRAINT runs_recoveries_check CHECK ((recoveries >= 0)),
    CONSTRAINT runs_reports_check CHECK (((reports_from_epoch >= 0) AND (reports_from_epoch <= (epoch + 1)))),
    CONSTRAINT runs_started_check CHECK (((epoch > 0) OR (state = ANY (ARRAY['placing'::public.run_state, 'stopped'::public.run_state, 'failed'::public.run_state])))),
    CONSTRAINT runs_steps_check CHECK (((steps > 0) AND (checkpoint_step >= 0) AND (step >= checkpoint_step) AND (step <= steps)))
);
CREATE TABLE public.shapes (
    id integer NOT NULL,
    digest bytea NOT NULL,
    gpu boolean NOT NULL,
    vram_bytes bigint NOT NULL,
    cores integer NOT NULL,
    ram_bytes bigint NOT NULL,
    disk_bytes bigint NOT NULL,
    tiers text[] NOT NULL,
    regions text[] NOT NULL,
    isolation public.isolation_level NOT NULL,
    ceiling_microcredits_per_hour bigint,
    job_kind text DEFAULT 'compute'::text NOT NULL,
    slice_seconds integer DEFAULT 0 NOT NULL,
    base_ceiling_microcredits_per_hour bigint,
    wants text[] DEFAULT '{}'::text[] NOT NULL,
    CONSTRAINT shapes_base_ceiling_check CHECK (((base_ceiling_microcredits_per_hour IS NULL) OR ((base_ceiling_microcredits_per_hour > 0) AND (COALESCE(ceiling_microcredits_per_hour, (0)::bigint) > 0)))),
    CONSTRAINT shapes_slice_seconds_check CHECK ((slice_seconds >= 0)),
    CONSTRAINT shapes_wants_check CHECK (((cardinality(wants) <= 34) AND (array_position(wants, NULL::text) IS NULL)))
);
ALTER TABLE public.shapes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.shapes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.sign_in_links (
    token_sha256 bytea NOT NULL,
    account_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone
);
CREATE TABLE public.sittings (
    node_id uuid NOT NULL,
    slot text NOT NULL,
    due_at timestamp with time zone NOT NULL,
    asked_at timestamp with time zone,
    told_at timestamp with time zone,
    missed_count integer DEFAULT 0 NOT NULL,
    unsure_count integer DEFAULT 0 NOT NULL,
    CONSTRAINT sittings_counts_check CHECK (((missed_count >= 0) AND (unsure_count >= 0))),
    CONSTRAINT sittings_told_check CHECK (((told_at IS NULL) OR (asked_at IS NOT NULL)))
);
CREATE TABLE public.slots (
    node_id uuid NOT NULL,
    name text NOT NULL,
    kind public.slot_kind NOT NULL,
    tier text NOT NULL,
    vram_bytes bigint NOT NULL,
    cores integer NOT NULL,
    ram_bytes bigint NOT NULL,
    disk_bytes bigint NOT NULL,
    speed_tflops double precision,
    CONSTRAINT slots_speed_check CHECK ((speed_tflops > (0)::double precision))
);
CREATE TABLE public.spot_history (
    tier text NOT NULL,
    region text NOT NULL,
    at timestamp with time zone NOT NULL,
    surge_ppm integer NOT NULL,
    spot_microcredits_per_hour bigint NOT NULL,
    reference_microcredits_per_hour bigint NOT NULL,
    rate_card_version text NOT NULL,
    slot_count integer NOT NULL,
    busy_count integer NOT NULL,
    waiting_count integer NOT NULL,
    CONSTRAINT spot_history_counts_check CHECK (((busy_count >= 0) AND (busy_count <= slot_count) AND (waiting_count >= 0))),
    CONSTRAINT spot_history_price_check CHECK ((spot_microcredits_per_hour >= 0)),
    CONSTRAINT spot_history_surge_check CHECK ((surge_ppm > 0))
);
CREATE TABLE public.spot_states (
    tier text NOT NULL,
    region text NOT NULL,
    surge_ppm integer NOT NULL,
    target_ppm integer NOT NULL,
    step_ppm integer NOT NULL,
    direction smallint NOT NULL,
    spot_microcredits_per_hour bigint NOT NULL,
    reference_microcredits_per_hour bigint NOT NULL,
    rate_card_version text NOT NULL,
    slot_count integer NOT NULL,
    busy_count integer NOT NULL,
    waiting_count integer NOT NULL,
    contested boolean NOT NULL,
    seconds_mean integer,
    bids jsonb DEFAULT '[]'::jsonb NOT NULL,
    at timestamp with time zone NOT NULL,
    CONSTRAINT spot_states_counts_check CHECK (((busy_count >= 0) AND (busy_count <= slot_count) AND (waiting_count >= 0))),
    CONSTRAINT spot_states_direction_check CHECK ((direction = ANY (ARRAY['-1'::integer, 0, 1]))),
    CONSTRAINT spot_states_price_check CHECK (((spot_microcredits_per_hour >= 0) AND (reference_microcredits_per_hour >= 0))),
    CONSTRAINT spot_states_seconds_check CHECK ((seconds_mean > 0)),
    CONSTRAINT spot_states_surge_check CHECK (((surge_ppm > 0) AND (target_ppm > 0) AND (step_ppm > 0)))
);
CREATE TABLE public.top_ups (
    id uuid NOT NULL,
    account_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    provider text NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    amount_microcredits bigint NOT NULL,
    state public.top_up_state DEFAULT 'requested'::public.top_up_state NOT NULL,
    provider_reference text,
    pay_url text DEFAULT ''::text NOT NULL,
    instructions text DEFAULT ''::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    paid_at timestamp with time zone,
    paid_back_at timestamp with time zone,
    asked_at timestamp with time zone,
    CONSTRAINT top_ups_amount_check CHECK (((amount_microcredits >= 1) AND (amount_microcredits <= '1000000000000000'::bigint))),
    CONSTRAINT top_ups_currency_check CHECK ((currency ~ '^[A-Z]{3}$'::text)),
    CONSTRAINT top_ups_minor_check CHECK ((amount_minor > 0)),
    CONSTRAINT top_ups_paid_back_check CHECK (((state = ANY (ARRAY['refunded'::public.top_up_state, 'charged_back'::public.top_up_state, 'paid_back_twice'::public.top_up_state])) = (paid_back_at IS NOT NULL))),
    CONSTRAINT top_ups_paid_check CHECK (((state = ANY (ARRAY['requested'::public.top_up_state, 'failed'::public.top_up_state])) = (paid_at IS NULL)))
);
CREATE TABLE public.trials (
    job_id uuid NOT NULL,
    node_id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    opened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    closed_at timestamp with time zone,
    was_right boolean,
    watched_job_id uuid,
    CONSTRAINT trials_closed_check CHECK (((closed_at IS NOT NULL) OR (was_right IS NULL)))
);
CREATE TABLE public.trust_effects (
    id bigint NOT NULL,
    node_id uuid NOT NULL,
    effect public.trust_effect NOT NULL,
    look_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE public.trust_effects ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.trust_effects_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.unplugged_nodes (
    node_id uuid NOT NULL,
    until timestamp with time zone NOT NULL
);
CREATE TABLE public.watches (
    attempt_id uuid NOT NULL,
    job_id uuid NOT NULL,
    node_id uuid NOT NULL,
    opened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    look_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE ONLY public.account_freezes
    ADD CONSTRAINT account_freezes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT accounts_email_unique UNIQUE (email);
ALTER TABLE ONLY public.accounts
    ADD CONSTRAINT accounts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_secret_unique UNIQUE (secret_sha256);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT artifacts_pkey PRIMARY KEY (account_id, sha256);
ALTER TABLE ONLY public.attempt_checkpoints
    ADD CONSTRAINT attempt_checkpoints_pkey PRIMARY KEY (attempt_id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_number_unique UNIQUE (job_id, slice_index, number);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.audit_batches
    ADD CONSTRAINT audit_batches_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.blocked_inputs
    ADD CONSTRAINT blocked_inputs_pkey PRIMARY KEY (sha256);
ALTER TABLE ONLY public.book_checkpoints
    ADD CONSTRAINT book_checkpoints_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.book_closings
    ADD CONSTRAINT book_closings_pkey PRIMARY KEY (day);
ALTER TABLE ONLY public.book_sums
    ADD CONSTRAINT book_sums_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.challenges
    ADD CONSTRAINT challenges_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.checks
    ADD CONSTRAINT checks_pkey PRIMARY KEY (attempt_id);
ALTER TABLE ONLY public.comparisons
    ADD CONSTRAINT comparisons_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY public.disputes
    ADD CONSTRAINT disputes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.fair_usage
    ADD CONSTRAINT fair_usage_pkey PRIMARY KEY (account_id);
ALTER TABLE ONLY public.grid_samples
    ADD CONSTRAINT grid_samples_pkey PRIMARY KEY (at);
ALTER TABLE ONLY public.hub_changes
    ADD CONSTRAINT hub_changes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.hub_facts
    ADD CONSTRAINT hub_facts_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY public.hub_keys
    ADD CONSTRAINT hub_keys_pkey PRIMARY KEY (kid);
ALTER TABLE ONLY public.hub_summaries
    ADD CONSTRAINT hub_summaries_pkey PRIMARY KEY (hub_process_id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (account_id, key);
ALTER TABLE ONLY public.invites
    ADD CONSTRAINT invites_pkey PRIMARY KEY (token_sha256);
ALTER TABLE ONLY public.job_checkpoints
    ADD CONSTRAINT job_checkpoints_pkey PRIMARY KEY (job_id, slice_index);
ALTER TABLE ONLY public.job_secrets
    ADD CONSTRAINT job_secrets_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ledger_accounts
    ADD CONSTRAINT ledger_accounts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ledger_transfers
    ADD CONSTRAINT ledger_transfers_pkey PRIMARY KEY (key, leg);
ALTER TABLE ONLY public.log_chunks
    ADD CONSTRAINT log_chunks_pkey PRIMARY KEY (attempt_id, start_offset);
ALTER TABLE ONLY public.market_clock
    ADD CONSTRAINT market_clock_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY public.networks
    ADD CONSTRAINT networks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.node_trust
    ADD CONSTRAINT node_trust_pkey PRIMARY KEY (node_id);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_public_key_unique UNIQUE (public_key);
ALTER TABLE ONLY public.offers
    ADD CONSTRAINT offers_pkey PRIMARY KEY (node_id);
ALTER TABLE ONLY public.owner_days_counted
    ADD CONSTRAINT owner_days_counted_pkey PRIMARY KEY (day);
ALTER TABLE ONLY public.owner_days
    ADD CONSTRAINT owner_days_pkey PRIMARY KEY (day, account_id);
ALTER TABLE ONLY public.payout_details
    ADD CONSTRAINT payout_details_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.payouts
    ADD CONSTRAINT payouts_key_unique UNIQUE (account_id, idempotency_key);
ALTER TABLE ONLY public.payouts
    ADD CONSTRAINT payouts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.placements
    ADD CONSTRAINT placements_pkey PRIMARY KEY (run_id, vnode_id, replica);
ALTER TABLE ONLY public.pnodes
    ADD CONSTRAINT pnodes_pkey PRIMARY KEY (node_id);
ALTER TABLE ONLY public.price_index
    ADD CONSTRAINT price_index_pkey PRIMARY KEY (tier, region, at);
ALTER TABLE ONLY public.profiles
    ADD CONSTRAINT profiles_pkey PRIMARY KEY (account_id);
ALTER TABLE ONLY public.proofs
    ADD CONSTRAINT proofs_pkey PRIMARY KEY (node_id, slot);
ALTER TABLE ONLY public.provider_events
    ADD CONSTRAINT provider_events_pkey PRIMARY KEY (provider, event_id);
ALTER TABLE ONLY public.rate_cards
    ADD CONSTRAINT rate_cards_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.receipts
    ADD CONSTRAINT receipts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.reliabilities
    ADD CONSTRAINT reliabilities_pkey PRIMARY KEY (node_id, job_class);
ALTER TABLE ONLY public.run_audits
    ADD CONSTRAINT run_audits_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.run_blobs
    ADD CONSTRAINT run_blobs_pkey PRIMARY KEY (run_id, sha256);
ALTER TABLE ONLY public.run_checkpoint_parts
    ADD CONSTRAINT run_checkpoint_parts_pkey PRIMARY KEY (run_id, step, vnode_id);
ALTER TABLE ONLY public.run_checkpoints
    ADD CONSTRAINT run_checkpoints_pkey PRIMARY KEY (run_id, step);
ALTER TABLE ONLY public.run_events
    ADD CONSTRAINT run_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.run_metrics
    ADD CONSTRAINT run_metrics_pkey PRIMARY KEY (run_id, step);
ALTER TABLE ONLY public.run_seats
    ADD CONSTRAINT run_seats_pkey PRIMARY KEY (run_id, seat);
ALTER TABLE ONLY public.run_seats
    ADD CONSTRAINT run_seats_slice_unique UNIQUE (run_id, slice_index);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_job_unique UNIQUE (job_id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.shapes
    ADD CONSTRAINT shapes_digest_unique UNIQUE (digest);
ALTER TABLE ONLY public.shapes
    ADD CONSTRAINT shapes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sign_in_links
    ADD CONSTRAINT sign_in_links_pkey PRIMARY KEY (token_sha256);
ALTER TABLE ONLY public.sittings
    ADD CONSTRAINT sittings_pkey PRIMARY KEY (node_id, slot);
ALTER TABLE ONLY public.slices
    ADD CONSTRAINT slices_pkey PRIMARY KEY (job_id, slice_index);
ALTER TABLE ONLY public.slots
    ADD CONSTRAINT slots_pkey PRIMARY KEY (node_id, name);
ALTER TABLE ONLY public.spot_history
    ADD CONSTRAINT spot_history_pkey PRIMARY KEY (tier, region, at);
ALTER TABLE ONLY public.spot_states
    ADD CONSTRAINT spot_states_pkey PRIMARY KEY (tier, region);
ALTER TABLE ONLY public.top_ups
    ADD CONSTRAINT top_ups_key_unique UNIQUE (account_id, idempotency_key);
ALTER TABLE ONLY public.top_ups
    ADD CONSTRAINT top_ups_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.trials
    ADD CONSTRAINT trials_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY public.trust_effects
    ADD CONSTRAINT trust_effects_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.unplugged_nodes
    ADD CONSTRAINT unplugged_nodes_pkey PRIMARY KEY (node_id);
ALTER TABLE ONLY public.watches
    ADD CONSTRAINT watches_pkey PRIMARY KEY (attempt_id);
CREATE UNIQUE INDEX account_freezes_in_force_idx ON public.account_freezes USING btree (account_id) WHERE (lifted_at IS NULL);
CREATE INDEX accounts_suspended_idx ON public.accounts USING btree (id) WHERE (suspended_at IS NOT NULL);
CREATE INDEX api_keys_account_idx ON public.api_keys USING btree (account_id, created_at);
CREATE INDEX artifacts_sha256_idx ON public.artifacts USING btree (sha256);
CREATE INDEX attempt_checkpoints_slice_idx ON public.attempt_checkpoints USING btree (job_id, slice_index, attempt_number);
CREATE INDEX attempt_checkpoints_unjudged_idx ON public.attempt_checkpoints USING btree (job_id, slice_index) WHERE ((left_out_after IS NOT NULL) AND (verdict IS NULL));
CREATE INDEX attempts_expiry_idx ON public.attempts USING btree (expires_at) WHERE (state = ANY (ARRAY['leased'::public.attempt_state, 'running'::public.attempt_state]));
CREATE UNIQUE INDEX attempts_live_slice_idx ON public.attempts USING btree (job_id, slice_index) WHERE (state = ANY (ARRAY['leased'::public.attempt_state, 'running'::public.attempt_state]));
CREATE UNIQUE INDEX attempts_live_slot_idx ON public.attempts USING btree (node_id, slot) WHERE (state = ANY (ARRAY['leased'::public.attempt_state, 'running'::public.attempt_state]));
CREATE INDEX attempts_node_end_idx ON public.attempts USING btree (node_id, finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX attempts_receipt_idx ON public.attempts USING btree (receipt_id) WHERE (receipt_id IS NOT NULL);
CREATE INDEX attempts_release_idx ON public.attempts USING btree (release_at) WHERE (earning_state = 'pending'::public.earning_state);
CREATE INDEX attempts_superseded_idx ON public.attempts USING btree (finished_at) WHERE ((cause = 'superseded'::public.failure_cause) AND (made_good_microcredits IS NULL));
CREATE INDEX attempts_waiting_pay_idx ON public.attempts USING btree (node_id) WHERE ((earning_state = 'pending'::public.earning_state) AND (pay_waits_since IS NOT NULL));
CREATE INDEX audit_batches_first_at_idx ON public.audit_batches USING btree (first_at);
CREATE INDEX audit_batches_last_at_idx ON public.audit_batches USING btree (last_at);
CREATE INDEX book_checkpoints_last_at_idx ON public.book_checkpoints USING btree (last_at);
CREATE INDEX challenges_node_idx ON public.challenges USING btree (node_id, slot, issued_at);
CREATE INDEX checks_due_idx ON public.checks USING btree (look_at) WHERE (state <> 'closed'::public.check_state);
CREATE INDEX checks_job_idx ON public.checks USING btree (job_id, slice_index);
CREATE INDEX checks_known_idx ON public.checks USING btree (closed_at) WHERE ((state = 'closed'::public.check_state) AND (outcome = 'agreed'::public.check_outcome) AND (mode = 'audit'::public.verify_mode));
CREATE INDEX checks_node_idx ON public.checks USING btree (node_id, opened_at);
CREATE UNIQUE INDEX comparisons_check_idx ON public.comparisons USING btree (attempt_id, number);
CREATE INDEX disputes_attempt_idx ON public.disputes USING btree (attempt_id, opened_at);
CREATE UNIQUE INDEX disputes_once_idx ON public.disputes USING btree (attempt_id) WHERE (origin = 'submitter'::public.dispute_origin);
CREATE UNIQUE INDEX disputes_open_idx ON public.disputes USING btree (attempt_id) WHERE (state = 'open'::public.dispute_state);
CREATE INDEX disputes_owner_idx ON public.disputes USING btree (owner_id, id);
CREATE INDEX disputes_state_idx ON public.disputes USING btree (state, id);
CREATE INDEX disputes_submitter_idx ON public.disputes USING btree (submitter_id, id);
CREATE UNIQUE INDEX disputes_upheld_idx ON public.disputes USING btree (attempt_id) WHERE (state = 'upheld'::public.dispute_state);
CREATE INDEX events_job_idx ON public.events USING btree (job_id, id) WHERE (job_id IS NOT NULL);
CREATE INDEX events_xid_idx ON public.events USING btree (xid, id);
CREATE INDEX hub_changes_at_idx ON public.hub_changes USING btree (at);
CREATE INDEX jobs_account_idx ON public.jobs USING btree (account_id, id);
CREATE INDEX jobs_audited_idx ON public.jobs USING btree (account_id, id) WHERE ((verify = 'audit'::public.verify_mode) AND (NOT nondeterministic));
CREATE INDEX jobs_checks_idx ON public.jobs USING btree (checks_attempt_id) WHERE (checks_attempt_id IS NOT NULL);
CREATE INDEX jobs_deadline_idx ON public.jobs USING btree (deadline_at) WHERE ((finished_at IS NULL) AND (deadline_at IS NOT NULL));
CREATE INDEX jobs_expiry_idx ON public.jobs USING btree (expires_at) WHERE ((finished_at IS NULL) AND (expires_at IS NOT NULL));
CREATE INDEX jobs_open_idx ON public.jobs USING btree (account_id) WHERE (finished_at IS NULL);
CREATE INDEX ledger_transfers_cash_idx ON public.ledger_transfers USING btree (at) WHERE ((top_up_id IS NOT NULL) OR (payout_id IS NOT NULL));
CREATE INDEX ledger_transfers_range_idx ON public.ledger_transfers USING brin (id, at) WITH (pages_per_range='32', autosummarize='on');
CREATE INDEX ledger_transfers_source_idx ON public.ledger_transfers USING btree (source_id, id) WHERE ((source_id !~~ 'fee/%'::text) AND (source_id !~~ 'world/%'::text));
CREATE INDEX ledger_transfers_target_idx ON public.ledger_transfers USING btree (target_id, id) WHERE ((target_id !~~ 'fee/%'::text) AND (target_id !~~ 'world/%'::text) AND (kind <> ALL (ARRAY['hold'::public.ledger_transfer_kind, 'refund'::public.ledger_transfer_kind])));
CREATE INDEX networks_account_idx ON public.networks USING btree (account_id, id);
CREATE UNIQUE INDEX networks_key_unique ON public.networks USING btree (account_id, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX node_trust_standing_idx ON public.node_trust USING btree (standing, node_id) WHERE (standing <> 'clear'::public.standing);
CREATE INDEX nodes_account_idx ON public.nodes USING btree (account_id, id);
CREATE INDEX nodes_network_idx ON public.nodes USING btree (network) WHERE (network IS NOT NULL);
CREATE INDEX offers_hours_idx ON public.offers USING btree (hours, zone) WHERE (hours IS NOT NULL);
CREATE INDEX payout_details_account_idx ON public.payout_details USING btree (account_id, created_at);
CREATE INDEX payouts_account_idx ON public.payouts USING btree (account_id, id);
CREATE INDEX payouts_day_idx ON public.payouts USING btree (account_id, created_at);
CREATE INDEX payouts_open_idx ON public.payouts USING btree (asked_at NULLS FIRST, id) WHERE (state = ANY (ARRAY['approved'::public.payout_state, 'sent'::public.payout_state, 'unknown'::public.payout_state]));
CREATE INDEX payouts_sent_idx ON public.payouts USING btree (sent_at) WHERE (sent_at IS NOT NULL);
CREATE INDEX payouts_waiting_idx ON public.payouts USING btree (state, id) WHERE (state = ANY (ARRAY['requested'::public.payout_state, 'reserved'::public.payout_state, 'approved'::public.payout_state]));
CREATE INDEX price_index_at_idx ON public.price_index USING btree (at);
CREATE UNIQUE INDEX profiles_pseudonym_unique ON public.profiles USING btree (lower(pseudonym)) WHERE (pseudonym IS NOT NULL);
CREATE INDEX provider_events_refused_idx ON public.provider_events USING btree (received_at, provider, event_id) WHERE ((verdict = 'refused'::public.claim_verdict) AND (reviewed_at IS NULL));
CREATE INDEX provider_events_subject_idx ON public.provider_events USING btree (subject_id, received_at);
CREATE INDEX receipts_unverified_idx ON public.receipts USING btree (created_at) WHERE (state = 'unverified'::public.receipt_state);
CREATE INDEX run_audits_node_idx ON public.run_audits USING btree (node_id, id DESC) WHERE (outcome = ANY (ARRAY['agreed'::public.audit_outcome, 'wrong'::public.audit_outcome]));
CREATE INDEX run_audits_run_idx ON public.run_audits USING btree (run_id, id);
CREATE INDEX run_blobs_sha256_idx ON public.run_blobs USING btree (sha256);
CREATE INDEX run_events_run_idx ON public.run_events USING btree (run_id, id);
CREATE INDEX run_metrics_event_idx ON public.run_metrics USING btree (run_id, event_id);
CREATE UNIQUE INDEX run_seats_attempt_unique ON public.run_seats USING btree (attempt_id) WHERE (attempt_id IS NOT NULL);
CREATE INDEX runs_account_idx ON public.runs USING btree (account_id, id);
CREATE INDEX runs_network_idx ON public.runs USING btree (network_id, id);
CREATE INDEX runs_open_idx ON public.runs USING btree (owner_until) WHERE (finished_at IS NULL);
CREATE INDEX sittings_asked_idx ON public.sittings USING btree (node_id) WHERE (asked_at IS NOT NULL);
CREATE INDEX sittings_due_idx ON public.sittings USING btree (due_at) WHERE (asked_at IS NULL);
CREATE INDEX slices_queue_idx ON public.slices USING btree (shape_id, priority_class DESC, account_id, priority DESC, queued_at, job_id, slice_index) WHERE (state = 'queued'::public.slice_state);
CREATE INDEX slices_verifying_idx ON public.slices USING btree (job_id) WHERE (state = 'verifying'::public.slice_state);
CREATE INDEX spot_history_at_idx ON public.spot_history USING btree (at);
CREATE INDEX top_ups_account_idx ON public.top_ups USING btree (account_id, id);
CREATE INDEX top_ups_day_idx ON public.top_ups USING btree (account_id, created_at);
CREATE INDEX top_ups_open_idx ON public.top_ups USING btree (asked_at NULLS FIRST, id) WHERE (state = 'requested'::public.top_up_state);
CREATE INDEX trials_closed_idx ON public.trials USING btree (node_id, closed_at) WHERE (was_right IS NOT NULL);
CREATE INDEX trials_node_idx ON public.trials USING btree (node_id, attempt_id);
CREATE UNIQUE INDEX trials_open_idx ON public.trials USING btree (node_id) WHERE (closed_at IS NULL);
CREATE INDEX trials_watched_idx ON public.trials USING btree (watched_job_id) WHERE (watched_job_id IS NOT NULL);
CREATE INDEX watches_due_idx ON public.watches USING btree (look_at);
CREATE INDEX watches_node_idx ON public.watches USING btree (node_id);
CREATE TRIGGER audit_batches_never_change BEFORE DELETE OR UPDATE OR TRUNCATE ON public.audit_batches FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();
CREATE TRIGGER book_checkpoints_never_change BEFORE DELETE OR UPDATE OR TRUNCATE ON public.book_checkpoints FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();
CREATE TRIGGER book_closings_never_change BEFORE DELETE OR UPDATE OR TRUNCATE ON public.book_closings FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();
CREATE TRIGGER ledger_transfers_never_change BEFORE DELETE OR UPDATE OR TRUNCATE ON public.ledger_transfers FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();
CREATE TRIGGER payouts_refuse_change BEFORE UPDATE ON public.payouts FOR EACH ROW EXECUTE FUNCTION public.refuse_payout_change();
CREATE TRIGGER placements_incarnation_grows BEFORE UPDATE ON public.placements FOR EACH ROW WHEN (((new.incarnation < old.incarnation) OR ((new.incarnation = old.incarnation) AND (new.seat <> old.seat)))) EXECUTE FUNCTION public.refuse_old_incarnation();
CREATE TRIGGER runs_epoch_never_falls BEFORE UPDATE ON public.runs FOR EACH ROW WHEN ((new.epoch < old.epoch)) EXECUTE FUNCTION public.refuse_lower_epoch();
ALTER TABLE ONLY public.account_freezes
    ADD CONSTRAINT account_freezes_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.account_freezes
    ADD CONSTRAINT account_freezes_lifted_by_fkey FOREIGN KEY (lifted_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT artifacts_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.attempt_checkpoints
    ADD CONSTRAINT attempt_checkpoints_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES public.attempts(id);
ALTER TABLE ONLY public.blocked_inputs
    ADD CONSTRAINT blocked_inputs_blocked_by_fkey FOREIGN KEY (blocked_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.book_checkpoints
    ADD CONSTRAINT book_checkpoints_batch_number_fkey FOREIGN KEY (batch_number) REFERENCES public.audit_batches(number);
ALTER TABLE ONLY public.book_closings
    ADD CONSTRAINT book_closings_closed_by_fkey FOREIGN KEY (closed_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.challenges
    ADD CONSTRAINT challenges_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.disputes
    ADD CONSTRAINT disputes_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES public.attempts(id);
ALTER TABLE ONLY public.disputes
    ADD CONSTRAINT disputes_decided_by_fkey FOREIGN KEY (decided_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.disputes
    ADD CONSTRAINT disputes_opened_by_fkey FOREIGN KEY (opened_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.disputes
    ADD CONSTRAINT disputes_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.disputes
    ADD CONSTRAINT disputes_submitter_id_fkey FOREIGN KEY (submitter_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.invites
    ADD CONSTRAINT invites_created_by_fkey FOREIGN KEY (created_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.invites
    ADD CONSTRAINT invites_used_by_fkey FOREIGN KEY (used_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.job_checkpoints
    ADD CONSTRAINT job_checkpoints_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES public.attempts(id);
ALTER TABLE ONLY public.job_secrets
    ADD CONSTRAINT job_secrets_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.networks
    ADD CONSTRAINT networks_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.node_trust
    ADD CONSTRAINT node_trust_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.offers
    ADD CONSTRAINT offers_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.payout_details
    ADD CONSTRAINT payout_details_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.payouts
    ADD CONSTRAINT payouts_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.payouts
    ADD CONSTRAINT payouts_approved_by_fkey FOREIGN KEY (approved_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.payouts
    ADD CONSTRAINT payouts_details_id_fkey FOREIGN KEY (details_id) REFERENCES public.payout_details(id);
ALTER TABLE ONLY public.placements
    ADD CONSTRAINT placements_seat_fkey FOREIGN KEY (run_id, seat) REFERENCES public.run_seats(run_id, seat);
ALTER TABLE ONLY public.pnodes
    ADD CONSTRAINT pnodes_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.profiles
    ADD CONSTRAINT profiles_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.proofs
    ADD CONSTRAINT proofs_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.provider_events
    ADD CONSTRAINT provider_events_reviewed_by_fkey FOREIGN KEY (reviewed_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.provider_events
    ADD CONSTRAINT provider_events_said_by_fkey FOREIGN KEY (said_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.run_audits
    ADD CONSTRAINT run_audits_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.run_audits
    ADD CONSTRAINT run_audits_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.run_blobs
    ADD CONSTRAINT run_blobs_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.run_checkpoint_parts
    ADD CONSTRAINT run_checkpoint_parts_step_fkey FOREIGN KEY (run_id, step) REFERENCES public.run_checkpoints(run_id, step) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_checkpoints
    ADD CONSTRAINT run_checkpoints_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.run_seats
    ADD CONSTRAINT run_seats_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_network_id_fkey FOREIGN KEY (network_id) REFERENCES public.networks(id);
ALTER TABLE ONLY public.sign_in_links
    ADD CONSTRAINT sign_in_links_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.sittings
    ADD CONSTRAINT sittings_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.slots
    ADD CONSTRAINT slots_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.top_ups
    ADD CONSTRAINT top_ups_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.trust_effects
    ADD CONSTRAINT trust_effects_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
ALTER TABLE ONLY public.unplugged_nodes
    ADD CONSTRAINT unplugged_nodes_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
