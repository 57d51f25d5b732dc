// SPDX-License-Identifier: MIT
// emulator/graph.cpp: streams that are captured into graphs, and the calls that a capture
// does not allow: they fail as the driver's do, and the capture is lost.
#include <mutex>

#include "driver.h"

namespace {
struct node {
    CUgraphNodeType type;
    std::function<void()> work;
};

std::mutex lock;
std::vector<CUstream> captured; // guarded by `lock`
} // namespace

struct CUgraphNode_st : node {};
struct CUgraph_st {
    std::vector<CUgraphNode_st> nodes;
};
struct CUgraphExec_st : CUgraph_st {};

bool is_captured(CUstream stream) { return stream > CU_STREAM_PER_THREAD && stream->graph; }

CUresult break_capture(CUstream stream, CUresult code)
{
    stream->invalid = true;
    return code;
}

CUresult unsafe()
{
    std::lock_guard<std::mutex> guard(lock);

    for (CUstream stream : captured)
        stream->invalid = true;
    return captured.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// The legacy stream waits for all others of its context but those that are told not to be
// waited for, so it can't be used while one of them is captured.
static CUresult check_legacy(CUstream stream)
{
    std::lock_guard<std::mutex> guard(lock);

    if (stream && stream != CU_STREAM_LEGACY)
        return CUDA_SUCCESS;
    for (CUstream other : captured)
        if (other->context == top() && !(other->flags & CU_STREAM_NON_BLOCKING))
            return break_capture(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return CUDA_SUCCESS;
}

CUresult wait_for(CUstream stream)
{
    CUresult code = usable();

    if (code == CUDA_SUCCESS)
        code = check_legacy(stream);
    if (code == CUDA_SUCCESS && is_captured(stream))
        code = break_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return code;
}

CUresult enqueue(CUstream stream, CUgraphNodeType type, std::function<void()> work)
{
    CUresult code = usable();

    if (code == CUDA_SUCCESS)
        code = context_of(stream) == top() ? check_legacy(stream)
                                           : CUDA_ERROR_INVALID_HANDLE;
    if (code != CUDA_SUCCESS)
        return code;
    if (!is_captured(stream))
        work();
    else if (stream->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else
        stream->graph->nodes.push_back({ { type, work } });
    return CUDA_SUCCESS;
}

extern "C" {

// For libraries: a copy of `bytes` bytes at `with` is what each run gets.
CUresult emulated_enqueue(CUstream stream, void (*run)(const void *), const void *with,
                          size_t bytes)
{
    const std::vector<char> copy((const char *)with, (const char *)with + bytes);

    return enqueue(stream, CU_GRAPH_NODE_TYPE_KERNEL, [=] { run(copy.data()); });
}

// Of the modes that of the least freedom alone.
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    std::lock_guard<std::mutex> guard(lock);

    if (stream <= CU_STREAM_PER_THREAD || mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->graph)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->graph = new CUgraph_st;
    stream->invalid = false;
    captured.push_back(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    std::lock_guard<std::mutex> guard(lock);

    *graph = NULL;
    if (!is_captured(stream))
        return CUDA_ERROR_ILLEGAL_STATE;
    for (size_t i = 0; i < captured.size(); i++)
        if (captured[i] == stream)
            captured.erase(captured.begin() + (long)i);
    if (stream->invalid)
        delete stream->graph;
    else
        *graph = stream->graph;
    stream->graph = NULL;
    return stream->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = !is_captured(stream) ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->invalid    ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    for (size_t i = 0; nodes && i < *n && i < graph->nodes.size(); i++)
        nodes[i] = &graph->nodes[i];
    *n = graph->nodes.size();
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long)
{
    *exec = new CUgraphExec_st{ { graph->nodes } };
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return enqueue(stream, CU_GRAPH_NODE_TYPE_GRAPH, [=] {
        for (const node &n : exec->nodes)
            n.work();
    });
}

CUresult cuGraphDestroy(CUgraph graph)
{
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    delete exec;
    return CUDA_SUCCESS;
}

} // extern "C"
