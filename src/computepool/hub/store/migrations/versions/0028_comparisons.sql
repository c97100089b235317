-- Runs of a submitter's command on two results of a slice. What one has said is how its attempt ended, which does not change.

CREATE TABLE comparisons (
    -- The job that a node runs.
    job_id uuid PRIMARY KEY,
    -- The check that waits for it: whose result is checked.
    attempt_id uuid NOT NULL,
    -- In the order in which the check has asked for them: two hubs that ask at once ask for the same one.
    number integer NOT NULL,
    -- The attempts whose results are compared, the earlier run first. Twice the same: whether the command can read it.
    one_id uuid NOT NULL,
    other_id uuid NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT comparisons_number_check CHECK (number BETWEEN 1 AND 40)
);
CREATE UNIQUE INDEX comparisons_check_idx ON comparisons (attempt_id, number);
