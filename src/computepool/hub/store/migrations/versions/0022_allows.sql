-- What owners let jobs have beyond a plain sandbox, and what jobs want of it, in the words of core/jobs/wants.py: placement
-- sends work only where it is allowed.

ALTER TABLE nodes
    -- As patterns: image docker.io/library/*, egress *.example.org:443, packages. Said at enrolment and with tokens.
    ADD COLUMN allows text[] NOT NULL DEFAULT '{}' CONSTRAINT nodes_allows_check
        CHECK (cardinality(allows) <= 256 AND array_position(allows, NULL) IS NULL);

ALTER TABLE shapes
    -- Each must be allowed. Shapes of before want nothing: what they wanted was asked of nodes one by one.
    ADD COLUMN wants text[] NOT NULL DEFAULT '{}' CONSTRAINT shapes_wants_check
        CHECK (cardinality(wants) <= 34 AND array_position(wants, NULL) IS NULL);
