// Layers over many rows by cooperative matrices: y = act(x w^T + b), or act(x g^T) * (x u^T), where x and
// w were made f16 before (halves_of_x.comp, halves_of_w.comp). A workgroup has a tile of BM rows of x and BN
// of w, its subgroups WARPS_M x WARPS_N of them; two buffers in shared memory, and what is two steps of
// 32 columns ahead is on its way while these are multiplied. A row of x carries a power of two that keeps it in f16's range.
// Of a gated pair 16 rows of g and the same 16 of u follow each other in w.
//
// Matrices are those of GL_NV_cooperative_matrix, which glslc knows; matrix_code.c makes
// VK_KHR_cooperative_matrix of them. Their sizes are specialisation constants 20 to 22, by which it tells
// the left one from the right one and from the sums.
#extension GL_NV_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define OWN_SIZE
#include "common.glsl"
#include "math.glsl"

const uint THREADS = WARPS_M * WARPS_N * 32;
layout(local_size_x = WARPS_M * WARPS_N * 32) in;
layout(constant_id = 0) const uint KIND = 0; // of y and b
layout(constant_id = 1) const bool GATED = false;
layout(constant_id = 20) const uint M = 16;
layout(constant_id = 21) const uint N = 16;
layout(constant_id = 22) const uint K = 16;

layout(push_constant) uniform Push {
    uvec2 x, w, scales, bias, y; // x (rows, k), w (n, k) of f16, scales (rows) of f32
    uint rows, n, k;             // n: rows of w; of a gated pair both, each to a multiple of 16
    uint y_row, act, width;      // elements from a row of y to the next; columns of y, from this w's first on
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 q[]; };

const uint WIDE = 5; // of a row in shared memory: 32 columns are four, and one keeps banks apart
const uint A_QUADS = BM * WIDE, TILE_QUADS = (BM + BN) * WIDE;
const uint FM = BM / WARPS_M / 16, FN = BN / WARPS_N / 16;
const uint A_EACH = BM * 4 / THREADS, B_EACH = BN * 4 / THREADS;
shared uvec4 tile[2 * TILE_QUADS];

#define LEFT fcoopmatNV<16, gl_ScopeSubgroup, M, K>
#define RIGHT fcoopmatNV<16, gl_ScopeSubgroup, K, N>
#define SUMS fcoopmatNV<32, gl_ScopeSubgroup, M, N>

#define FETCH(a, b, s)                                                                             \
    [[unroll]] for (uint i = 0; i < A_EACH; i++) a[i] = Quads(x).q[a_from[i] + 4 * (s)];           \
    [[unroll]] for (uint i = 0; i < B_EACH; i++) b[i] = Quads(w).q[b_from[i] + 4 * (s)];
#define KEEP(a, b, at)                                                                             \
    [[unroll]] for (uint i = 0; i < A_EACH; i++) tile[(at) + (t + i * THREADS) / 4 * WIDE + t % 4] = a[i]; \
    [[unroll]] for (uint i = 0; i < B_EACH; i++)                                                   \
        tile[(at) + A_QUADS + (t + i * THREADS) / 4 * WIDE + t % 4] = b[i];
#define MULTIPLY(at)                                                                               \
    [[unroll]] for (uint d = 0; d < 2; d++) {                                                      \
        [[unroll]] for (uint i = 0; i < FM; i++)                                                   \
            coopMatLoadNV(left[i], tile, (at) + (wm + i * 16) * WIDE + d * 2, WIDE, false);        \
        [[unroll]] for (uint j = 0; j < FN; j++) {                                                 \
            coopMatLoadNV(right, tile, (at) + A_QUADS + (wn + j * 16) * WIDE + d * 2, WIDE, true); \
            [[unroll]] for (uint i = 0; i < FM; i++)                                               \
                acc[i][j] = coopMatMulAddNV(left[i], right, acc[i][j]);                            \
        }                                                                                          \
    }

void main() {
    uint t = gl_LocalInvocationID.x, team = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint row0 = gl_WorkGroupID.x * BM, col0 = gl_WorkGroupID.y * BN, row_quads = k / 8;
    uint wm = team / WARPS_N * (BM / WARPS_M), wn = team % WARPS_N * (BN / WARPS_N);
    uvec4 a[A_EACH], b[B_EACH], later_a[A_EACH], later_b[B_EACH];
    uint a_from[A_EACH], b_from[B_EACH];
    LEFT left[FM];
    RIGHT right;
    SUMS acc[FM][FN];
    [[unroll]] for (uint i = 0; i < A_EACH; i++)
        a_from[i] = min(row0 + (t + i * THREADS) / 4, rows - 1) * row_quads + t % 4;
    [[unroll]] for (uint i = 0; i < B_EACH; i++)
        b_from[i] = min(col0 + (t + i * THREADS) / 4, n - 1) * row_quads + t % 4;
    [[unroll]] for (uint i = 0; i < FM; i++)
        [[unroll]] for (uint j = 0; j < FN; j++) acc[i][j] = SUMS(0.0);

    uint steps = k / 32, last = steps - 1;
    FETCH(a, b, 0)
    FETCH(later_a, later_b, min(1, last))
    for (uint s = 0; s < steps; s += 2) {
        // A buffer that is written was read two steps ago, before the barrier in between.
        KEEP(a, b, 0)
        barrier();
        FETCH(a, b, min(s + 2, last))
        MULTIPLY(0)
        if (s + 1 < steps) {
            KEEP(later_a, later_b, TILE_QUADS)
            barrier();
            FETCH(later_a, later_b, min(s + 3, last))
            MULTIPLY(TILE_QUADS)
        }
    }
    barrier();

    // By way of shared memory, 16 x 16 results at a time (of a gated pair twice those): whose row and column
    // a lane holds in a matrix is nobody's business but the driver's.
    uint own = team * 128;
    [[unroll]] for (uint i = 0; i < FM; i++)
        [[unroll]] for (uint j = 0; j < FN; j++) {
            coopMatStoreNV(acc[i][j], tile, own + (GATED ? j % 2 * 64 : 0), 4, false);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            if (!GATED || j % 2 == 1) {
                uint col = col0 + wn + j * 16;
                if (GATED) col = (col - 16) / 2;
                [[unroll]] for (uint e = 0; e < 2; e++) {
                    uint part = lane + 32 * e, r = row0 + wm + i * 16 + part / 4, c = col + part % 4 * 4;
                    vec4 g = uintBitsToFloat(tile[own + part]), h = vec4(1);
                    if (GATED) h = uintBitsToFloat(tile[own + 64 + part]);
                    if (r < rows) {
                        float scale = Floats(scales).f[r];
                        [[unroll]] for (uint q = 0; q < 4; q++) {
                            if (c + q >= width) continue;
                            float v = g[q] * scale;
                            if (bias != uvec2(0)) v += load_float(KIND, bias, c + q);
                            v = activation(act, v);
                            store_float(KIND, y, r * y_row + c + q, GATED ? v * (h[q] * scale) : v);
                        }
                    }
                }
            }
            subgroupBarrier();
        }
}
