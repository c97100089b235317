-- name: list_offers
SELECT n.id AS node_id, n.account_id, n.floor_microcredits_per_hour, o.hours, o.zone, o.seconds_min, o.kinds, o.audience,
       o.named
  FROM nodes n LEFT JOIN offers o ON o.node_id = n.id
 WHERE n.id = ANY(:node_ids::uuid[]);

-- name: upsert_offer!
-- The node's row is locked by the caller. The floor stands in it, where every round reads it.
WITH floor AS (
    UPDATE nodes SET floor_microcredits_per_hour = :floor_microcredits_per_hour WHERE id = :node_id)
INSERT INTO offers (node_id, hours, zone, seconds_min, kinds, audience, named)
VALUES (:node_id, :hours, :zone, :seconds_min, :kinds::text[], :audience::offer_audience, :named::uuid[])
ON CONFLICT (node_id) DO UPDATE
   SET hours = excluded.hours, zone = excluded.zone, seconds_min = excluded.seconds_min, kinds = excluded.kinds,
       audience = excluded.audience, named = excluded.named, set_at = clock_timestamp();

-- name: list_schedules
-- Walks from one schedule to the next through offers_hours_idx: the cost is the number of different ones, not of nodes.
WITH RECURSIVE schedules AS (
    (SELECT hours, zone FROM offers WHERE hours IS NOT NULL ORDER BY hours, zone LIMIT 1)
    UNION ALL
    SELECT n.hours, n.zone FROM schedules s CROSS JOIN LATERAL (
        SELECT o.hours, o.zone FROM offers o
         WHERE o.hours IS NOT NULL AND (o.hours, o.zone) > (s.hours, s.zone) ORDER BY o.hours, o.zone LIMIT 1) AS n)
SELECT hours, zone FROM schedules LIMIT :limit_count::bigint;
