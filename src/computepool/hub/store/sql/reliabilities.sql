-- name: insert_absent!
-- So that there is a row to lock; in order, as all who write here do.
INSERT INTO reliabilities (node_id, job_class, finished, failed, faults_running, counted_at)
SELECT node_id, job_class, 0, 0, 0, :now FROM unnest(:node_ids::uuid[], :job_classes::text[]) AS k (node_id, job_class)
 ORDER BY node_id, job_class
ON CONFLICT DO NOTHING;

-- name: lock_reliabilities
SELECT node_id, job_class, finished, failed, faults_running, counted_at FROM reliabilities
 WHERE (node_id, job_class) IN (SELECT * FROM unnest(:node_ids::uuid[], :job_classes::text[]))
 ORDER BY node_id, job_class FOR UPDATE;

-- name: set_reliabilities!
-- One event more or less moves no bound: nobody waits for the disk because of it.
UPDATE reliabilities r
   SET finished = n.finished, failed = n.failed, faults_running = n.faults_running, counted_at = n.counted_at
  FROM unnest(:node_ids::uuid[], :job_classes::text[], :finished::double precision[], :failed::double precision[],
              :faults_running::integer[], :counted_at::timestamptz[])
       AS n (node_id, job_class, finished, failed, faults_running, counted_at)
 CROSS JOIN set_config('synchronous_commit', 'off', true)
 WHERE r.node_id = n.node_id AND r.job_class = n.job_class;

-- name: list_reliabilities
SELECT node_id, job_class, finished, failed, faults_running, counted_at FROM reliabilities
 WHERE node_id = ANY(:node_ids::uuid[]);
