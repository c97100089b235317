-- name: insert_audit!
INSERT INTO run_audits (id, run_id, epoch, seat, attempt_id, node_id, from_step, until_step, outcome, witness_ids,
                        message)
VALUES (:id, :run_id, :epoch, :seat, :attempt_id, :node_id, :from_step, :until_step, :outcome::audit_outcome,
        :witness_ids::uuid[], :message)
ON CONFLICT DO NOTHING;

-- name: list_standings
-- Of nodes: whose they are, and how many spans were found right since the last that was not. Through
-- run_audits_node_idx, of which no more than so many rows matter.
SELECT n.id AS node_id, n.account_id AS owner_id,
       (SELECT count(*) FROM (
            SELECT a.outcome, bool_or(a.outcome = 'wrong') OVER (ORDER BY a.id DESC) AS was_wrong
              FROM (SELECT id, outcome FROM run_audits
                     WHERE node_id = n.id AND outcome IN ('agreed', 'wrong')
                     ORDER BY id DESC LIMIT :limit_count) AS a) AS known
         WHERE NOT known.was_wrong)::integer AS validated
  FROM nodes n WHERE n.id = ANY(:node_ids::uuid[]);

-- name: list_outcomes
-- Newest first, of those that were decided; with `since` no older ones.
SELECT outcome FROM run_audits WHERE node_id = :node_id AND outcome IN ('agreed', 'wrong')
   AND (:since::timestamptz IS NULL OR decided_at >= :since)
 ORDER BY id DESC LIMIT :limit_count;

-- name: list_wrong_spans
-- Of each node the newest, through run_audits_node_idx.
SELECT a.* FROM unnest(:node_ids::uuid[]) AS k (node_id)
 CROSS JOIN LATERAL (SELECT node_id, run_id, seat, from_step, until_step, witness_ids, message, decided_at
                       FROM run_audits WHERE node_id = k.node_id AND outcome = 'wrong'
                      ORDER BY id DESC LIMIT :limit_count) AS a;

-- name: count_outcomes
SELECT outcome, count(*) AS count FROM run_audits WHERE run_id = :run_id GROUP BY outcome;

-- name: mark_audited!
UPDATE run_checkpoints SET audited_at = clock_timestamp()
 WHERE run_id = :run_id AND step = :step AND complete_at IS NOT NULL;

-- name: delete_checkpoints_after
-- Says which contents they were made of.
WITH void AS (DELETE FROM run_checkpoints WHERE run_id = :run_id AND step > :step RETURNING step)
SELECT DISTINCT p.sha256 FROM run_checkpoint_parts p JOIN void ON void.step = p.step WHERE p.run_id = :run_id;

-- name: lower_pay$
-- A live seat is paid to the checkpoint after this step and no further: to when it was complete, or not at all. No row:
-- the attempt is over.
UPDATE attempts SET checkpoint_seconds = least(checkpoint_seconds, greatest(0, coalesce((
           SELECT floor(extract(epoch FROM c.complete_at - attempts.leased_at))::integer FROM run_checkpoints c
            WHERE c.run_id = :run_id AND c.step = :step), 0)))
 WHERE id = :attempt_id AND state IN ('leased', 'running') AND checkpoint_seconds IS NOT NULL
RETURNING checkpoint_seconds;
