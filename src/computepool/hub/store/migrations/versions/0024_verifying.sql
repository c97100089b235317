-- A label alone: a transaction cannot use one that it has added itself.
ALTER TYPE slice_state ADD VALUE 'verifying' BEFORE 'succeeded';
