// Products of core/trust/products.py. TILE x TILE entries per work-group of SIDE x SIDE, EACH x EACH per work-item.
#define TILE 64
#define DEPTH 16
#define SIDE 16
#define EACH 4

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1)))
void multiply(const int size, __global const float *a, __global const float *scale, __global const float *b,
              __global float *c) {
    __local float part_a[DEPTH][TILE], part_b[DEPTH][TILE];
    const int x = get_local_id(0), y = get_local_id(1);
    const int first_row = get_group_id(1) * TILE, first_column = get_group_id(0) * TILE;
    const int own = y * SIDE + x;
    float sums[EACH][EACH];
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) sums[i][j] = 0.0f;
    for (int at = 0; at < size; at += DEPTH) {
        for (int n = own; n < DEPTH * TILE; n += SIDE * SIDE) {
            const int deep = n % DEPTH, row = n / DEPTH;
            part_a[deep][row] = a[(first_row + row) * size + at + deep] * scale[at + deep];
            part_b[n / TILE][n % TILE] = b[(at + n / TILE) * size + first_column + n % TILE];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int deep = 0; deep < DEPTH; deep++) {
            float left[EACH], right[EACH];
            for (int i = 0; i < EACH; i++) left[i] = part_a[deep][y + i * SIDE];
            for (int j = 0; j < EACH; j++) right[j] = part_b[deep][x + j * SIDE];
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) sums[i][j] = fma(left[i], right[j], sums[i][j]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            c[(first_row + y + i * SIDE) * size + first_column + x + j * SIDE] = sums[i][j];
}

__kernel void fold(const int size, const int strip, __global const float *c, __global const float *factors,
                   const long offset, __global float *folded) {
    const int at = get_global_id(0), strips = size / strip;
    const int row = at / strips, first = (at % strips) * strip;
    // Kept in four sums: single precision holds more of small ones.
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int j = 0; j < strip; j++) sums[j & 3] += fabs(c[row * size + first + j]) * factors[first + j];
    folded[offset + at] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The pattern of core/trust/memory.py.
uint stir(uint word) {
    word ^= word >> 16;
    word *= 0x7FEB352Du;
    word ^= word >> 15;
    word *= 0x846CA68Bu;
    return word ^ (word >> 16);
}

__kernel void fill(const ulong begin, const uint first, const uint second, __global uint *held) {
    const ulong place = begin + get_global_id(0);
    held[get_global_id(0)] = stir(stir((uint)place ^ first) ^ (uint)(place >> 32) ^ second);
}
