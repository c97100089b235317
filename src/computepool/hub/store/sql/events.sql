-- name: insert_events!
INSERT INTO events (kind, account_id, job_id, node_id, body)
SELECT * FROM unnest(:kinds::text[], :account_ids::uuid[], :job_ids::uuid[], :node_ids::uuid[], :bodies::jsonb[]);

-- name: list_job_events
SELECT id, at, kind, job_id, node_id, body FROM events WHERE job_id = :job_id AND id > :after
 ORDER BY id LIMIT :limit_count;
