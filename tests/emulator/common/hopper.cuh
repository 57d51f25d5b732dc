// SPDX-License-Identifier: MIT
// emulator/common/hopper.cuh: stands before cuda_kernels/common/hopper.cuh. Products and
// copies of boxes are done when they are begun: what waits for them too little is not found
// here, but what they read and where they write is the device's.
#pragma once
#include "common/device.cuh"
#include "common/maps.h"
#include "map.h"

#define gridDim emulated_index{ emulated_groups() }

// As bits: count, arrivals that are missing, bytes that are missing, the phase's parity.
struct device_barrier {
    uint32_t count, missing;
    int32_t bytes;
    uint32_t parity;
};

DEVICE float device_one_over(float x) { return 1.0f / x; }

static inline void emulated_phase(device_barrier *b)
{
    if (b->missing || b->bytes)
        return;
    b->missing = b->count;
    b->parity ^= 1;
}

DEVICE void device_barrier_init(device_barrier *b, int count)
{
    *b = { (uint32_t)count, (uint32_t)count, 0, 0 };
}

DEVICE void device_barriers_ready() { __syncthreads(); }

DEVICE void device_barrier_arrive(device_barrier *b, int times = 1)
{
    b->missing -= times;
    emulated_phase(b);
}

DEVICE void device_barrier_arrive_copied(device_barrier *b)
{
    emulated_copies(-1);
    device_barrier_arrive(b);
}

DEVICE void device_barrier_expect(device_barrier *b, int bytes)
{
    b->bytes += bytes;
    device_barrier_arrive(b);
}

DEVICE void device_copy_box(void *to, const attn_map *map, int column, int row, int head,
                            int batch, device_barrier *b)
{
    emulated_map m;

    memcpy(&m, map, sizeof m);
    if ((uintptr_t)to % 1024)
        abort();
    for (int r = 0; r < m.box[1]; r++)
        for (int c = 0; c < m.box[0]; c++) {
            char *const at = (char *)to + r * 128 + (((c / 8) ^ (r & 7)) * 8 + c % 8) * 2;
            const bool inside = row + r >= 0 && row + r < m.size[1] && column + c < m.size[0] &&
                                head < m.size[2] && batch < m.size[3];
            const char *const from = m.x + (column + c) * 2 + (row + r) * m.stride[0] +
                                     head * m.stride[1] + batch * m.stride[2];

            memset(at, 0, 2);
            if (inside)
                memcpy(at, from, 2);
        }
    b->bytes -= m.box[0] * m.box[1] * 2;
    emulated_phase(b);
}

DEVICE void device_bulk_add(float *to, const float *from, int bytes)
{
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16)
        abort();
    for (int i = 0; i < bytes / 4; i++)
        to[i] += from[i];
}

DEVICE void device_bulk_store(float *to, const float *from, int bytes)
{
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16)
        abort();
    memcpy(to, from, bytes);
}

DEVICE void device_bulk_commit() {}
DEVICE void device_bulk_wait_read() {}
template <int PENDING> DEVICE void device_bulk_wait() {}

DEVICE void device_barrier_wait(device_barrier *b, uint32_t parity)
{
    while (b->parity == parity)
        emulated_yield();
}

DEVICE void device_barrier_meet(device_barrier *b)
{
    const uint32_t parity = b->parity;

    device_barrier_arrive(b);
    device_barrier_wait(b, parity);
}

template <int REGISTERS> DEVICE void device_take_registers() {}
template <int REGISTERS> DEVICE void device_leave_registers() {}
DEVICE void device_copies_to_products() {}
DEVICE void device_products_begin() {}
DEVICE void device_products_commit() {}
template <int PENDING> DEVICE void device_products_wait() {}
template <int N> DEVICE void device_products_hold(float (&)[N][4]) {}

DEVICE void device_put_matrices(device_shared row, const uint32_t (&x)[4])
{
    emulated_put_matrices(row, x);
}

// An address in sixteenths, and the bytes to the next panel above it.
DEVICE uint64_t device_tile(device_shared at, int panel)
{
    return (uint64_t)at >> 4 | (uint64_t)(panel >> 4) << 48;
}

template <int TYPE, int N>
DEVICE void device_products_in(float (&c)[N][4], uint64_t a, uint64_t b, int added)
{
    emulated_products(TYPE, N, c, NULL, { a, false }, { b, true }, added);
}

// Both from shared memory, their rows along the depth.
template <int TYPE, int N>
DEVICE void device_products_turned(float (&c)[N][4], uint64_t a, uint64_t b, int added)
{
    emulated_products(TYPE, N, c, NULL, { a, true }, { b, false }, added);
}

// Of bf16; b's rows along the depth.
template <int N>
DEVICE void device_products_down(float (&c)[N][4], uint64_t a, uint64_t b, int added)
{
    emulated_products(2, N, c, NULL, { a, false }, { b, false }, added);
}

// A in registers; b's rows along the depth, or along columns of the result.
template <int TYPE, int N>
DEVICE void device_products_of(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    emulated_products(TYPE, N, c, a, {}, { b, false }, true);
}

template <int N>
DEVICE void device_products_by(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, int added)
{
    emulated_products(2, N, c, a, {}, { b, true }, added);
}

template <int N>
DEVICE void device_products_along(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, int added)
{
    emulated_products(2, N, c, a, {}, { b, false }, added);
}
