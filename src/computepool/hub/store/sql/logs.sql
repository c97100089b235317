-- name: lock_log_bytes$
SELECT log_bytes FROM attempts WHERE id = :attempt_id FOR UPDATE;

-- name: insert_chunk!
INSERT INTO log_chunks (attempt_id, start_offset, content) VALUES (:attempt_id, :start_offset, :content);

-- name: set_log_bytes!
UPDATE attempts SET log_bytes = :log_bytes WHERE id = :attempt_id;

-- name: list_chunks
-- From the piece that contains the offset on; pieces are small, so a page is a few of them.
SELECT start_offset, content FROM log_chunks
 WHERE attempt_id = :attempt_id AND start_offset + length(content) > :from_offset
 ORDER BY start_offset LIMIT :limit_count;
