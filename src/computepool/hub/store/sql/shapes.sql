-- name: upsert_shape$
-- The update changes nothing; it makes RETURNING answer for a shape that is already there.
INSERT INTO shapes (digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation)
VALUES (:digest, :gpu, :vram_bytes, :cores, :ram_bytes, :disk_bytes, :tiers::text[], :regions::text[], :isolation)
ON CONFLICT (digest) DO UPDATE SET gpu = shapes.gpu
RETURNING id;

-- name: list_known
SELECT id, digest FROM shapes WHERE digest = ANY(:digests::bytea[]);

-- name: list_shapes
SELECT * FROM shapes WHERE id = ANY(:ids::integer[]);

-- name: list_backlogged
-- Walks from one shape to the next through slices_queue_idx: the cost is the number of shapes, not of slices.
WITH RECURSIVE backlog AS (
    (SELECT shape_id FROM slices WHERE state = 'queued' ORDER BY shape_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.shape_id FROM slices s WHERE s.state = 'queued' AND s.shape_id > backlog.shape_id
             ORDER BY s.shape_id LIMIT 1)
      FROM backlog WHERE backlog.shape_id IS NOT NULL
)
SELECT shape_id FROM backlog WHERE shape_id IS NOT NULL;
