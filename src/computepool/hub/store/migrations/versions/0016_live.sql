-- What strangers may see of people and machines, and what is kept so that charts need not count a year of attempts.

-- ## Pseudonyms

-- What pseudonyms of nodes, jobs and accounts are made with: without it nobody can tell which id stands behind one.
ALTER TABLE hub_facts ADD COLUMN pseudonym_key bytea NOT NULL
    DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
    CONSTRAINT hub_facts_pseudonym_check CHECK (octet_length(pseudonym_key) = 32);

-- What an account lets strangers see. Without a row: listed, under a pseudonym made from the id, and no titles.
CREATE TABLE profiles (
    account_id uuid PRIMARY KEY REFERENCES accounts (id),
    -- Absent: the one that is made from the id.
    pseudonym text CONSTRAINT profiles_pseudonym_check CHECK (length(pseudonym) BETWEEN 3 AND 30),
    on_leaderboard boolean NOT NULL DEFAULT true,
    -- Whether strangers may read the names of its jobs.
    shows_titles boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX profiles_pseudonym_unique ON profiles (lower(pseudonym)) WHERE pseudonym IS NOT NULL;

-- ## Days of owners

-- What the machines of an account have done for others on a day (UTC); deals with oneself and with linked accounts are
-- left out. Counted anew while pay may still be taken back, and kept as it is afterwards.
CREATE TABLE owner_days (
    day date NOT NULL,
    account_id uuid NOT NULL,
    earned_microcredits bigint NOT NULL,
    seconds bigint NOT NULL,
    verified_count integer NOT NULL,
    PRIMARY KEY (day, account_id),
    CONSTRAINT owner_days_sums_check CHECK (earned_microcredits >= 0 AND seconds >= 0 AND verified_count >= 0)
);
CREATE TABLE owner_days_counted (
    day date PRIMARY KEY,
    counted_at timestamptz NOT NULL
);

-- ## Samples of the grid

-- One a minute, for the charts of the operator.
CREATE TABLE grid_samples (
    at timestamptz PRIMARY KEY,
    nodes_online integer NOT NULL,
    slot_count integer NOT NULL,
    busy_count integer NOT NULL,
    slices_queued integer NOT NULL,
    CONSTRAINT grid_samples_counts_check CHECK (
        nodes_online >= 0 AND busy_count >= 0 AND slot_count >= 0 AND slices_queued >= 0)
);

-- ## Demo

-- Synthetic nodes of a demo whose plug was pulled: until then their calls are not answered.
CREATE TABLE unplugged_nodes (
    node_id uuid PRIMARY KEY REFERENCES nodes (id),
    until timestamptz NOT NULL
);
