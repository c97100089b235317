-- name: add_usage
-- One statement a second from each hub: adds what it charged and tells what the accounts have had by all hubs' counts.
-- Rows are written in order of account, so that two hubs never wait for each other in a circle. What is read is as of
-- before this statement, what is written as of after; an account is in one of the two. Not worth waiting for the disk: a
-- crash of the server costs a fraction of a second of usage, and whoever does wait for the disk waits for it alone.
WITH asked AS (
    SELECT * FROM unnest(:account_ids::uuid[], :seconds::double precision[], :asks_mean::boolean[])
           AS a (account_id, seconds, asks_mean)),
written AS (
    INSERT INTO fair_usage AS u (account_id, slot_seconds, counted_at)
    SELECT account_id, seconds, clock_timestamp() FROM asked WHERE seconds <> 0 ORDER BY account_id
    ON CONFLICT (account_id) DO UPDATE
       SET slot_seconds = excluded.slot_seconds + u.slot_seconds * 0.5 ^ (
               greatest(0, extract(epoch FROM excluded.counted_at - u.counted_at)) / :half_life_seconds),
           -- A hub that waited for another to write may bring the older time.
           counted_at = greatest(u.counted_at, excluded.counted_at)
    RETURNING account_id, slot_seconds, counted_at)
SELECT asked.account_id, account.fair_weight AS weight, mean.seconds AS mean_seconds,
       coalesce(written.slot_seconds, u.slot_seconds, 0) AS slot_seconds,
       coalesce(written.counted_at, u.counted_at, clock_timestamp()) AS counted_at
  FROM asked CROSS JOIN set_config('synchronous_commit', 'off', true)
  JOIN accounts account ON account.id = asked.account_id
  LEFT JOIN written ON written.account_id = asked.account_id
  LEFT JOIN fair_usage u ON u.account_id = asked.account_id
  LEFT JOIN LATERAL (
      -- How long slices of its open jobs have run, some of them if there are many; by jobs_open_idx. Nodes say how
      -- long it took, and might say anything.
      SELECT sum(j.run_seconds) / nullif(sum(j.succeeded_count), 0) AS seconds
        FROM (SELECT least(run_seconds_sum, succeeded_count * wall_seconds::double precision) AS run_seconds,
                     succeeded_count
                FROM jobs
               WHERE account_id = asked.account_id AND finished_at IS NULL LIMIT :jobs_max) AS j
  ) AS mean ON asked.asks_mean;

-- name: list_hubs
-- The hubs that have told of themselves lately, by hub_summaries; few rows.
SELECT hub_process_id FROM hub_summaries
 WHERE told_at > clock_timestamp() - :seconds::double precision * interval '1 second' ORDER BY hub_process_id;

-- name: list_live
SELECT id FROM attempts WHERE id = ANY(:ids::uuid[]) AND state IN ('leased', 'running');

-- name: list_usage
-- Who has had most, as of now.
SELECT account_id,
       slot_seconds * 0.5 ^ (greatest(0, extract(epoch FROM clock_timestamp() - counted_at)) / :half_life_seconds)
           AS slot_seconds
  FROM fair_usage ORDER BY slot_seconds DESC LIMIT :limit_count;
