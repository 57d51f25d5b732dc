// SPDX-License-Identifier: MIT
// linear/bwd_phi.cu: phi of q and k for the scans of linear_bwd_wgmma, a step before them. They
// read each row several times, and have no time for it.
//
// Computes  work[slots_at + (b, h, l, e)] = phi(q_l), rows of D elements one after another; in
//           bf16, of normalised problems, phi(q_l) scale / den_l, 0 where den_l is 0. Behind all
//           of them, where there is a phi, as many rows for each head of keys: phi(k_l) of the
//           keys that are there
// Grid      1-D, Lq in tiles of ROWS, * Hq * B
// Block     8 * ROWS threads, 1-D: eight lanes for a row, 16 bytes at a time
// Layout    rows of 16-byte pieces, f32 or bf16
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_bwd_phi_f32
#endif

#include "linear/linear.cuh"

constexpr int LANES = 8, ROWS = 16;    // src/plan/cuda/linear_bwd_wgmma.c
constexpr int AT_ONCE = 2;             // pieces of a row, of q and of k each
constexpr bool DIVIDES = TYPE == TYPE_BF16;

enum phi_kind { PHI_NONE, PHI_RELU, PHI_ELU1 };

// Without branches between; bf16 as phi_rounded() (phi16.cuh), of numbers that are rounded next.
template <phi_kind PHI> DEVICE float phi_of(float x)
{
    const float below = PHI != PHI_ELU1     ? 0.0f
                        : TYPE == TYPE_BF16 ? device_exp2(x * 1.44269504088896340736f)
                                            : expf(x);

    return PHI == PHI_NONE ? x : x <= 0.0f ? below : PHI == PHI_ELU1 ? x + 1.0f : x;
}

template <phi_kind PHI> DEVICE float phi_of_word(float word, float factor)
{
    const uint32_t u = __float_as_uint(word);

    if (TYPE == TYPE_F32)
        return phi_of<PHI>(word);
    return __uint_as_float(
        device_pair<TYPE_BF16>(phi_of<PHI>(f32_of_bf16(u & 0xffffu)) * factor,
                               phi_of<PHI>(__uint_as_float(u & 0xffff0000u)) * factor));
}

template <phi_kind PHI> DEVICE float4 phi_of_piece(const float4 &x, float factor)
{
    return make_float4(phi_of_word<PHI>(x.x, factor), phi_of_word<PHI>(x.y, factor),
                       phi_of_word<PHI>(x.z, factor), phi_of_word<PHI>(x.w, factor));
}

// The lane's pieces of a row of q, over den, and of one of k.
template <phi_kind PHI>
DEVICE void map_rows(const float4 *q, float4 *to_q, int pieces_q, float factor, const float4 *k,
                     float4 *to_k, int pieces_k)
{
    for (int e = threadIdx.x % LANES; e < max(pieces_q, pieces_k); e += LANES * AT_ONCE) {
        float4 of_q[AT_ONCE], of_k[AT_ONCE];

        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int at = e + n * LANES;

            of_q[n] = at < pieces_q ? q[at] : float4{};
            of_k[n] = at < pieces_k ? k[at] : float4{};
        }
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int at = e + n * LANES;

            if (at < pieces_q)
                to_q[at] = phi_of_piece<PHI>(of_q[n], factor);
            if (at < pieces_k)
                to_k[at] = phi_of_piece<PHI>(of_k[n], 1.0f);
        }
    }
}

DEVICE const float4 *at_byte(const void *from, int64_t i)
{
    return (const float4 *)((const char *)from + i);
}

extern "C" __global__ __launch_bounds__(LANES * ROWS) void NAME(
    const __grid_constant__ attn_linear_kparams p)
{
    constexpr int BYTES = TYPE == TYPE_F32 ? 4 : 2;
    const int tiles = ceil_div(p.len_q, ROWS), pieces = p.d * BYTES / 16;
    const int64_t i = (int64_t)(blockIdx.x % tiles) * ROWS + (int)threadIdx.x / LANES;
    const int64_t head = blockIdx.x / tiles, b = head / p.heads_q, h = head % p.heads_q;
    const int64_t kvh = h / p.group, queries = (int64_t)p.batch * p.heads_q * p.len_q;
    const bool maps = linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
    const bool has_k = maps && h % p.group == 0 && i < linear_keys(p, b);
    const float4 *const q = at_byte(p.q, LINEAR_AT(p, q, b, h, i, 0) * BYTES);
    const float4 *const k = at_byte(p.k, LINEAR_AT(p, k, b, kvh, i, 0) * BYTES);
    float4 *const to = (float4 *)(p.work + p.slots_at);
    float4 *const to_q = to + (head * p.len_q + i) * pieces;
    float4 *const to_k = to + (queries + (b * p.heads_kv + kvh) * p.len_q + i) * pieces;
    const int pieces_q = i < p.len_q ? pieces : 0, pieces_k = has_k ? pieces : 0;
    float factor = 1.0f;

    if (DIVIDES && linear_has(p, LINEAR_NORMALIZE) && i < p.len_q) {
        const float den = p.den[LINEAR_AT(p, den, b, h, i, 0)];

        factor = den == 0.0f ? 0.0f : p.scale / den;
    }
    if (linear_has(p, LINEAR_ELU1))
        map_rows<PHI_ELU1>(q, to_q, pieces_q, factor, k, to_k, pieces_k);
    else if (linear_has(p, LINEAR_RELU))
        map_rows<PHI_RELU>(q, to_q, pieces_q, factor, k, to_k, pieces_k);
    else
        map_rows<PHI_NONE>(q, to_q, pieces_q, factor, k, to_k, pieces_k);
    // Who waits for this step waits for those before it, too. The next one, whose groups have a
    // multiprocessor each, is not let in before this one ends: earlier it costs 20 to 40 us.
    device_wait_before();
}
