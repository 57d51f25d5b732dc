// SPDX-License-Identifier: MIT
// softmax/mma_terms.cuh: bias, mask and ALiBi of fwd_mma.cu: how they come into shared memory
// and from there to a warp's scores.
//
// Copied: where keys lie side by side and 16 bytes divide the address of every row, bias and
// mask come as they are, 16 bytes at a time (cp.async), one or two steps ahead, into one or
// two slots; a row that all queries share comes once. ALiBi is then computed from the scores'
// own places. Written: every other layout, ALiBi with a bias, and distances that f32 does not
// count exactly; threads write the whole term of a pair as f32. Heads of one problem may lie
// differently, so both ways round alike.
//
// Rows lie one after the other, their chunks of 16 bytes exchanged (xor) by the row's number,
// so that the 32 lanes of a warp, which read two keys each of eight rows, meet no bank twice.
#pragma once
#include "softmax/mma.cuh"

template <typename T> using scores = float[T::MT][T::NT][4];

// Where row r of elements of ELEM bytes begins, in bytes; its eight keys t lie at that ^
// 8 ELEM t.
template <typename T, int ELEM> DEVICE int place_of_terms(int r)
{
    constexpr int CHUNKS = T::BN * ELEM / 16;
    const int exchange = ELEM == 4     ? (r & 3) * 2
                         : CHUNKS == 8 ? r & 7
                         : CHUNKS == 4 ? r >> 1 & 3
                                       : r >> 2 & 1;

    static_assert(T::BN == 32 || T::BN == 64, "the exchanges");
    return r * T::BN * ELEM + exchange * 16;
}

// Elements 0 and 1 of a word of a 16-bit type.
DEVICE float term_of(uint32_t word, int i)
{
    if (TYPE == TYPE_F16)
        return device_f32_of_f16((uint16_t)(word >> 16 * i));
    return __uint_as_float(i ? word & 0xffff0000u : word << 16);
}

// By one thread: how the terms of the group come.
template <typename T, int CAN>
DEVICE void plan_terms(const attn_kparams &p, const mma_work &work, terms_plan &plan)
{
    const attn_score &at = work.score;
    const bool bias = has<CAN>(p, FEAT_BIAS), mask = has<CAN>(p, FEAT_MASK);
    const int elem = p.bias_type == TYPE_F32 ? 4 : 2;
    const auto bytes = [](bool there, int rows, int elem) {    // ends at a multiple of 256
        return there ? (rows * T::BN * elem + 255) / 256 * 256 : 0;
    };
    bool copied = true;

    if (bias)
        copied = (p.bias_type == TYPE || p.bias_type == TYPE_F32) && p.bias_stride_d == 1 &&
                 (((intptr_t)p.bias + at.bias * elem) | p.bias_stride_l * elem) % 16 == 0;
    if (mask)
        copied = copied && p.mask_stride_d == 1 &&
                 (((intptr_t)p.mask + at.mask) | p.mask_stride_l) % 16 == 0;
    if (has<CAN>(p, FEAT_ALIBI)) {
        const int64_t most = max(llabs(at.position + work.queries - work.any.first),
                                 llabs(at.position - work.any.end));

        copied = copied && !bias && most < 1 << 23 && fabsf(at.slope) < 1e30f;
    }
    plan.bias_shared = p.bias_stride_l == 0;
    plan.mask_shared = p.mask_stride_l == 0;

    const int mask_at = bytes(bias, plan.bias_shared ? 1 : T::BM, elem);
    const int slot = mask_at + bytes(mask, plan.mask_shared ? 1 : T::BM, 1);

    copied = copied && slot <= T::TERM_BYTES;
    plan.written = has<CAN>(p, FEAT_TERMS) && !copied;
    plan.bias = plan.written ? 4 : bias ? elem : 0;
    plan.bias_shared = plan.bias_shared && copied;
    plan.mask = mask && copied;
    plan.alibi = has<CAN>(p, FEAT_ALIBI) && copied;
    plan.mask_at = mask_at;
    plan.second = copied && 2 * slot <= T::TERM_BYTES ? slot : 0;
}

// Copies elements of ELEM bytes, those of the group's rows from key j on; `from` is the
// first. Rows from `rows` on and what lies past the first `bytes` become 0 and are not read.
template <typename T, int ELEM>
DEVICE void copy_terms(char *to, const char *from, int64_t stride, bool shared, int rows,
                       int bytes)
{
    constexpr int CHUNKS = T::BN * ELEM / 16, PASS = T::THREADS / CHUNKS;
    static_assert(PASS % 8 == 0, "rows of a thread are exchanged alike");
    const int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    const int there = clamp(bytes - c * 16, 0, 16);

    to += place_of_terms<T, ELEM>(r) ^ c * 16;
    from += r * stride * ELEM + c * 16;
    if (shared) {
        if (r == 0)
            device_copy_part(to, from, there);
        return;
    }
    #pragma unroll 4
    for (int x = r; x < T::BM; x += PASS) {
        device_copy_part(to, from, x < rows ? there : 0);
        to += PASS * T::BN * ELEM;
        from += PASS * stride * ELEM;
    }
}

// The copied terms of the step that begins with key j.
template <typename T, int CAN>
DEVICE void fetch_terms(const attn_kparams &p, const mma_work &work, mma_terms<T, true> &terms,
                        int j)
{
    const terms_plan &plan = terms.plan;
    char *const slot = (char *)terms.tile + (j / T::BN % 2 ? plan.second : 0);
    const int keys = work.any.end - j;

    if (keys <= 0 || plan.written)
        return;
    if (plan.bias == 4)
        copy_terms<T, 4>(slot, (const char *)p.bias + (work.score.bias + j) * 4,
                         p.bias_stride_l, plan.bias_shared, work.queries, keys * 4);
    else if (TYPE != TYPE_F32 && plan.bias)
        copy_terms<T, 2>(slot, (const char *)p.bias + (work.score.bias + j) * 2,
                         p.bias_stride_l, plan.bias_shared, work.queries, keys * 2);
    if (plan.mask)
        copy_terms<T, 1>(slot + plan.mask_at, (const char *)p.mask + work.score.mask + j,
                         p.mask_stride_l, plan.mask_shared, work.queries, keys);
}

// Writes the terms of the step that begins with key j, by all threads. Of keys and queries
// out of range anything: their scores are masked.
template <typename T, int CAN>
DEVICE void write_terms(const attn_kparams &p, const mma_work &work, mma_terms<T, true> &terms,
                        int j)
{
    const attn_range any = work.any;

    #pragma unroll 2
    for (int e = threadIdx.x; e < T::BM * T::BN / 4; e += T::THREADS) {
        const int x = e / (T::BN / 4), c = e % (T::BN / 4) * 4;
        char *const row = (char *)terms.tile + (place_of_terms<T, 4>(x) ^ c * 4);
        float term[4];

        #pragma unroll
        for (int i = 0; i < 4; i++)
            term[i] = score_term<CAN>(p, work.score, x,
                                      clamp(j + c + i, any.first, any.end - 1));
        *(float4 *)row = make_float4(term[0], term[1], term[2], term[3]);
    }
}

// Whether a term of the warp's rows, x the first, may hide a key. Lanes agree on that.
template <typename T>
DEVICE bool terms_hide(const mma_terms<T, true> &terms, int odd, int x)
{
    const terms_plan &plan = terms.plan;
    const char *const slot = (const char *)terms.tile + odd * plan.second;
    const int lane = threadIdx.x % 32;
    bool hide = false;
    // chunk i * 32 + lane of these rows, or of the one that they share
    const auto each = [&](const char *rows, int elem, bool shared, auto &&use) {
        const float4 *const chunk = (const float4 *)(rows + (shared ? 0 : x * T::BN * elem));
        const int n = (shared ? 1 : T::ROWS) * T::BN * elem / 16;

        #pragma unroll 4
        for (int i = lane; i < n; i += 32)
            use(chunk[i]);
    };

    if (plan.bias == 4) {
        float least = 0.0f;

        each(slot, 4, plan.bias_shared, [&](float4 u) {
            least = fminf(fminf(least, fminf(u.x, u.y)), fminf(u.z, u.w));
        });
        hide = least == -INFINITE;
    }
#ifndef TYPE_IS_F32
    else if (plan.bias) {
        uint32_t least = 0;

        each(slot, 2, plan.bias_shared, [&](float4 u) {
            const uint32_t a = device_min_pair<TYPE>(__float_as_uint(u.x), __float_as_uint(u.y));
            const uint32_t b = device_min_pair<TYPE>(__float_as_uint(u.z), __float_as_uint(u.w));

            least = device_min_pair<TYPE>(least, device_min_pair<TYPE>(a, b));
        });
        hide = term_of(least, 0) == -INFINITE || term_of(least, 1) == -INFINITE;
    }
#endif
    if (plan.mask) {
        uint32_t zero = 0;    // bit 7 of a byte: there was a 0, or one follows a 0
        const auto look = [&](float f) {
            const uint32_t u = __float_as_uint(f);

            zero |= (u - 0x01010101u) & ~u;
        };

        each(slot + plan.mask_at, 1, plan.mask_shared, [&](float4 u) {
            look(u.x), look(u.y), look(u.z), look(u.w);
        });
        hide = hide || (zero & 0x80808080u);
    }
    return __any_sync(0xffffffffu, hide);
}

// Scores times a factor plus the bias: elements of ELEM bytes.
template <typename T, int ELEM, bool HIDE>
DEVICE void add_bias(const char *tile, int slot, bool shared, int x, float factor,
                     scores<T> &s)
{
    const int lane = threadIdx.x % 32, row = shared ? 0 : x + lane / 4;
    const int at = slot + place_of_terms<T, ELEM>(row) + lane % 4 * 2 * ELEM;
    const int down = shared ? 0 : 8 * T::BN * ELEM;

    #pragma unroll
    for (int i = 0; i < T::NT * T::MT * 2; i++) {
        const int t = i / 2 / T::MT, r = i % (2 * T::MT);
        const char *const from = tile + ((at + r * down) ^ t * 8 * ELEM);
        float term[2];

        if (ELEM == 4) {
            const uint2 u = *(const uint2 *)from;

            term[0] = __uint_as_float(u.x);
            term[1] = __uint_as_float(u.y);
        } else {
            const uint32_t u = *(const uint32_t *)from;

            term[0] = term_of(u, 0);
            term[1] = term_of(u, 1);
        }
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            float &score = s[r / 2][t][r % 2 * 2 + e];

            score = fmaf(score, factor, term[e]);
            if (HIDE)    // whatever the score is
                score = term[e] == -INFINITE ? -INFINITE : score;
        }
    }
}

template <typename T>
DEVICE void add_mask(const char *tile, int slot, bool shared, int x, scores<T> &s)
{
    const int lane = threadIdx.x % 32, row = shared ? 0 : x + lane / 4;
    const int at = slot + place_of_terms<T, 1>(row) + lane % 4 * 2;
    const int down = shared ? 0 : 8 * T::BN;

    #pragma unroll
    for (int i = 0; i < T::NT * T::MT * 2; i++) {
        const int t = i / 2 / T::MT, r = i % (2 * T::MT);
        const uint16_t u = *(const uint16_t *)(tile + ((at + r * down) ^ t * 8));

        if (!(u & 0xff))
            s[r / 2][t][r % 2 * 2] = -INFINITE;
        if (!(u >> 8))
            s[r / 2][t][r % 2 * 2 + 1] = -INFINITE;
    }
}

// Scores of the keys from j on become natural ones with their terms. x: the warp's first row
// in the group; hide: what terms_hide() said.
template <typename T, int CAN>
DEVICE void special_scores(const attn_kparams &p, const mma_work &work,
                           const mma_terms<T, true> &terms, int odd, int x, int j, bool hide,
                           scores<T> &s)
{
    const terms_plan &plan = terms.plan;
    const char *const tile = (const char *)terms.tile;
    const int slot = odd * plan.second;
    float factor = p.scale;

    if (has<CAN>(p, FEAT_SOFTCAP)) {
        #pragma unroll
        for (int i = 0; i < T::MT * T::NT * 4; i++) {
            float &score = s[i / 4 / T::NT][i / 4 % T::NT][i % 4];

            score = score_value<CAN>(p, score);
        }
        factor = 1.0f;
    }
    if (plan.alibi) {
        const int lane = threadIdx.x % 32;
        const float slope = -work.score.slope;

        #pragma unroll
        for (int r = 0; r < 2 * T::MT; r++) {
            const float to = (float)((int)(work.score.position - j) + x + lane / 4 + r * 8 -
                                     lane % 4 * 2);

            #pragma unroll
            for (int e = 0; e < 2 * T::NT; e++) {
                float &score = s[r / 2][e / 2][r % 2 * 2 + e % 2];

                const float distance = fabsf(to - (float)(e / 2 * 8 + e % 2));

                score = fmaf(score, factor, device_product(slope, distance));
            }
        }
        factor = 1.0f;
    }
    if (plan.bias == 4) {
        if (hide)
            add_bias<T, 4, true>(tile, slot, plan.bias_shared, x, factor, s);
        else
            add_bias<T, 4, false>(tile, slot, plan.bias_shared, x, factor, s);
    } else if (TYPE != TYPE_F32 && plan.bias) {
        if (hide)
            add_bias<T, 2, true>(tile, slot, plan.bias_shared, x, factor, s);
        else
            add_bias<T, 2, false>(tile, slot, plan.bias_shared, x, factor, s);
    } else if (factor != 1.0f) {
        #pragma unroll
        for (int i = 0; i < T::MT * T::NT * 4; i++)
            s[i / 4 / T::NT][i / 4 % T::NT][i % 4] *= factor;
    }
    if (hide && plan.mask)
        add_mask<T>(tile, slot + plan.mask_at, plan.mask_shared, x, s);
}

// Marks the keys of the step, which begins with key j, that a row sees.
template <typename T> DEVICE void mark_seen(const scores<T> &s, int *seen)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < T::NT * 2; i++) {
        bool any = false;

        #pragma unroll
        for (int row = 0; row < 2 * T::MT; row++)
            any |= s[row / 2][i / 2][row % 2 * 2 + i % 2] != -INFINITE;
        if (any)
            seen[i / 2 * 8 + lane % 4 * 2 + i % 2] = 1;
    }
}

// ... where no term hides one: the warp's range.
template <typename T> DEVICE void mark_range(attn_range mine, int j, int *seen)
{
    #pragma unroll
    for (int c = threadIdx.x % 32; c < T::BN; c += 32)
        if (j + c >= mine.first && j + c < mine.end)
            seen[c] = 1;
}

// Zeros the values of keys that no query of the group sees, if there are any. Threads agree
// on that.
template <typename T>
DEVICE void hide_values(const int *seen, float4 *v)
{
    bool all = true;

    #pragma unroll
    for (int i = threadIdx.x % 32; i < T::BN; i += 32)
        all = all && seen[i];
    if (!__any_sync(0xffffffffu, !all))
        return;
    for (int e = threadIdx.x; e < T::BN * CHUNKS_V; e += T::THREADS)
        if (!seen[e / CHUNKS_V])
            v[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncthreads();
}
