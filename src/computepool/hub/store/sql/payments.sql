-- name: insert_top_up!
INSERT INTO top_ups (id, account_id, idempotency_key, provider, currency, amount_minor, amount_microcredits)
VALUES (:id, :account_id, :idempotency_key, :provider, :currency, :amount_minor, :amount_microcredits);

-- name: find_top_up^
SELECT * FROM top_ups WHERE id = :id;

-- name: find_top_up_by_key^
SELECT * FROM top_ups WHERE account_id = :account_id AND idempotency_key = :idempotency_key;

-- name: lock_top_up^
-- Two words about the same top-up are heard one after the other.
SELECT * FROM top_ups WHERE id = :id FOR NO KEY UPDATE;

-- name: list_top_ups
-- Newest first, through top_ups_account_idx.
SELECT * FROM top_ups WHERE account_id = :account_id AND id < :before ORDER BY id DESC LIMIT :limit_count;

-- name: list_top_ups_in_state
-- The operator's list, newest first: the one that was just paid is looked for. By the primary key.
SELECT * FROM top_ups WHERE state = :state::top_up_state AND id < :before
   AND (:reference = '' OR provider_reference = :reference)
 ORDER BY id DESC LIMIT :limit_count;

-- name: open_top_up!
UPDATE top_ups SET provider_reference = coalesce(provider_reference, :provider_reference),
       pay_url = :pay_url, instructions = :instructions
 WHERE id = :id;

-- name: change_top_up!
UPDATE top_ups SET state = :state, provider_reference = coalesce(nullif(:provider_reference, ''), provider_reference),
       paid_at = CASE WHEN :paid THEN coalesce(paid_at, now()) END,
       paid_back_at = CASE WHEN :paid_back THEN coalesce(paid_back_at, now()) END
 WHERE id = :id;

-- name: sum_top_ups^
-- What counts against the limits of a day, through top_ups_day_idx. What a new account was given does not.
SELECT coalesce(sum(amount_microcredits), 0)::bigint AS microcredits, count(*) AS count, min(created_at) AS first_at
  FROM top_ups WHERE account_id = :account_id AND created_at > now() - interval '1 day' AND state <> 'failed'
   AND provider <> 'welcome';

-- name: take_top_ups_to_ask
-- Those whose provider was asked longest ago; marked, so that the next look sees others.
WITH taken AS MATERIALIZED (
    SELECT id FROM top_ups WHERE state = 'requested' AND provider = ANY(:providers::text[])
       AND created_at < now() - :quiet_seconds::double precision * interval '1 second'
       AND created_at > now() - :patience_seconds::double precision * interval '1 second'
     ORDER BY asked_at NULLS FIRST, id LIMIT :limit_count FOR NO KEY UPDATE SKIP LOCKED)
UPDATE top_ups SET asked_at = clock_timestamp() FROM taken WHERE top_ups.id = taken.id RETURNING top_ups.*;

-- name: insert_details!
INSERT INTO payout_details (id, account_id, region, currency, destination)
VALUES (:id, :account_id, :region, :currency, :destination);

-- name: find_details^
-- The newest are in force.
SELECT * FROM payout_details WHERE account_id = :account_id ORDER BY created_at DESC LIMIT 1;

-- name: get_details^
SELECT * FROM payout_details WHERE id = :id;

-- name: list_details
SELECT * FROM payout_details WHERE id = ANY(:ids::uuid[]);

-- name: lock_account!
-- One request of an account at a time, or two would both find room in the same limit.
SELECT 1 FROM accounts WHERE id = :id FOR NO KEY UPDATE;

-- name: insert_payout!
INSERT INTO payouts (id, account_id, idempotency_key, asked_microcredits, provider, details_id, currency,
                     amount_minor, amount_microcredits)
VALUES (:id, :account_id, :idempotency_key, :asked_microcredits, :provider, :details_id, :currency,
        :amount_minor, :amount_microcredits);

-- name: find_payout^
SELECT * FROM payouts WHERE id = :id;

-- name: find_payout_by_key^
SELECT * FROM payouts WHERE account_id = :account_id AND idempotency_key = :idempotency_key;

-- name: lock_payout^
SELECT * FROM payouts WHERE id = :id FOR NO KEY UPDATE;

-- name: list_payouts
-- Newest first, through payouts_account_idx.
SELECT * FROM payouts WHERE account_id = :account_id AND id < :before ORDER BY id DESC LIMIT :limit_count;

-- name: list_payouts_in_state
-- Oldest first: the operator's list.
SELECT * FROM payouts WHERE state = :state::payout_state AND id > :after ORDER BY id LIMIT :limit_count;

-- name: change_payout!
-- Each time is written once, with the first state that it belongs to. The operator who approved stands beside it.
UPDATE payouts SET state = :state::payout_state,
       provider_reference = coalesce(nullif(:provider_reference, ''), provider_reference),
       reserved_at = coalesce(reserved_at, CASE WHEN :state::payout_state <> 'requested' THEN now() END),
       approved_at = coalesce(approved_at, CASE WHEN :state::payout_state = 'approved' THEN now() END),
       approved_by = coalesce(approved_by, CASE WHEN :state::payout_state = 'approved' THEN :approved_by::uuid END),
       sent_at = coalesce(sent_at, CASE WHEN :state::payout_state = 'sent' THEN now() END),
       acknowledged_at = coalesce(acknowledged_at, CASE WHEN :acknowledged THEN now() END),
       confirmed_at = coalesce(confirmed_at, CASE WHEN :state::payout_state IN ('confirmed', 'returned') THEN now() END),
       returned_at = coalesce(returned_at, CASE WHEN :state::payout_state = 'returned' THEN now() END),
       failed_at = CASE WHEN :state::payout_state = 'failed' THEN coalesce(failed_at, now()) END,
       failure = CASE WHEN :state::payout_state = 'failed' THEN coalesce(failure, :failure::text) END
 WHERE id = :id;

-- name: sum_payouts^
-- What counts against the limits of a day, through payouts_day_idx.
SELECT coalesce(sum(amount_microcredits), 0)::bigint AS microcredits, count(*) AS count, min(created_at) AS first_at
  FROM payouts WHERE account_id = :account_id AND created_at > now() - interval '1 day' AND state <> 'failed';

-- name: take_payouts_to_send
-- Marked, so that those that cannot be sent now do not hide the others. Whether it may be sent is decided later,
-- under its lock; frozen accounts are only left out here.
WITH taken AS MATERIALIZED (
    SELECT p.id FROM payouts p WHERE p.state = 'approved' AND NOT EXISTS (
           SELECT 1 FROM account_freezes f WHERE f.account_id = p.account_id AND f.lifted_at IS NULL)
     ORDER BY p.asked_at NULLS FIRST, p.id LIMIT :limit_count FOR NO KEY UPDATE SKIP LOCKED)
UPDATE payouts SET asked_at = clock_timestamp() FROM taken WHERE payouts.id = taken.id RETURNING payouts.*;

-- name: take_payouts_to_ask
-- Sent so long ago that no call can still be under way.
WITH taken AS MATERIALIZED (
    SELECT id FROM payouts WHERE state IN ('sent', 'unknown') AND provider = ANY(:providers::text[])
       AND sent_at < now() - :quiet_seconds::double precision * interval '1 second'
     ORDER BY asked_at NULLS FIRST, id LIMIT :limit_count FOR NO KEY UPDATE SKIP LOCKED)
UPDATE payouts SET asked_at = clock_timestamp() FROM taken WHERE payouts.id = taken.id RETURNING payouts.*;

-- name: sum_in_flight$
-- What may have left, and is not confirmed; through payouts_open_idx.
SELECT coalesce(sum(amount_microcredits), 0)::bigint FROM payouts WHERE state IN ('sent', 'unknown');

-- name: insert_freeze$
-- An account that is frozen already stays so.
INSERT INTO account_freezes (id, account_id, why, top_up_id) VALUES (:id, :account_id, :why, :top_up_id)
ON CONFLICT (account_id) WHERE lifted_at IS NULL DO NOTHING RETURNING id;

-- name: lift_freeze$
UPDATE account_freezes SET lifted_at = now(), lifted_by = :lifted_by
 WHERE account_id = :account_id AND lifted_at IS NULL
RETURNING id;

-- name: list_frozen
-- Through account_freezes_in_force_idx.
SELECT account_id, frozen_at FROM account_freezes WHERE account_id = ANY(:account_ids::uuid[]) AND lifted_at IS NULL;

-- name: list_freezes
SELECT * FROM account_freezes WHERE lifted_at IS NULL AND account_id > :after ORDER BY account_id LIMIT :limit_count;

-- name: insert_provider_event!
INSERT INTO provider_events (provider, event_id, kind, subject_id, currency, amount_minor, reference, body_sha256,
                             verdict, doubt, said_by)
VALUES (:provider, :event_id, :kind, :subject_id, :currency, :amount_minor, :reference, :body_sha256,
        :verdict, :doubt, :said_by);

-- name: find_provider_event^
SELECT * FROM provider_events WHERE provider = :provider AND event_id = :event_id;

-- name: list_refused_events
-- What no operator has looked at yet, oldest first, through provider_events_refused_idx.
SELECT * FROM provider_events WHERE verdict = 'refused' AND reviewed_at IS NULL
 ORDER BY received_at, provider, event_id LIMIT :limit_count;

-- name: list_short_events
SELECT * FROM provider_events WHERE verdict = 'refused' AND reviewed_at IS NULL AND doubt = 'cash_short'
 ORDER BY received_at, provider, event_id LIMIT :limit_count;

-- name: lock_refused_event^
SELECT * FROM provider_events WHERE provider = :provider AND event_id = :event_id AND verdict = 'refused'
   FOR NO KEY UPDATE;

-- name: change_verdict!
UPDATE provider_events SET verdict = :verdict, doubt = :doubt WHERE provider = :provider AND event_id = :event_id;

-- name: review_event$
UPDATE provider_events SET reviewed_at = now(), reviewed_by = :reviewed_by, note = :note
 WHERE provider = :provider AND event_id = :event_id AND verdict = 'refused' AND reviewed_at IS NULL
RETURNING event_id;

-- name: list_cash_movements
-- What the ledger says has come from or gone to the world, by subject and direction; through
-- ledger_transfers_cash_idx. One subject's cash may lie on several shards of the world.
SELECT coalesce(t.top_up_id, t.payout_id) AS subject_id, coalesce(u.currency, p.currency) AS currency,
       coalesce(u.amount_microcredits / u.amount_minor, p.amount_microcredits / p.amount_minor) AS rate,
       sum(CASE WHEN starts_with(t.source_id, 'world/') THEN t.amount ELSE -t.amount END)::bigint AS microcredits
  FROM ledger_transfers t
  LEFT JOIN top_ups u ON u.id = t.top_up_id
  LEFT JOIN payouts p ON p.id = t.payout_id
 WHERE (t.top_up_id IS NOT NULL OR t.payout_id IS NOT NULL)
   AND (starts_with(t.source_id, 'world/') OR starts_with(t.target_id, 'world/'))
   AND t.at >= :since::timestamptz AND t.at < :until::timestamptz
 GROUP BY 1, 2, 3, starts_with(t.source_id, 'world/')
 ORDER BY 1;
