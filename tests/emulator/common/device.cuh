// SPDX-License-Identifier: MIT
// emulator/common/device.cuh: stands before cuda_kernels/common/device.cuh and lets a C++
// compiler of the processor compile the kernels: the same instructions as functions. A
// thread is a fiber; emulator.cpp runs those of a group in turn.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE static inline

using std::max;
using std::min;

struct float2 {
    float x, y;
};

struct float4 {
    float x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct emulated_index {
    unsigned x;
};

static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }

// emulator.cpp
#pragma GCC visibility push(hidden)    // so that nothing stands between a call and its function
extern int emulated_current;    // the thread that runs
emulated_index emulated_group();
void *emulated_shared();
void emulated_barrier(bool warp);                       // of the group, or of the warp
uint32_t emulated_exchange(uint32_t value, int mask);   // the value of lane ^ mask
bool emulated_any(bool x);                              // whether a lane has it
void emulated_meet(int number, int threads, bool waits);    // a barrier by number
bool emulated_meet_any(int number, int threads, bool x);    // whether one of its threads has it
void emulated_copy(void *to, const void *from, int bytes, int there);    // zeros past `there`
void emulated_commit();                                 // ends a group of copies
void emulated_copies(int pending);                      // makes those of all groups but so many
void emulated_yield();
unsigned emulated_groups();

// An instruction of the whole warp: once all lanes are there `work` does it for all of them,
// of what each of them gives.
typedef void emulated_work(void *const *lanes);
void emulated_together(emulated_work *work, void *mine);

// products.cpp
void emulated_matrices(uint32_t *x, uintptr_t row, bool turned);
void emulated_put_matrices(uintptr_t row, const uint32_t *x);
void emulated_multiply(int type, float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void emulated_multiply_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);

// A tile as device_tile() has it; turned: its rows lie along the other dimension.
struct emulated_tile {
    uint64_t at;
    bool turned;
};

// c (+)= a b, [n][4]: a from registers, or, if that is NULL, from a tile.
void emulated_products(int type, int n, float (*c)[4], const uint32_t *a, emulated_tile of_a,
                       emulated_tile of_b, bool added);
#pragma GCC visibility pop

#define threadIdx emulated_index{ (unsigned)emulated_current }
#define blockIdx emulated_group()
#define SHARED_MEMORY(name) float4 *const name = (float4 *)emulated_shared()

template <typename TO, typename FROM> static inline TO emulated_bits(FROM from)
{
    TO to;
    static_assert(sizeof to == sizeof from, "sizes");
    memcpy(&to, &from, sizeof to);
    return to;
}

#define __uint_as_float(u) emulated_bits<float>((uint32_t)(u))
#define __int_as_float(u) emulated_bits<float>((uint32_t)(u))
#define __float_as_uint(f) emulated_bits<uint32_t>((float)(f))

static inline void __syncthreads() { emulated_barrier(false); }
static inline void __syncwarp() { emulated_barrier(true); }

static inline float __shfl_xor_sync(unsigned, float x, int mask)
{
    return __uint_as_float(emulated_exchange(__float_as_uint(x), mask));
}

static inline uint32_t __shfl_xor_sync(unsigned, uint32_t x, int mask)
{
    return emulated_exchange(x, mask);
}

static inline uint32_t __shfl_sync(unsigned, uint32_t x, int lane)
{
    return emulated_exchange(x, (int)(threadIdx.x % 32) ^ lane);
}

static inline uint32_t __shfl_sync(unsigned all, int x, int lane)
{
    return __shfl_sync(all, (uint32_t)x, lane);
}

static inline float __shfl_sync(unsigned all, float x, int lane)
{
    return __uint_as_float(__shfl_sync(all, __float_as_uint(x), lane));
}

static inline bool __any_sync(unsigned, bool x)
{
    return emulated_any(x);
}

static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
    const uint64_t both = a | (uint64_t)b << 32;
    uint32_t r = 0;

    for (int i = 0; i < 4; i++)
        r |= (uint32_t)(both >> (8 * (s >> (4 * i) & 7)) & 0xff) << (8 * i);
    return r;
}

static inline int atomicAdd(int *at, int more)
{
    const int before = *at;

    *at += more;
    return before;
}

static inline int atomicOr(int *at, int bits)
{
    const int before = *at;

    *at |= bits;
    return before;
}

// Groups run one after the other, so whoever waits for a later one would wait for ever.
DEVICE int device_flag(const int *at) { return *at; }
DEVICE void device_set_flag(int *at, int x) { *at = x; }
DEVICE int device_flag_acquire(const int *at) { return *at; }
DEVICE void device_set_flag_release(int *at, int x) { *at = x; }
DEVICE void device_set_words(float4 *at, const float4 &x) { *at = x; }
DEVICE void device_fence() {}

DEVICE void device_fetch(const void *) {}

// Of what others of the group have still to write: they get their turn.
DEVICE float4 device_words(const float4 *at)
{
    emulated_yield();
    return *at;
}

DEVICE void device_add_pair(float *to, float a, float b)
{
    to[0] += a;
    to[1] += b;
}

DEVICE int device_thread() { return (int)threadIdx.x; }
DEVICE int device_group() { return (int)blockIdx.x; }

DEVICE void *device_hold(const void *x) { return (void *)x; }

DEVICE float device_f32_of_f16(uint16_t u)
{
    // by hand, since the compiler calls a function: exponents are 112 apart
    const uint32_t sign = (uint32_t)(u & 0x8000u) << 16, rest = u & 0x7fffu;
    const float x = __uint_as_float(rest << 13) * 0x1p112f;
    const uint32_t bits = rest < 0x7c00u ? __float_as_uint(x) : rest << 13 | 0x7f800000u;

    return __uint_as_float(sign | bits);
}

DEVICE uint16_t device_f16_of_f32(float f)
{
    const _Float16 h = (_Float16)f;
    uint16_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}

DEVICE float device_exp2(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

DEVICE float device_min(float a, float b) { return a != a || a < b ? a : b; }

DEVICE float device_product(float a, float b) { return a * b; }

DEVICE uint16_t emulated_bf16(float f)
{
    const uint32_t u = __float_as_uint(f);

    return f != f ? 0x7fff : (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

template <int TYPE> DEVICE uint32_t device_pair(float low, float high)
{
    const uint32_t a = TYPE == 1 ? device_f16_of_f32(low) : emulated_bf16(low);
    const uint32_t b = TYPE == 1 ? device_f16_of_f32(high) : emulated_bf16(high);

    return a | b << 16;
}

DEVICE uint16_t emulated_element(uint64_t word, int i) { return (uint16_t)(word >> (16 * i)); }

DEVICE void device_forget() {}

typedef uintptr_t device_shared;

DEVICE device_shared device_address(const void *x) { return (device_shared)x; }

DEVICE void device_matrices(uint32_t (&x)[4], device_shared row)
{
    emulated_matrices(x, row, false);
}

DEVICE void device_matrices(uint32_t (&x)[4], const void *row)
{
    device_matrices(x, device_address(row));
}

DEVICE void device_matrices_turned(uint32_t (&x)[4], device_shared row)
{
    emulated_matrices(x, row, true);
}

DEVICE void device_matrices_turned(uint32_t (&x)[4], const void *row)
{
    device_matrices_turned(x, device_address(row));
}

template <int TYPE> DEVICE float emulated_float(uint16_t u)
{
    return TYPE == 1 ? device_f32_of_f16(u) : __uint_as_float((uint32_t)u << 16);
}

template <int TYPE> DEVICE uint32_t device_min_pair(uint32_t a, uint32_t b)
{
    uint32_t u = 0;

    for (int i = 0; i < 2; i++) {
        const uint16_t x = emulated_element(a, i), y = emulated_element(b, i);
        const float f = emulated_float<TYPE>(x), g = emulated_float<TYPE>(y);

        u |= (uint32_t)(g != g || f < g ? x : y) << (16 * i);
    }
    return u;
}

template <int TYPE>
DEVICE void device_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated_multiply(TYPE, c, a, b0, b1);
}

DEVICE uint32_t device_tf32(uint32_t x)
{
    const bool finite = (x & 0x7f800000u) != 0x7f800000u;

    return finite ? (x + 0x1000u) & 0xffffe000u : x;
}

DEVICE void device_multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                 uint32_t b1)
{
    emulated_multiply_tf32(c, a, b0, b1);
}

template <int TYPE>
DEVICE void device_product_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    device_multiply<TYPE>(c, a, b0, b1);
}

DEVICE void device_product_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                uint32_t b1)
{
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    device_multiply_tf32(c, a, b0, b1);
}

template <int THREADS> DEVICE void device_meet(int number)
{
    emulated_meet(number, THREADS, true);
}

template <int THREADS> DEVICE void device_pass(int number)
{
    emulated_meet(number, THREADS, false);
}

template <int THREADS> DEVICE bool device_meet_any(int number, bool has)
{
    return emulated_meet_any(number, THREADS, has);
}

DEVICE void device_put(device_shared at, uint32_t x) { memcpy((void *)at, &x, sizeof x); }

template <int BYTES> DEVICE void device_copy(float *to, const void *from, bool inside)
{
    emulated_copy(to, from, BYTES, inside ? BYTES : 0);
}

DEVICE void device_copy_part(void *to, const void *from, int bytes)
{
    emulated_copy(to, from, 16, bytes);
}

DEVICE void device_let_next() {}
DEVICE void device_wait_before() {}

DEVICE void device_commit() { emulated_commit(); }

template <int PENDING> DEVICE void device_copied() { emulated_copies(PENDING); }

DEVICE void device_arrive()
{
    emulated_copies(-1);
    emulated_barrier(false);
}
