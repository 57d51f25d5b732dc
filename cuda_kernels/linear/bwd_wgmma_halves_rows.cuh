// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_halves_rows.cuh: the loops over chunks of bwd_wgmma_rows.cuh with f32 as two of
// f16, of heads that share none.
#pragma once
#include "linear/bwd_wgmma_halves.cuh"
#include "linear/bwd_wgmma_rows.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

DEVICE float largest(const group_state &my)
{
    float top = 0.0f;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 4; i++)
        top = fmaxf(top, fabsf(my.s[i / (NT * 4)][i / 4 % NT][i % 4]));
    return top;
}

// As share_state().
DEVICE void share_halves(const group_state &my, float by, half_states &s)
{
    const own_place mine;
    char *const first = (char *)s[0][0] + mine.row * 128 + mine.column * 2;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 2; i++) {
        const int panel = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        char *const at = first + (panel * 64 + half * 8) * 128 + (n ^ (mine.row & 7)) * 16;
        uint32_t part[2];

        split_halves(my.s[panel][n][half * 2] * by, my.s[panel][n][half * 2 + 1] * by, part);
        #pragma unroll
        for (int x = 0; x < 2; x++)
            *(uint32_t *)(at + x * PANELS * TILE * 16) = part[x];
    }
}

// As keep_state().
template <scan WHICH, int STAGES, int STATES>
DEVICE void keep_halves(const attn_linear_kparams &p, shared_halves<STAGES, STATES> &mem,
                        half_tiles<STAGES, STATES> &tiles, int group)
{
    const chunk_work w = find_walk<WHICH, false>(p, group);
    const int chunks = chunks_of(w);
    group_state my = {};

    device_wait_before();
    load_first<WHICH>(p, w, my);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int slot = n % STATES;
        const float top = largest_of_group(largest(my), mem.state_tops[n % 2], &mem.kept);
        const int exponent = exponent_of_top(top);

        if (is_odd(top, exponent, LEAST_STATE))
            atomicOr(&mem.odd, 1);
        device_barrier_wait(&mem.read[slot], (n / STATES & 1) ^ 1);
        if (thread_of_group() == 0)
            mem.s[slot] = inside(exponent);
        share_halves(my, scale_to_top(inside(exponent)), tiles.s[slot]);
        arrive_written(&mem.there[slot]);
        add_halves<STAGES>(n, mem, tiles, my);
    }
}

// Rows' largest numbers; lanes that share a row have the same.
template <int N> DEVICE void largest_of_rows(const float (&x)[N][4], float (&top)[2])
{
    top[0] = top[1] = 0.0f;
    #pragma unroll
    for (int i = 0; i < N * 4; i++)
        top[i % 4 / 2] = fmaxf(top[i % 4 / 2], fabsf(x[i / 4][i % 4]));
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
    }
}

// A's rows as numbers, mapped, and their exponents.
template <bool MAPS>
DEVICE void take_rows(const attn_linear_kparams &p, const queries &from, float (&x)[DIM / 8][4],
                      int (&exponent)[2], int *odd)
{
    float top[2];

    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        x[i / 4][i % 4] =
            __uint_as_float(from.word[i / 8][i % 4 / 2][i / 4 % 2 * 2 + i % 2]);
    if (MAPS && linear_has(p, LINEAR_ELU1 | LINEAR_RELU)) {
        const own_place at;

        phi_of(p, x);
        #pragma unroll
        for (int i = 0; i < DIM / 8 * 4; i++)
            x[i / 4][i % 4] = at.column * 2 + i / 8 * 16 < p.d ? x[i / 4][i % 4] : 0.0f;
    }
    largest_of_rows(x, top);
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        exponent[half] = exponent_of_top(top[half]);
        if (is_odd(top[half], exponent[half], LEAST))
            atomicOr(odd, 1);
        exponent[half] = inside(exponent[half]);
    }
}

// As walk_rows().
template <scan WHICH, bool TURNED, int EVERY, int STAGES, int STATES>
DEVICE void walk_halves(const attn_linear_kparams &p, shared_halves<STAGES, STATES> &mem,
                        half_tiles<STAGES, STATES> &tiles, int group, int first)
{
    constexpr bool BACK = is_backwards(WHICH);
    const chunk_work w = find_walk<WHICH, false>(p, group);
    const int chunks = chunks_of(w);
    const float scale[2] = { p.scale, p.scale };
    queries coming;

    fetch_reads<WHICH>(p, w, chunk_at<BACK>(w, first), coming);
    #pragma unroll 1
    for (int n = first; n < chunks; n += EVERY) {
        const int j = chunk_at<BACK>(w, n), next = j + (BACK ? -EVERY : EVERY) * CHUNK;
        const int stage = n % STAGES, slot = n % STATES;
        const float4 *const b = TURNED ? tiles.x[stage][0] : tiles.b[stage][0][0];
        const float4 *const x = TURNED ? tiles.b[stage][0][0] : tiles.x[stage][0];
        float pairs[CHUNK / 8][4], read[NT][4], seen[NT][4], top[2], by[2];
        float none[2] = {}, of_read[2], of_seen[2];
        int exponent[2];
        half_operands<STEPS> weights;

        {
            half_operands<DIM / 16> a;
            float raw[DIM / 8][4];

            take_rows<WHICH == GRAD_V>(p, coming, raw, exponent, &mem.odd);
            by[0] = scale_to_top(exponent[0]), by[1] = scale_to_top(exponent[1]);
            make_halves(raw, by, a);
            device_barrier_wait(&mem.full[stage], n / STAGES & 1);
            begin_halves<true>(a, b, PANELS, pairs);
            device_barrier_wait(&mem.there[slot], n / STATES & 1);
            begin_halves<TURNED>(a, tiles.s[slot][0][0], PANELS, read);
            device_products_wait<0>();
            device_products_hold(pairs);
            fetch_reads<WHICH>(p, w, next, coming);
        }
        const int of_b = TURNED ? mem.x[stage] : mem.b[stage];
        const int of_x = TURNED ? mem.b[stage] : mem.x[stage];

        mask_pairs<BACK>(pairs, none);
        largest_of_rows(pairs, top);
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int of_pairs = inside(exponent_of_top(top[half]));
            const int to_read = exponent[half] + mem.s[slot] - 2 * HALF_TOP;
            const int to_seen = top[half] == 0.0f
                                    ? to_read
                                    : exponent[half] + of_b + of_pairs + of_x - 2 * HALF_TOP;

            if (is_odd(top[half], exponent_of_top(top[half]), LEAST_STATE) ||
                min(to_read, to_seen) < -126 || max(to_read, to_seen) > 127)
                atomicOr(&mem.odd, 1);
            by[half] = scale_to_top(of_pairs);
            of_read[half] = power_of_2(to_read), of_seen[half] = power_of_2(to_seen);
        }
        make_halves(pairs, by, weights);
        begin_halves<false>(weights, x, 1, seen);
        device_products_wait<0>();
        device_products_hold(read);
        device_products_hold(seen);
        device_barrier_arrive(&mem.empty[stage]);
        device_barrier_arrive(&mem.read[slot]);
        #pragma unroll
        for (int i = 0; i < NT * 4; i++)
            read[i / 4][i % 4] = read[i / 4][i % 4] * of_read[i % 4 / 2] +
                                 seen[i / 4][i % 4] * of_seen[i % 4 / 2];
        write_grads<WHICH>(p, w, j, scale, [&](int n, int i) { return read[n][i]; });
    }
    if (BACK && first == 0)
        write_zeros<WHICH>(p, w);
}

// Barriers, as begin_walk().
template <int STAGES, int STATES>
DEVICE void begin_fast(shared_halves<STAGES, STATES> &mem, int readers)
{
    begin_scales(mem, 128, 128 * (readers + 1), WALKING);
    if (threadIdx.x == 0) {
        device_barrier_init(&mem.kept, 128);
        for (int i = 0; i < STATES; i++) {
            device_barrier_init(&mem.there[i], 128);
            device_barrier_init(&mem.read[i], 128 * readers);
        }
    }
}

DEVICE void begin_fast(nothing &, int) {}

#endif
