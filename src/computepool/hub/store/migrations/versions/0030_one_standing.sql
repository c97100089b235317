-- One standing of a node, whatever found it wrong: audits of networks had a list and a time limit of their own.

CREATE TYPE trust_effect AS ENUM ('freeze_pay', 'retro_audit', 'stop_leases', 'forfeit_pay', 'unfreeze_pay');

-- What is still to be done about a node, written with its standing. Nearly always empty: it is done within seconds, and
-- then gone.
CREATE TABLE trust_effects (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id uuid NOT NULL REFERENCES nodes (id),
    effect trust_effect NOT NULL,
    -- Whoever does it moves this on, so that two hubs do not.
    look_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO trust_effects (node_id, effect)
SELECT (e ->> 0)::uuid, (e ->> 1)::trust_effect
  FROM checks c CROSS JOIN LATERAL jsonb_array_elements(c.effects) AS e WHERE c.state = 'ruled';
ALTER TABLE checks DROP COLUMN effects;

-- Whose week is not over is bugged as of then; whose week is over has come back, by the rule that held.
INSERT INTO node_trust AS t (node_id, standing, since, bugged_count)
SELECT node_id, CASE WHEN bugged_at > clock_timestamp() - interval '7 days' THEN 'bugged' ELSE 'clear' END::standing,
       CASE WHEN bugged_at > clock_timestamp() - interval '7 days' THEN bugged_at ELSE bugged_at + interval '7 days' END,
       1
  FROM bugged_nodes
ON CONFLICT (node_id) DO UPDATE
   SET standing = CASE WHEN t.standing IN ('bugged', 'barred') OR excluded.standing = 'clear'
                       THEN t.standing ELSE excluded.standing END,
       since = CASE WHEN t.standing IN ('bugged', 'barred') OR excluded.standing = 'clear'
                    THEN coalesce(t.since, excluded.since) ELSE excluded.since END,
       bugged_count = greatest(t.bugged_count, 1),
       returning_left = CASE WHEN excluded.standing = 'clear' THEN t.returning_left ELSE 0 END,
       -- Whoever has not passed probation has no service to begin anew.
       serving_since = CASE WHEN t.serving_since IS NOT NULL THEN greatest(t.serving_since, excluded.since) END;
DROP TABLE bugged_nodes;
