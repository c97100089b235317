-- A job's packages that cannot be installed are its own fault, an index that cannot be reached is the node's, and what
-- the owner does not allow is nobody's. Images, packages and hosts themselves stand in the job's spec.
ALTER TYPE failure_cause ADD VALUE 'packages_failed';
ALTER TYPE failure_cause ADD VALUE 'packages_unreachable';
ALTER TYPE failure_cause ADD VALUE 'not_allowed';
