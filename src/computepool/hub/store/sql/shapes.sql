-- name: upsert_shape$
-- The update changes nothing; it makes RETURNING answer for a shape that is already there.
INSERT INTO shapes (digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation,
                    ceiling_microcredits_per_hour, job_kind, slice_seconds, base_ceiling_microcredits_per_hour, wants)
VALUES (:digest, :gpu, :vram_bytes, :cores, :ram_bytes, :disk_bytes, :tiers::text[], :regions::text[], :isolation,
        :ceiling_microcredits_per_hour, :job_kind, :slice_seconds, :base_ceiling_microcredits_per_hour, :wants::text[])
ON CONFLICT (digest) DO UPDATE SET gpu = shapes.gpu
RETURNING id;

-- name: list_known
SELECT id, digest FROM shapes WHERE digest = ANY(:digests::bytea[]);

-- name: list_shapes
SELECT * FROM shapes WHERE id = ANY(:ids::integer[]);
