// SPDX-License-Identifier: MIT
// softmax/wgmma.cuh: the tile of fwd_wgmma.cu: its numbers, what lies in shared memory, its
// products, and the work of a tile, which the loading warpgroup describes ahead. TYPE, DIM and
// DIMV are the image's.
#pragma once
#include "softmax/mma_rows.cuh"
#include "softmax/bring.cuh"

enum { CAN_PLAIN = CAN_LAYOUTS | FEAT_LSE };

template <int WGS_, int BN_, int STAGES_K_, int STAGES_V_, int QUERIES_, int O_PARTS_>
struct wgmma {
    static constexpr int WGS = WGS_;            // warpgroups with queries
    static constexpr int BN = BN_;              // keys of a step
    static constexpr int STAGES_K = STAGES_K_, STAGES_V = STAGES_V_;    // slots of the rings
    static constexpr int QUERIES = QUERIES_;    // slots of Q
    static constexpr int O_PARTS = O_PARTS_;    // of O, which pass one by one
    // a tile's first step apart from the loop of the others, and no turns there: where a step is
    // so short that the loop gains by that, and that much code does not cost more
    static constexpr bool APART = WGS == 3 && BN == 64;
    static constexpr int THREADS = 128 * (1 + WGS), BLOCKS = 1;
    static constexpr int BM = 64 * WGS, ROWS = 16, MT = 1;    // of the group, of a warp
    static constexpr int COLS = 1;    // mma_pairs.cuh
    static constexpr int NT = BN / 8, VT = DIMV / 8;
    static constexpr bool LONG = false;
    static constexpr int MATH_REGISTERS = WGS == 2 ? 232 : 160;
    static constexpr int LOAD_REGISTERS = WGS == 2 ? 40 : 32;
    static constexpr int TOGETHER = LOAD_REGISTERS < 40 ? 1 : 4;    // bring.cuh
    static constexpr int PANELS_K = ceil_div(DIM, 64), PANELS_V = ceil_div(DIMV, 64);

    // as the planner counts them; 3072 for barriers and work
    static constexpr int BYTES = 128 * (QUERIES * BM * PANELS_K +
                                        BN * (STAGES_K * PANELS_K + STAGES_V * PANELS_V) +
                                        BM * PANELS_V / O_PARTS) + 3072;
};

// Slots of work: of the tile whose O is written, of the next, of those after it.
enum { WORKS = 4, ASKED = 1, TURNS = 2 };
enum { SOON = 9 };         // steps to a tile's end when the next is asked for: finding takes two
enum { BRINGERS = 64 };    // threads that bring rows which no map can: arrivals at a full slot

// Of the steps of a tile those that queries of a warpgroup see keys of, and between clear and
// hides those all of whose keys all of them see.
struct wgmma_part {
    int first, end, clear, hides;
};

// A tile's work. Steps go from the last keys, `last` the number of those, to the first; the
// group has done `base` steps before. boxed: those that maps bring. queries -1: there is none.
template <typename T> struct wgmma_work : mma_work {
    source from_q, from_k, from_v;
    place_in_map in_q, in_k;    // V stands where K does
    attn_range boxed;
    int last, base, steps;
    // Steps that warpgroups take in turns, if APART: which all of them see, but for each one's
    // first. In others nobody waits for one who does not see them, or still writes O.
    attn_range turns;
    wgmma_part part[T::WGS];

    __device__ int key(int step) const { return (last - step) * T::BN; }
};

// Where all tiles take as long: of those that have BM queries, `tiles` a head, the first `whole`
// of all heads are taken as they are; then come `split` of them, each in so many parts, lest the
// grid's last round has few groups at work; then `rests`, what is left of each head.
struct plain_tiles {
    int tiles, whole, split, parts, rests;
};

// Tiles as products read them: panels of 64 columns.
template <typename T> struct wgmma_shared {
    float4 q[T::QUERIES][T::WGS][64 * 8 * T::PANELS_K];
    float4 k[T::STAGES_K][T::BN * 8 * T::PANELS_K];
    float4 v[T::STAGES_V][T::BN * 8 * T::PANELS_V];
    float4 o[T::BM * 8 * T::PANELS_V / T::O_PARTS];
    device_barrier full_q[T::QUERIES][T::WGS], empty_q[T::QUERIES][T::WGS];
    device_barrier full_k[T::STAGES_K], empty_k[T::STAGES_K];
    device_barrier full_v[T::STAGES_V], empty_v[T::STAGES_V];
    device_barrier known[WORKS], left[WORKS];    // of work
    device_barrier hands;                        // of the warps that bring
    int tiles, heads, section;    // of the grid: tiles of a head
    plain_tiles plain;            // ... of _plain and _tall
    wgmma_work<T> work[WORKS];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// S = Q K^T begins.
template <typename T>
DEVICE void begin_scores(const float4 *q, const float4 *k, scores<T> &s)
{
    const uint64_t a = device_tile(device_address(q), 64 * 128);
    const uint64_t b = device_tile(device_address(k), T::BN * 128);

    device_products_hold(s[0]);
    device_products_begin();
    #pragma unroll
    for (int x = 0; x < DIM / 16; x++)
        device_products_in<TYPE>(s[0], a + (x / 4 * 64 * 128 + x % 4 * 32) / 16,
                                 b + (x / 4 * T::BN * 128 + x % 4 * 32) / 16, x > 0);
    device_products_commit();
}

// O += P V begins.
template <typename T>
DEVICE void begin_values(const weights<T> &w, const float4 *v, rows_state<T> &my)
{
    const uint64_t b = device_tile(device_address(v), T::BN * 128);

    device_products_hold(my.o[0]);
    device_products_begin();
    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++)
        device_products_of<TYPE>(my.o[0], w[t][0], b + t * 16 * 128 / 16);
    device_products_commit();
}

// A tile's maxima and sums against those of another.
template <typename T> DEVICE void exchange(rows_state<T> &my, float (&m)[2], float (&l)[2])
{
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const float m_of_my = my.m[0][half], l_of_my = my.l[0][half];

        my.m[0][half] = m[half], my.l[0][half] = l[half];
        m[half] = m_of_my, l[half] = l_of_my;
    }
}

// put_rows() of mma_rows.cuh: a quarter of the stores, and of their addresses.
template <int PARTS, int... SHAPE>
DEVICE void put_rows(const rows_state<wgmma<SHAPE...>> &my, const float (&factor)[2],
                     float4 *tile, int part)
{
    constexpr int N = DIMV / 8 / PARTS;
    const int lane = threadIdx.x % 32;
    const device_shared at = address_of<N>(tile, lane % 16, lane / 16);

    #pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t x[4];

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const o = &my.o[0][part * N + n + i / 2][i % 2 * 2];

            x[i] = device_pair<TYPE>(o[0] * factor[i % 2], o[1] * factor[i % 2]);
        }
        device_put_matrices(moved<N>(at, 0, n), x);
    }
}

// mask_scores() of mma_fold.cuh: what a row sees of a step as bits, which take half the
// instructions that comparing each key does.
template <typename T> DEVICE void hide_scores(const attn_score &at, int x, int j, scores<T> &s)
{
    const int lane = threadIdx.x % 32;
    // as many bits as the lane has keys before key c of the step
    const auto bits_before = [&](int c) {
        const int n = clamp(c, 0, (int)T::BN);

        return (uint32_t)((1ull << (n / 8 * 2 + clamp(n % 8 - lane % 4 * 2, 0, 2))) - 1);
    };

    static_assert(2 * T::NT <= 32, "a bit for each of a lane's keys");
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const attn_range span = score_span(at, x + lane / 4 + half * 8);
        const uint32_t seen = bits_before(span.end - j) & ~bits_before(span.first - j);

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++) {
            float &score = s[0][e / 2][half * 2 + e % 2];

            score = seen >> e & 1 ? score : -INFINITE;
        }
    }
}

// A step in a ring, or a tile's Q in its slots, by its number, counted over all tiles of the group.
template <int SLOTS> struct place {
    int slot;
    uint32_t parity;
    __device__ explicit place(int n) : slot(n % SLOTS), parity(n / SLOTS & 1) {}
};
template <typename T> using place_of_k = place<T::STAGES_K>;
template <typename T> using place_of_v = place<T::STAGES_V>;
template <typename T> using place_of_q = place<T::QUERIES>;

// The work of tile number t is there. The warp goes on whole, as barriers by number want it.
template <typename T> DEVICE void wait_for_work(wgmma_shared<T> &mem, int t)
{
    const place<WORKS> in(t);

    device_barrier_wait(&mem.known[in.slot], in.parity);
    __syncwarp();
}

// Steps from, end that go over keys range.first .. range.end - 1.
template <typename T> DEVICE attn_range steps_over(int last, attn_range range)
{
    attn_range r = { 0, 0 };

    if (range.end > range.first)
        r = { last - (range.end - 1) / T::BN, last - range.first / T::BN + 1 };
    return r;
}

// Steps all of whose keys are in the range.
template <typename T> DEVICE attn_range steps_within(int last, attn_range range)
{
    return { last - range.end / T::BN + 1, last - ceil_div(range.first, T::BN) + 1 };
}

template <typename T, int CAN>
DEVICE void find_steps(const attn_kparams &p, bool mapped, wgmma_work<T> &work)
{
    const attn_range any = work.any;

    work.last = ceil_div(any.end, T::BN) - 1;
    work.steps = work.queries > 0 ? steps_over<T>(work.last, any).end : 0;
    // whole steps alone: what is past the keys must be 0
    work.boxed = mapped ? steps_within<T>(work.last, any) : attn_range{ 0, 0 };
    work.turns = { 0, work.steps };
    device_forget();
    #pragma unroll 1
    for (int wg = 0; wg < T::WGS; wg++) {
        const int i = work.i0 + wg * 64, n = clamp(work.queries - wg * 64, 0, 64);

        attn_range r = steps_over<T>(work.last, range_any<CAN>(p, work.seq, i, n));

        work.part[wg].first = r.first, work.part[wg].end = r.end;
        work.turns.first = max(work.turns.first, r.first + 1);
        work.turns.end = min(work.turns.end, r.end);
        device_forget();
        r = steps_within<T>(work.last, range_all<CAN>(p, work.seq, i, max(n, 1)));
        work.part[wg].clear = r.first, work.part[wg].hides = r.end;
    }
}

template <typename T> DEVICE void find_plain_tiles(int queries, int heads, plain_tiles &at)
{
    const int groups = gridDim.x;

    at.tiles = queries / T::BM;
    at.rests = queries % T::BM ? heads : 0;
    at.split = heads * at.tiles % groups;
    at.whole = heads * at.tiles - at.split;
    at.parts = T::WGS;
    while (at.parts > 1 && at.split * at.parts + at.rests > groups)
        at.parts--;
}

// The head and the queries of tile number `at`; no head past the last.
template <typename T>
DEVICE attn_range plain_tile(const plain_tiles &of, int heads, int at, int &head)
{
    int tile = at, first = 0, rows = T::BM;

    if (at >= of.whole + of.split * of.parts) {
        head = at - of.whole - of.split * of.parts;
        head = head < of.rests ? head : heads;
        tile = of.tiles;
    } else {
        if (at >= of.whole) {    // the largest parts first
            const int part = (at - of.whole) / of.split, larger = 64 * (T::WGS - of.parts);

            tile = of.whole + (at - of.whole) % of.split;
            first = part > 0 ? part * 64 + larger : 0;
            rows = part > 0 ? 64 : 64 + larger;
        }
        head = tile / of.tiles;
        tile %= of.tiles;
    }
    first += tile * T::BM;
    return { first, first + rows };
}

// The work of tile number `at`; none past the last.
template <typename T, int CAN>
DEVICE void find_work(const attn_kparams &p, const attn_maps &maps, int at,
                      wgmma_shared<T> &mem, wgmma_work<T> &work)
{
    const int tiles = mem.tiles;
    int tile = at % tiles, head = at / tiles, before = 0;
    attn_range rows;

    if (CAN == (CAN_PLAIN))
        rows = plain_tile<T>(mem.plain, mem.heads, at, head);
    work.queries = -1;
    work.steps = 0;
    if (head >= mem.heads)
        return;
    if (has<CAN>(p, FEAT_RANGE_RIGHT)) {
        const int section = mem.section, heads = mem.heads;
        const int first = at / (section * tiles) * section, rest = at - first * tiles;
        const int width = min(section, heads - first);

        head = first + rest % width;
        tile = tiles - 1 - rest / width;
        // the tile that is not whole is the first, which has the least keys
        before = tiles * T::BM - p.len_q;
    }

    if (CAN != (CAN_PLAIN))
        rows = { max(tile * T::BM - before, 0), (tile + 1) * T::BM - before };

    const int h = head % p.heads_q, i0 = rows.first;
    const int64_t b = head / p.heads_q;
    const attn_sequence &seq = work.seq;

    work.seq = range_sequence<CAN>(p, b);
    device_forget();
    describe_work<CAN>(p, work.seq, b, h, i0, max(min(work.seq.queries, rows.end) - i0, 0), work);

    const int kv = address_head_kv(p, h);
    const int b_q = has<CAN>(p, FEAT_PACKED_Q) ? 0 : (int)b;
    const int b_k = has<CAN>(p, FEAT_PACKED_K) ? 0 : (int)b;

    work.from_q = { p.q, ADDRESS_QUERIES(p, q, seq, b, h), { 0, i0 + work.queries }, p.d };
    device_forget();
    work.from_k = { p.k, work.k_rows, work.any, p.d };
    work.from_v = { p.v, work.v_rows, work.any, p.dv };
    work.in_q = { (int)seq.q_first, h, b_q };
    work.in_k = { (int)seq.k_first, kv, b_k };
    device_forget();
    find_steps<T, CAN>(p, maps.there, work);
}

#endif
