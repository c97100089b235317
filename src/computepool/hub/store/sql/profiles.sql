-- name: find_profile^
SELECT pseudonym, on_leaderboard, shows_titles FROM profiles WHERE account_id = :account_id;

-- name: change_profile!
-- What is null stays as it is; an empty pseudonym is none.
INSERT INTO profiles (account_id, pseudonym, on_leaderboard, shows_titles)
VALUES (:account_id, nullif(:pseudonym::text, ''), coalesce(:on_leaderboard::boolean, true),
        coalesce(:shows_titles::boolean, false))
ON CONFLICT (account_id) DO UPDATE
   SET pseudonym = CASE WHEN :pseudonym::text IS NULL THEN profiles.pseudonym ELSE excluded.pseudonym END,
       on_leaderboard = coalesce(:on_leaderboard::boolean, profiles.on_leaderboard),
       shows_titles = coalesce(:shows_titles::boolean, profiles.shows_titles);
