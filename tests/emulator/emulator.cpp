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
#include <stdio.h>
#include <ucontext.h>

#include <mutex>
#include <vector>

#include "common/device.cuh"
#include "driver.h"

int emulated_current;

namespace {

int &current = emulated_current;

enum { STACK = 256 * 1024, GUARD = 1 };

struct pending {
    void *to;
    const void *from;
    int bytes, there;    // the last of them are zeros
    int group;
};

// makecontext() gives a fiber its stack; after that the compiler's own jumps are the faster
// switch: no system call, and no more than a few registers. So a fiber stays when its group
// ends, and runs a thread of the next. Stacks begin at different lines of a page, lest all of
// them share a few sets of the cache.
struct fiber {
    ucontext_t context;
    void *at[5];
    bool begun;
    std::vector<char> stack;
    std::vector<pending> copies;
    int group;    // of copies, that is open
};

// The lanes of a warp, as bits: who runs, who waits for the warp, for the group, who has ended.
struct lanes {
    uint32_t all, run, at_warp, at_barrier, ended;
};

// Instructions of the whole warp: what each lane gave to its last one, which one that was, and
// how many it has met; the number of those that were done.
struct together {
    void *given[32];
    emulated_work *work[32];
    unsigned met[32], done;
};

// A warp's turn: its lanes that have still to run before they are looked at again.
struct warp_turn {
    int from, n, first;
    bool upward, yields;
    uint32_t left;
};

std::mutex lock; // one launch at a time
fiber fibers[MOST_THREADS];
void *scheduler[5];
int n_threads, n_ended;
unsigned group;
struct alignas(1024) block {
    unsigned char byte[1024];
};
std::vector<block> shared;
lanes warps[MOST_THREADS / 32];
together met[MOST_THREADS / 32];
warp_turn turn;
uint32_t slot[2][MOST_THREADS]; // in turn: who is ahead must not overwrite
unsigned slots[MOST_THREADS];
int arrived[16], times[16]; // at the barriers by number: threads, and how often all were there
bool had[16][2];            // whether one of them had it, in turn
const launch *launched;

uint32_t bit(int thread) { return 1u << thread % 32; }

// Goes on with thread `current`, or with the scheduler if that is -1, and leaves the present
// one, whose place is `from`, for later.
__attribute__((noinline)) void go_on(void **from)
{
    if (__builtin_setjmp(from))
        return;
    if (current < 0)
        __builtin_longjmp(scheduler, 1);
    if (fibers[current].begun)
        __builtin_longjmp(fibers[current].at, 1);
    fibers[current].begun = true;
    setcontext(&fibers[current].context);
}

// The next thread of the warp's turn; -1 if it ends. A warp runs ahead of the others until it
// waits for them.
int next()
{
    lanes &w = warps[turn.from / 32];

    if (!turn.left) {
        if (turn.yields || !w.at_warp || (w.at_warp | w.ended) != w.all)
            return -1;
        w.run = turn.left = w.at_warp;
        w.at_warp = 0;
    }
    const uint32_t rest = turn.upward ? turn.left & ~0u << turn.first
                                      : turn.left & ~0u >> (31 - turn.first);
    const uint32_t among = rest ? rest : turn.left;
    const int lane = turn.upward ? __builtin_ctz(among) : 31 - __builtin_clz(among);

    turn.left &= ~(1u << lane);
    return turn.from + lane;
}

// The present thread lets others go on, until it is its turn.
void leave()
{
    const int me = current;

    turn.yields |= (warps[me / 32].run & bit(me)) != 0;
    current = next();
    if (current != me)
        go_on(fibers[me].at);
}

void run_fiber()
{
    for (;;) {
        launched->function->run(launched->function->entry, launched->params.data());
        warps[current / 32].run &= ~bit(current);
        warps[current / 32].ended |= bit(current);
        n_ended++;
        leave();
    }
}

bool run_warp(int from, unsigned seed)
{
    const int n = n_threads - from < 32 ? n_threads - from : 32;

    turn = { from, n, (int)((seed >> 20) % n), (seed & 2) != 0, false, warps[from / 32].run };
    // all of them may wait for the warp since a turn that ended with some that yielded
    current = next();
    if (current < 0)
        return false;
    go_on(scheduler);
    return true;
}

// Lets those go on who all wait at the group's barrier.
bool release()
{
    const int n = (n_threads + 31) / 32;
    uint32_t any = 0;

    for (int i = 0; i < n; i++) {
        if ((warps[i].at_barrier | warps[i].ended) != warps[i].all)
            return false;
        any |= warps[i].at_barrier;
    }
    for (int i = 0; i < n; i++) {
        warps[i].run |= warps[i].at_barrier;
        warps[i].at_barrier = 0;
    }
    return any != 0;
}

void run_group(size_t bytes)
{
    static unsigned seed = 1;
    const int n = (n_threads + 31) / 32;

    memset(arrived, 0, sizeof arrived);
    memset(had, 0, sizeof had);
    memset(met, 0, sizeof met[0] * (size_t)n);
    memset((void *)shared.data(), 0xff, shared.size() * sizeof shared[0]);
    for (int i = 0; i < n; i++) {
        const uint32_t all = n_threads - i * 32 < 32 ? (1u << (n_threads - i * 32)) - 1 : ~0u;

        warps[i] = { all, all, 0, 0, 0 };
    }
    for (int i = 0; i < n_threads; i++) {
        fiber &f = fibers[i];

        f.copies.clear();
        f.group = 0;
        slots[i] = 0;
        if (f.begun)
            continue;
        f.stack.resize(STACK);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size() - (size_t)i % 64 * 5 * 64;
        f.context.uc_link = NULL;
        makecontext(&f.context, run_fiber, 0);
    }
    for (n_ended = 0; n_ended < n_threads;) {
        bool moved = false;

        seed = seed * 1664525u + 1013904223u;
        for (int k = 0, start = (int)(seed >> 8) % n; k < n; k++)
            moved |= run_warp((start + (seed & 1 ? k : n - k)) % n * 32, seed);
        moved |= release();
        if (!moved && n_ended < n_threads)
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

emulated_index emulated_group() { return { group }; }
void *emulated_shared() { return shared.data(); }

void emulated_barrier(bool warp)
{
    lanes &w = warps[current / 32];

    w.run &= ~bit(current);
    (warp ? w.at_warp : w.at_barrier) |= bit(current);
    leave();
}

// Lets the others go on, without which what is waited for does not come.
void emulated_yield() { leave(); }

void emulated_together(emulated_work *work, void *mine)
{
    together &t = met[current / 32];
    const int lane = current % 32;

    t.given[lane] = mine;
    t.work[lane] = work;
    const unsigned number = ++t.met[lane];
    emulated_barrier(true);
    if (t.done == number)
        return;
    for (int i = 0; i < 32; i++)
        if (t.met[i] != number || t.work[i] != work)
            fault("lanes of a warp are at different instructions");
    t.done = number;
    work(t.given);
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
    const unsigned t = slots[current]++ % 2;

    slot[t][current] = value;
    emulated_barrier(true);
    return &slot[t][current / 32 * 32];
}

uint32_t emulated_exchange(uint32_t value, int mask)
{
    return exchange(value)[(current ^ mask) % 32];
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
