// SPDX-License-Identifier: MIT
// emulator/emulator.cpp: runs the CUDA kernels on a processor, for a libcuda.so.1 without a
// GPU: driver.cpp is the API of it, graph.cpp what captures launches.
//
// What it can show: wrong indices, masks, features and results; a barrier or shuffle that
// not all threads reach; reads of copies that were not waited for and of shared memory that
// was never written (both are NaN); writes past the shared memory of a launch, and just past
// a block of memory; warps that another was to wait for: they run in another order after each
// barrier, each up to the next while the others stand still. What it can't: races that need two
// at once, speed, and what nvcc makes of the source.
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

#include <mutex>
#include <vector>

#include "common/device.cuh"
#include "driver.h"

namespace {

enum { STACK = 256 * 1024, GUARD = 1 };

enum waits { RUNS, AT_BARRIER, AT_WARP, ENDED };

struct pending {
    void *to;
    const void *from;
    int bytes, there;    // the last of them are zeros
    int group;
};

// makecontext() gives a fiber its stack; after that _longjmp() is the faster switch: no
// system call. So a fiber stays when its group ends, and runs a thread of the next. Stacks
// begin at different lines of a page, lest all of them share a few sets of the cache.
struct fiber {
    ucontext_t context;
    jmp_buf at;
    bool begun;
    std::vector<char> stack;
    waits state;
    std::vector<pending> copies;
    int group;    // of copies, that is open
};

std::mutex lock; // one launch at a time
fiber fibers[MOST_THREADS];
ucontext_t beginning;
jmp_buf scheduler;
int n_threads, current;
unsigned group;
struct alignas(1024) block {
    unsigned char byte[1024];
};
std::vector<block> shared;
uint32_t slot[2][MOST_THREADS]; // in turn: who is ahead must not overwrite
unsigned turn[MOST_THREADS];
int arrived[16], times[16]; // at the barriers by number: threads, and how often all were there
bool had[16][2];            // whether one of them had it, in turn
const launch *launched;

void run_fiber()
{
    for (;;) {
        launched->function->run(launched->function->entry, launched->params.data());
        fibers[current].state = ENDED;
        if (!_setjmp(fibers[current].at))
            _longjmp(scheduler, 1);
    }
}

void resume(int i)
{
    current = i;
    if (_setjmp(scheduler))
        return;
    if (fibers[i].begun)
        _longjmp(fibers[i].at, 1);
    fibers[i].begun = true;
    swapcontext(&beginning, &fibers[i].context);
}

// Lets those go on who all wait at the same barrier.
bool release(int from, int to, waits at)
{
    bool any = false;

    for (int i = from; i < to; i++) {
        if (fibers[i].state != at && fibers[i].state != ENDED)
            return false;
        any |= fibers[i].state == at;
    }
    for (int i = from; i < to; i++)
        if (fibers[i].state == at)
            fibers[i].state = RUNS;
    return any;
}

// Lets a warp run ahead of the others until it waits for them.
bool run_warp(int from, unsigned seed, int &ended)
{
    const int n = n_threads - from < 32 ? n_threads - from : 32;
    bool moved = false, yields = false;

    do {
        for (int k = 0; k < n; k++) {
            const int i = from + (int)((seed >> 20) + (seed & 2 ? k : n - k)) % n;

            if (fibers[i].state != RUNS)
                continue;
            moved = true;
            resume(i);
            ended += fibers[i].state == ENDED;
            yields |= fibers[i].state == RUNS;
        }
    } while (!yields && release(from, from + n, AT_WARP));
    return moved;
}

void run_group(size_t bytes)
{
    static unsigned seed = 1;
    int ended = 0;

    memset(arrived, 0, sizeof arrived);
    memset(had, 0, sizeof had);
    memset((void *)shared.data(), 0xff, shared.size() * sizeof shared[0]);
    for (int i = 0; i < n_threads; i++) {
        fiber &f = fibers[i];

        f.copies.clear();
        f.group = 0;
        f.state = RUNS;
        turn[i] = 0;
        if (f.begun)
            continue;
        f.stack.resize(STACK);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size() - (size_t)i % 64 * 5 * 64;
        f.context.uc_link = NULL;
        makecontext(&f.context, run_fiber, 0);
    }
    while (ended < n_threads) {
        const int warps = (n_threads + 31) / 32;
        bool moved = false;

        seed = seed * 1664525u + 1013904223u;
        for (int k = 0, start = (int)(seed >> 8) % warps; k < warps; k++)
            moved |= run_warp((start + (seed & 1 ? k : warps - k)) % warps * 32, seed, ended);
        moved |= release(0, n_threads, AT_BARRIER);
        if (!moved && ended < n_threads)
            fault("threads wait for each other at different barriers");
    }
    for (size_t i = bytes; i < shared.size() * sizeof shared[0]; i++)
        if (((unsigned char *)shared.data())[i] != 0xff)
            fault("wrote past the end of its shared memory");
}

} // namespace

void fault(const char *what)
{
    fprintf(stderr, "emulator: %s, group %u: %s\n",
            launched ? launched->function->name.c_str() : "no kernel", group, what);
    abort();
}

void emulate(const launch &l)
{
    std::lock_guard<std::mutex> guard(lock);

    launched = &l;
    n_threads = (int)l.threads;
    shared.resize(l.bytes / sizeof shared[0] + 1 + GUARD);
    for (group = 0; group < l.groups; group++)
        run_group(l.bytes);
    launched = NULL;
}

emulated_index emulated_thread() { return { (unsigned)current }; }
emulated_index emulated_group() { return { group }; }
void *emulated_shared() { return shared.data(); }

void emulated_barrier(bool warp)
{
    const int me = current;

    fibers[me].state = warp ? AT_WARP : AT_BARRIER;
    if (!_setjmp(fibers[me].at))
        _longjmp(scheduler, 1);
}

// Lets the others go on, without which what is waited for does not come.
void emulated_yield()
{
    if (!_setjmp(fibers[current].at))
        _longjmp(scheduler, 1);
}

void emulated_meet(int number, int threads, bool waits)
{
    const int before = times[number];

    if (++arrived[number] == threads) {
        arrived[number] = 0;
        times[number]++;
    }
    while (waits && times[number] == before)
        emulated_yield();
}

bool emulated_meet_any(int number, int threads, bool x)
{
    const int turn = times[number] % 2;

    if (arrived[number] == 0)    // all have read the last answer but one
        had[number][turn] = false;
    had[number][turn] |= x;
    emulated_meet(number, threads, true);
    return had[number][turn];
}

unsigned emulated_groups() { return launched->groups; }

// What all lanes of the warp gave.
static const uint32_t *exchange(uint32_t value)
{
    const unsigned t = turn[current]++ % 2;

    slot[t][current] = value;
    emulated_barrier(true);
    return &slot[t][current / 32 * 32];
}

uint32_t emulated_exchange(uint32_t value, int mask)
{
    return exchange(value)[(current ^ mask) % 32];
}

uint64_t (*emulated_scratch())[8]
{
    static uint64_t words[MOST_THREADS][8];

    return &words[current / 32 * 32];
}

bool emulated_any(bool x)
{
    const uint32_t *all = exchange(x);
    bool any = false;

    for (int i = 0; i < 32; i++)
        any |= all[i] != 0;
    return any;
}

// What is on its way is neither the old nor the new.
void emulated_copy(void *to, const void *from, int bytes, int there)
{
    memset(to, 0xff, (size_t)bytes);
    if ((uintptr_t)to % (unsigned)bytes || (there && (uintptr_t)from % (unsigned)bytes))
        fault("copies from or to an address that is not aligned");
    fibers[current].copies.push_back({ to, from, bytes, there, fibers[current].group });
}

void emulated_commit()
{
    fibers[current].group++;
}

void emulated_copies(int pending_groups)
{
    fiber &f = fibers[current];
    size_t n = 0;

    for (; n < f.copies.size() && f.copies[n].group < f.group - pending_groups; n++) {
        const pending &c = f.copies[n];

        if (c.there)
            memcpy(c.to, c.from, (size_t)c.there);
        memset((char *)c.to + c.there, 0, (size_t)(c.bytes - c.there));
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + (long)n);
}
