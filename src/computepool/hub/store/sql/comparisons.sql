-- name: list_comparisons
-- Of one check, oldest first.
SELECT c.job_id, c.one_id, c.other_id, j.state AS job_state, a.state, a.exit_code, a.cause, a.finished_at, a.node_id,
       n.account_id AS owner_id, n.network
  FROM comparisons c JOIN jobs j ON j.id = c.job_id JOIN attempts a ON a.job_id = c.job_id AND a.number = 1
  JOIN nodes n ON n.id = a.node_id
 WHERE c.attempt_id = :attempt_id ORDER BY c.number;

-- name: insert_comparison$
-- Guarded by what was seen: of two hubs that ask at the same moment one does, and nobody for what is ruled.
INSERT INTO comparisons (job_id, attempt_id, number, one_id, other_id)
SELECT :job_id, attempt_id, :number, :one_id, :other_id FROM checks
 WHERE attempt_id = :attempt_id AND state = 'open' FOR UPDATE
ON CONFLICT (attempt_id, number) DO NOTHING RETURNING true;
