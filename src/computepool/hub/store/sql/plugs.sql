-- name: set_plug$
INSERT INTO unplugged_nodes (node_id, until) VALUES (:node_id, clock_timestamp() + :seconds * interval '1 second')
ON CONFLICT (node_id) DO UPDATE SET until = excluded.until RETURNING until;

-- name: list_unplugged
-- Seconds that are left, by the database's clock.
SELECT node_id, extract(epoch FROM until - clock_timestamp())::double precision AS seconds
  FROM unplugged_nodes WHERE until > clock_timestamp();
