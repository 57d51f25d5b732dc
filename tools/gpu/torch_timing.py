# SPDX-License-Identifier: MIT
"""Times calls on PyTorch's current stream, by the device's events.

What is timed has launch(i, stream), which enqueues run i, and active(), a context to run
in."""
import contextlib
import itertools
import math
import statistics
import time
import types

import torch

REPEATS, WARM_UPS, IDLE_S, SPIN_CYCLES = 15, 3, 0.005, 1_000_000
COUNTED, SHORT_MS, GRAPH_MS, HOST_CALLS = 0.6, 0.2, 2.0, 20


def current_stream():
    return torch.cuda.current_stream().cuda_stream


def single(c):
    """Readings in ms: the card idles before each launch, and the host is ahead of it."""
    stream, readings = current_stream(), []
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with c.active():
        for i in range(WARM_UPS + REPEATS):
            torch.cuda.synchronize()
            time.sleep(IDLE_S)
            torch.cuda._sleep(SPIN_CYCLES)
            first.record()
            c.launch(i, stream)
            last.record()
            last.synchronize()
            readings.append(first.elapsed_time(last))
    return readings[WARM_UPS:]


def host(c):
    """What the host takes for one call, in us; nothing waits for the device."""
    stream, readings = current_stream(), []
    with c.active():
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for i in range(HOST_CALLS):
                c.launch(i, stream)
            readings.append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
        torch.cuda.synchronize()
    return statistics.median(readings)


def make_step(c, copies, ms):
    """What a block repeats, and how many launches it is: one, or a graph of many where the
    host could not keep the device busy."""
    if ms >= SHORT_MS:
        stream = current_stream()
        turn = itertools.count()
        return lambda: c.launch(next(turn), stream), 1
    launches = copies * math.ceil(GRAPH_MS / ms / copies)
    graph = torch.cuda.CUDAGraph()
    with c.active(), torch.cuda.graph(graph):
        stream = current_stream()
        for i in range(launches):
            c.launch(i, stream)
    return graph.replay, launches


def one_block(c, step, launches, ms, seconds):
    """ms of a launch in the last part of a block."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    n = max(5, math.ceil(seconds * 1e3 / (ms * launches)))
    start = n - math.ceil(COUNTED * n)
    with c.active():
        for i in range(n):
            if i == start:
                first.record()
            step()
        last.record()
        last.synchronize()
    return first.elapsed_time(last) / ((n - start) * launches)


def blocks(a, b, copies, ms, seconds):
    """A B B A; the mean of each one's two blocks."""
    steps = [make_step(c, copies, t) for c, t in zip((a, b), ms)]
    found = ([], [])
    for which in (0, 1, 1, 0):
        found[which].append(one_block((a, b)[which], *steps[which], ms[which], seconds))
    torch.cuda.synchronize()
    return tuple(statistics.mean(x) for x in found)


def ceilings():
    def median_ms(call):
        return statistics.median(single(types.SimpleNamespace(
            active=contextlib.nullcontext, launch=lambda _i, _stream: call())))

    size, found = 8192, {}
    for name, type_ in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        a, b = (torch.randn(size, size, device="cuda", dtype=type_) for _ in range(2))
        found[f"{name} matmul {size}, TFLOP/s"] = round(
            2 * size**3 / median_ms(lambda a=a, b=b: a @ b) / 1e9, 1)
    a, b = (torch.randn(2**28, device="cuda") for _ in range(2))
    found["copy, GB/s"] = round(2 * a.nbytes / median_ms(lambda: b.copy_(a)) / 1e6, 1)
    return found
