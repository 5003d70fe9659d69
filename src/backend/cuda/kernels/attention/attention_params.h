/* What the attention kernels take and how they are launched; for C and CUDA. Three families:
 *   simple  any of f32, f16, bf16; head size up to 256; any strides; any scale
 *   mma     f16, bf16; head size 64, 80, 96, 128; sm_80 and newer; rows 16-byte aligned; scale > 0
 *   hopper  f16, bf16; head size 64, 128; sm_90a; as mma, and no stride of 0
 * Kernels are named km_attention_<pass>_<family>_<dtype>_d<size>, with pass one of fwd, dq, dkdv
 * (simple: d64, d128 or d256, the smallest that holds the head), and km_attention_delta_<dtype>.
 * The gradient is three launches: delta, then dq and dkdv in any order; or, with the hopper
 * family, dq, which does delta's work, and then dkdv. */
#ifndef KM_CUDA_ATTENTION_PARAMS_H
#define KM_CUDA_ATTENTION_PARAMS_H

#include "backend/cuda/kernels/gemm/tensor_map.h"
#include <stdint.h>

/* A (batch, heads, time, d) tensor: strides in elements, 1 along d. lse has no d. */
typedef struct km_attention_view {
    void *data;
    int64_t b, h, t;
} km_attention_view;

typedef struct km_attention_args {
    km_attention_view q, k, v, o, lse; /* lse f32: (B, H, Tq) */
    km_attention_view d_o, dq, dk, dv; /* the gradient's */
    float *work;                       /* the gradient's: (2, B * H, tq_pad), see delta */
    float scale;
    int32_t batch, heads, kv_heads, tq, tk, d;
    int32_t tq_pad; /* tq rounded up to KM_ATTENTION_PAD */
    int32_t causal; /* key j is seen by query i when j <= i + tk - tq */
    int32_t vec;    /* delta: rows of o and d_o are 16-byte aligned and d is a multiple of 8 */
} km_attention_args;

#define KM_ATTENTION_PAD 128

enum { KM_ATTENTION_FWD, KM_ATTENTION_DQ, KM_ATTENTION_DKDV };

/* What the hopper kernels take: maps of the same tensors for the copy engine, with dimensions
 * (D, T, H, B), boxes of (64, 64, 1, 1) elements and the 128-byte swizzle. fwd reads the maps of
 * q, k, v, o; dq those of q, k, v, o, d_o, dq; dkdv those of q, k, v, d_o, dk, dv. */
typedef struct km_attention_hopper_args {
    km_tensor_map q, k, v, o, d_o, dq, dk, dv;
    km_attention_args a;
} km_attention_hopper_args;

/* ---- Launches: a block of `threads`, `grid` blocks in x, `smem` dynamic bytes ---- */

/* delta: 4 rows a warp. Writes work[0] = lse * log2(e) (+inf where no key is seen, and past tq, so
 * that the probabilities come out 0) and work[1] = sum over d of o * d_o. */
#define KM_ATTENTION_DELTA_THREADS 256
#define KM_ATTENTION_DELTA_ROWS 32

/* simple: square tiles of TILE rows, 256 threads; fwd and dq: grid (ceil(tq / TILE), H, B); dkdv:
 * (ceil(tk / TILE), Hkv, B). */
#define KM_ATTENTION_SIMPLE_THREADS 256
#define KM_ATTENTION_SIMPLE_TILE(dmax) ((dmax) <= 64 ? 64 : (dmax) <= 128 ? 32 : 16)
/* 2 (fwd) or 4 tiles of d + 1 columns, and 1 (fwd) or 2 of TILE + 1. */
#define KM_ATTENTION_SIMPLE_SMEM(dmax, d, tiles)                                                   \
    (4 * KM_ATTENTION_SIMPLE_TILE(dmax) *                                                          \
     ((tiles) * ((d) + 1) + (tiles) / 2 * (KM_ATTENTION_SIMPLE_TILE(dmax) + 1)))

/* mma: blocks of 128 rows; fwd and dq: grid (ceil(tq / 128), H, B); dkdv: (ceil(tk / 128), Hkv,
 * B). */
#define KM_ATTENTION_MMA_ROWS 128
#define KM_ATTENTION_MMA_FWD_THREADS 128
#define KM_ATTENTION_MMA_FWD_KEYS 64
#define KM_ATTENTION_MMA_FWD_SMEM(d) ((128 + 2 * KM_ATTENTION_MMA_FWD_KEYS) * (d)*2)
#define KM_ATTENTION_MMA_BWD_THREADS 256
#define KM_ATTENTION_MMA_BWD_COLS(d) ((d) > 96 ? 32 : 64)
/* two resident tiles; twice two streamed ones with the lse and delta of their queries */
#define KM_ATTENTION_MMA_BWD_SMEM(d)                                                               \
    (2 * 128 * (d)*2 + 2 * KM_ATTENTION_MMA_BWD_COLS(d) * (2 * (d)*2 + 2 * 4))

/* hopper: min(units, multiprocessors) blocks stay and share the units of work: a block of 128 rows
 * of one head, or two of them where the mask leaves them unequal. fwd and dq: rows tq, H heads;
 * dkdv: rows tk, Hkv heads. */
#define KM_ATTENTION_HOPPER_THREADS 384
#define KM_ATTENTION_HOPPER_ROWS 128
#define KM_ATTENTION_HOPPER_UNITS(rows, heads, batch, causal)                                      \
    ((((rows) + 127) / 128 + ((causal) ? 1 : 0)) / ((causal) ? 2 : 1) * (heads) * (batch))
/* Rows of a streamed tile, and how many are in flight; 128-row tensors kept at a time, and how many
 * such sets. */
#define KM_ATTENTION_HOPPER_COLS(pass, d) ((pass) == KM_ATTENTION_DKDV && (d) > 64 ? 64 : 128)
#define KM_ATTENTION_HOPPER_STAGES(pass, d) ((d) <= 64 ? 3 : (pass) == KM_ATTENTION_DKDV ? 4 : 2)
#define KM_ATTENTION_HOPPER_TENSORS(pass)                                                          \
    ((pass) == KM_ATTENTION_FWD ? 1 : (pass) == KM_ATTENTION_DQ ? 3 : 2)
#define KM_ATTENTION_HOPPER_KEPT(pass, d) ((pass) == KM_ATTENTION_FWD || (d) <= 64 ? 2 : 1)
/* a streamed tile is two of COLS x d, with lse and delta in dkdv; 1024 bytes for barriers and 1024
 * to align */
#define KM_ATTENTION_HOPPER_SMEM(pass, d)                                                          \
    (KM_ATTENTION_HOPPER_KEPT(pass, d) * KM_ATTENTION_HOPPER_TENSORS(pass) * 128 * (d)*2 +         \
     KM_ATTENTION_HOPPER_STAGES(pass, d) * KM_ATTENTION_HOPPER_COLS(pass, d) *                     \
         (2 * (d)*2 + ((pass) == KM_ATTENTION_DKDV ? 8 : 0)) +                                     \
     2048)

#endif
