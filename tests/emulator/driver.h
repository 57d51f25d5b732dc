// SPDX-License-Identifier: MIT
// emulator/driver.h: what the files of the emulator share.
#pragma once
#include <cuda.h>

#include <functional>
#include <string>
#include <vector>

enum { MOST_THREADS = 1024, MOST_DEVICES = 8 };

// Calls a kernel with the parameters of a launch, which it takes by value.
typedef void runner(void *entry, const void *params);

struct CUfunc_st {
    std::string name;
    void *entry;
    runner *run;
    size_t bytes, more; // of its first parameter, of its second
    CUcontext context;
    bool broken;  // loses its last group
};

struct launch {
    CUfunction function;
    unsigned groups, threads;
    size_t bytes; // of shared memory
    std::vector<char> params;
};

struct CUctx_st {
    CUdevice device;
    bool alive;
    CUresult broken; // what every call answers since a kernel went wrong
    int users;       // of a primary one
};

struct CUstream_st {
    CUcontext context;
    unsigned flags;
    CUgraph graph;   // that it is captured into
    bool invalid;    // the capture
};

// emulator.cpp
void emulate(const launch &l);
[[noreturn]] void fault(const char *what);

// driver.cpp
int number(const char *name, int otherwise); // of the environment
CUcontext top();
CUresult usable();                           // the current context
CUcontext context_of(CUstream stream);       // handles that are no objects: the current one

// graph.cpp. Does the work now, or puts it into the graph that the stream is captured into.
CUresult enqueue(CUstream stream, CUgraphNodeType type, std::function<void()> work);
CUresult unsafe();                           // a call that breaks captures: refuses it then
bool is_captured(CUstream stream);
CUresult wait_for(CUstream stream);
CUresult break_capture(CUstream stream, CUresult code); // returns the code
