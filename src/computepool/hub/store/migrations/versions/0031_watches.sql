-- Nodes that run jobs whose runs differ by themselves are watched by slices whose answers are known.

-- Drawn, and waiting for a free slot of the node. Gone once the slice is leased, or once that was in vain for too long.
CREATE TABLE watches (
    -- The result for which it was drawn.
    attempt_id uuid PRIMARY KEY,
    job_id uuid NOT NULL,
    node_id uuid NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it is to be looked at next: whoever looks moves it on, so that two hubs do not.
    look_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX watches_due_idx ON watches (look_at);
CREATE INDEX watches_node_idx ON watches (node_id);

ALTER TABLE trials
    -- The job whose nodes are watched by it; null: it is part of the node's way back.
    ADD COLUMN watched_job_id uuid;
CREATE INDEX trials_watched_idx ON trials (watched_job_id) WHERE watched_job_id IS NOT NULL;
CREATE INDEX trials_closed_idx ON trials (node_id, closed_at) WHERE was_right IS NOT NULL;

-- Where answers are known: newest of all, and of one submitter.
CREATE INDEX checks_known_idx ON checks (closed_at) WHERE state = 'closed' AND outcome = 'agreed' AND mode = 'audit';
CREATE INDEX jobs_audited_idx ON jobs (account_id, id) WHERE verify = 'audit' AND NOT nondeterministic;
