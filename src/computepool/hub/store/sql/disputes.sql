-- name: insert_disputes!
INSERT INTO disputes (id, attempt_id, submitter_id, owner_id, origin, reason, opened_by)
SELECT n.id, n.attempt_id, n.submitter_id, n.owner_id, :origin::dispute_origin, :reason, :opened_by::uuid
  FROM unnest(:ids::uuid[], :attempt_ids::uuid[], :submitter_ids::uuid[], :owner_ids::uuid[])
       AS n (id, attempt_id, submitter_id, owner_id);

-- name: decide_dispute!
UPDATE disputes SET state = :state::dispute_state, note = :note, decided_at = now(), decided_by = :decided_by::uuid
 WHERE id = :id;

-- name: find_dispute^
SELECT * FROM disputed_pay WHERE id = :id;

-- name: list_of_attempt
-- Through disputes_attempt_idx. Few: a submitter's one, and what the hub and the operator have found.
SELECT * FROM disputed_pay WHERE attempt_id = :attempt_id ORDER BY opened_at DESC;

-- name: list_of_party
-- Both sides of a person, each through its own index.
SELECT * FROM (
    (SELECT * FROM disputed_pay WHERE submitter_id = :account_id AND id < :before ORDER BY id DESC LIMIT :limit_count)
    UNION ALL
    (SELECT * FROM disputed_pay WHERE owner_id = :account_id AND id < :before ORDER BY id DESC LIMIT :limit_count)
) AS found ORDER BY id DESC LIMIT :limit_count;

-- name: list_in_state
-- Through disputes_state_idx.
SELECT * FROM disputed_pay WHERE state = :state::dispute_state AND id > :after ORDER BY id LIMIT :limit_count;

-- name: find_paid_attempt$
-- Through attempts_number_unique. One that is named may be unpaid: whoever asks is told so.
SELECT a.id FROM attempts a JOIN jobs j ON j.id = a.job_id
 WHERE a.job_id = :job_id AND a.slice_index = :slice_index AND j.account_id = :submitter_id
   AND CASE WHEN :number::integer IS NULL THEN a.charged_microcredits > 0 ELSE a.number = :number::integer END
 ORDER BY a.number DESC LIMIT 1;

-- name: count_open$
SELECT count(*) FROM disputes WHERE submitter_id = :submitter_id AND state = 'open' AND origin = 'submitter';

-- name: sum_frozen$
SELECT coalesce(sum(earned_microcredits), 0)::bigint FROM disputed_pay WHERE owner_id = :owner_id AND state = 'open';
