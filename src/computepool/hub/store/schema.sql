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
    'poisonous'
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
CREATE TYPE public.node_state AS ENUM (
    'active',
    'paused',
    'draining',
    'removed'
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
CREATE TYPE public.receipt_state AS ENUM (
    'unverified',
    'verified',
    'refused'
);
CREATE TYPE public.slice_state AS ENUM (
    'queued',
    'leased',
    'running',
    'succeeded',
    'failed',
    'cancelled'
);
CREATE TYPE public.slot_kind AS ENUM (
    'gpu',
    'cpu'
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
    CONSTRAINT accounts_fair_weight_check CHECK (((fair_weight >= (0.01)::double precision) AND (fair_weight <= (100)::double precision))),
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
    CONSTRAINT attempts_cause_check CHECK (((cause IS NOT NULL) = (state = ANY (ARRAY['failed'::public.attempt_state, 'lost'::public.attempt_state, 'cancelled'::public.attempt_state])))),
    CONSTRAINT attempts_finished_check CHECK (((state = ANY (ARRAY['succeeded'::public.attempt_state, 'failed'::public.attempt_state, 'lost'::public.attempt_state, 'cancelled'::public.attempt_state])) = (finished_at IS NOT NULL)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.01', autovacuum_analyze_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
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
    CONSTRAINT hub_facts_only_row_check CHECK (only_row)
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
    CONSTRAINT jobs_counts_check CHECK (((succeeded_count >= 0) AND (failed_count >= 0) AND (cancelled_count >= 0) AND (((succeeded_count + failed_count) + cancelled_count) <= slice_count))),
    CONSTRAINT jobs_finished_check CHECK ((((state = ANY (ARRAY['succeeded'::public.job_state, 'failed'::public.job_state, 'cancelled'::public.job_state])) = (finished_at IS NOT NULL)) AND ((finished_at IS NOT NULL) = (((succeeded_count + failed_count) + cancelled_count) = slice_count)))),
    CONSTRAINT jobs_slice_count_check CHECK (((slice_count >= 1) AND (slice_count <= 100000)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE public.log_chunks (
    attempt_id uuid NOT NULL,
    start_offset bigint NOT NULL,
    content bytea NOT NULL
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
    CONSTRAINT nodes_floor_check CHECK ((floor_microcredits_per_hour >= 0))
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
    ceiling_microcredits_per_hour bigint
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
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_number_unique UNIQUE (job_id, slice_index, number);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.fair_usage
    ADD CONSTRAINT fair_usage_pkey PRIMARY KEY (account_id);
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
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.log_chunks
    ADD CONSTRAINT log_chunks_pkey PRIMARY KEY (attempt_id, start_offset);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_public_key_unique UNIQUE (public_key);
ALTER TABLE ONLY public.receipts
    ADD CONSTRAINT receipts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.reliabilities
    ADD CONSTRAINT reliabilities_pkey PRIMARY KEY (node_id, job_class);
ALTER TABLE ONLY public.shapes
    ADD CONSTRAINT shapes_digest_unique UNIQUE (digest);
ALTER TABLE ONLY public.shapes
    ADD CONSTRAINT shapes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sign_in_links
    ADD CONSTRAINT sign_in_links_pkey PRIMARY KEY (token_sha256);
ALTER TABLE ONLY public.slices
    ADD CONSTRAINT slices_pkey PRIMARY KEY (job_id, slice_index);
ALTER TABLE ONLY public.slots
    ADD CONSTRAINT slots_pkey PRIMARY KEY (node_id, name);
CREATE INDEX api_keys_account_idx ON public.api_keys USING btree (account_id, created_at);
CREATE INDEX attempts_expiry_idx ON public.attempts USING btree (expires_at) WHERE (state = ANY (ARRAY['leased'::public.attempt_state, 'running'::public.attempt_state]));
CREATE UNIQUE INDEX attempts_live_slice_idx ON public.attempts USING btree (job_id, slice_index) WHERE (state = ANY (ARRAY['leased'::public.attempt_state, 'running'::public.attempt_state]));
CREATE UNIQUE INDEX attempts_live_slot_idx ON public.attempts USING btree (node_id, slot) WHERE (state = ANY (ARRAY['leased'::public.attempt_state, 'running'::public.attempt_state]));
CREATE INDEX attempts_receipt_idx ON public.attempts USING btree (receipt_id) WHERE (receipt_id IS NOT NULL);
CREATE INDEX events_job_idx ON public.events USING btree (job_id, id) WHERE (job_id IS NOT NULL);
CREATE INDEX events_xid_idx ON public.events USING btree (xid, id);
CREATE INDEX hub_changes_at_idx ON public.hub_changes USING btree (at);
CREATE INDEX jobs_account_idx ON public.jobs USING btree (account_id, id);
CREATE INDEX jobs_deadline_idx ON public.jobs USING btree (deadline_at) WHERE ((finished_at IS NULL) AND (deadline_at IS NOT NULL));
CREATE INDEX jobs_expiry_idx ON public.jobs USING btree (expires_at) WHERE ((finished_at IS NULL) AND (expires_at IS NOT NULL));
CREATE INDEX jobs_open_idx ON public.jobs USING btree (account_id) WHERE (finished_at IS NULL);
CREATE INDEX nodes_account_idx ON public.nodes USING btree (account_id, id);
CREATE INDEX receipts_unverified_idx ON public.receipts USING btree (created_at) WHERE (state = 'unverified'::public.receipt_state);
CREATE INDEX slices_queue_idx ON public.slices USING btree (shape_id, priority_class DESC, account_id, priority DESC, queued_at, job_id, slice_index) WHERE (state = 'queued'::public.slice_state);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT artifacts_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.invites
    ADD CONSTRAINT invites_created_by_fkey FOREIGN KEY (created_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.invites
    ADD CONSTRAINT invites_used_by_fkey FOREIGN KEY (used_by) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.sign_in_links
    ADD CONSTRAINT sign_in_links_account_id_fkey FOREIGN KEY (account_id) REFERENCES public.accounts(id);
ALTER TABLE ONLY public.slots
    ADD CONSTRAINT slots_node_id_fkey FOREIGN KEY (node_id) REFERENCES public.nodes(id);
