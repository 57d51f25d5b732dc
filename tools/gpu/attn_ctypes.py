# SPDX-License-Identifier: MIT
"""libattn through ctypes: the structs of include/attn, the calls that are made on them,
and a check of both that needs no GPU."""
import ctypes
import math
import random

F32, F16, BF16 = 1, 2, 3
TYPES = {"f32": F32, "f16": F16, "bf16": BF16}
SIZES = ctypes.c_int64 * 4


class Tensor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("data", ctypes.c_void_p),
                ("offset", ctypes.c_int64), ("sizes", SIZES), ("strides", SIZES),
                ("data_bytes", ctypes.c_size_t)]


class Desc(ctypes.Structure):
    _fields_ = ([("size", ctypes.c_size_t), ("use", ctypes.c_uint32),
                 ("type", ctypes.c_int)]
                + [(name, ctypes.c_int64) for name in (
                    "batch", "heads_q", "heads_kv", "len_q", "len_kv", "dim_qk", "dim_v")]
                + [("align", ctypes.c_int)]
                + [(name, ctypes.c_int64) for name in (
                    "offset", "window_left", "window_right")]
                + [("scale", ctypes.c_float)]
                + [(name, ctypes.c_int) for name in (
                    "layout_q", "layout_k", "layout_v", "layout_o")]
                + [("softcap", ctypes.c_float), ("type_bias", ctypes.c_int),
                   ("page_size", ctypes.c_int64), ("grad", ctypes.c_uint32)]
                + [(name, ctypes.c_int) for name in (
                    "layout_grad_o", "layout_grad_q", "layout_grad_k", "layout_grad_v")]
                + [("dropout", ctypes.c_float)])


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("variant", ctypes.c_char_p),
                ("splits", ctypes.c_int64)]


class Args(ctypes.Structure):
    _fields_ = ([("size", ctypes.c_size_t)]
                + [(name, Tensor) for name in ("q", "k", "v", "o", "lse", "lens_kv")]
                + [("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)]
                + [(name, Tensor) for name in (
                    "bias", "mask", "alibi", "sinks", "lens_q", "offsets", "cu_q", "cu_k",
                    "block_table", "status", "grad_o", "grad_lse", "grad_q", "grad_k",
                    "grad_v", "grad_bias", "grad_sinks", "state_in", "z_in", "state_out",
                    "z_out", "den", "decay", "beta", "grad_state_out", "grad_z_out",
                    "grad_state_in", "grad_z_in")]
                + [(name, ctypes.c_uint64) for name in ("dropout_seed", "dropout_offset")])


def tensor(address, type_, sizes, strides):
    """A view of memory, in elements and in the order [B, H, L, D]."""
    return Tensor(type=type_, data=address, sizes=SIZES(*sizes), strides=SIZES(*strides))


class Error(Exception):
    """A call that did not return ATTN_OK: the status's name and the library's sentence."""


class Library:
    """The calls, with their C types. A status that is not ATTN_OK is an Error."""

    def __init__(self, path):
        self.so = ctypes.CDLL(path)
        pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
        calls = {
            "attn_ctx_create": [text, pointer], "attn_ctx_create_cuda": [pointer, pointer],
            "attn_softmax_parse": [text, pointer],
            "attn_softmax_text": [pointer, text, size, pointer],
            "attn_plan_text": [pointer, text, size, pointer],
            "attn_plan_softmax_with": [pointer, pointer, pointer, pointer],
            "attn_execute": [pointer, pointer, pointer],
        }
        for name, types in calls.items():
            call = getattr(self.so, name)
            call.argtypes, call.restype, call.errcheck = types, ctypes.c_int, self._errcheck
        for name in ("attn_last_error", "attn_version", "attn_status_name"):
            getattr(self.so, name).restype = text
        self.so.attn_plan_workspace_bytes.argtypes = [pointer]
        self.so.attn_plan_workspace_bytes.restype = size
        for name in ("attn_ctx_destroy", "attn_plan_destroy"):
            getattr(self.so, name).argtypes = [pointer]
            getattr(self.so, name).restype = None
        self.so.attn_tensor_blhd.argtypes = [pointer, ctypes.c_int] + 4 * [ctypes.c_int64]
        self.so.attn_tensor_blhd.restype = Tensor
        self.execute = self.so.attn_execute

    def _errcheck(self, status, _function, _args):
        if status:
            raise Error(f"{self.so.attn_status_name(status).decode()}: "
                        f"{self.so.attn_last_error().decode()}")

    def version(self):
        return self.so.attn_version().decode()

    def context(self, selector=None, cuda=None):
        """A context of a device by its name, or of a CUcontext, which must outlive it."""
        made = ctypes.c_void_p()
        if selector:
            self.so.attn_ctx_create(selector.encode(), ctypes.byref(made))
        else:
            self.so.attn_ctx_create_cuda(cuda, ctypes.byref(made))
        return made

    def parse(self, problem):
        desc = Desc(size=ctypes.sizeof(Desc))
        self.so.attn_softmax_parse(problem.encode(), ctypes.byref(desc))
        return desc

    def text(self, desc):
        return self._text(self.so.attn_softmax_text, ctypes.byref(desc))

    def plan(self, ctx, desc, variant=None):
        options = Options(size=ctypes.sizeof(Options),
                          variant=variant.encode() if variant else None)
        made = ctypes.c_void_p()
        self.so.attn_plan_softmax_with(ctx, ctypes.byref(desc), ctypes.byref(options),
                                       ctypes.byref(made))
        return made

    def instance(self, plan):
        """The plan's back end, variant and instance."""
        return self._text(self.so.attn_plan_text, plan).split(" ")[0]

    @staticmethod
    def _text(call, thing):
        room = ctypes.create_string_buffer(1024)
        call(thing, room, len(room), None)
        return room.value.decode()

    def workspace_bytes(self, plan):
        return self.so.attn_plan_workspace_bytes(plan)

    def free(self, ctx, plan):
        self.so.attn_plan_destroy(ctypes.byref(plan))
        self.so.attn_ctx_destroy(ctypes.byref(ctx))


def _refuses_larger(lib, struct, call):
    """The library reads zeros behind a struct as a newer caller's, and refuses anything
    else there with its own size: which must be ours."""
    want = ctypes.sizeof(struct)
    memory = (ctypes.c_char * (want + 8))()
    ctypes.memmove(memory, ctypes.byref(struct), want)
    ctypes.c_size_t.from_buffer(memory).value = want + 8
    memory[want] = b"\1"
    try:
        call(memory)
    except Error as error:
        said = str(error).rsplit("= ", 1)[-1]
        assert said == str(want), f"{type(struct).__name__} is {want} bytes here: {error}"
        return
    raise AssertionError(f"a {type(struct).__name__} of {want + 8} bytes is taken")


def _plain_rows(q, k, v, length, dim):
    """Attention of one head in double, as lists; and the log-sum-exp of each row."""
    out, sums = [], []
    for i in range(length):
        scores = [sum(q[i * dim + e] * k[j * dim + e] for e in range(dim)) / math.sqrt(dim)
                  for j in range(length)]
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        sums.append(top + math.log(sum(weights)))
        out += [sum(w * v[j * dim + e] for j, w in enumerate(weights)) / sum(weights)
                for e in range(dim)]
    return out, sums


def self_check(lib):
    """Runs a small problem on host arrays through every struct, and compares layouts."""
    desc = lib.parse("softmax_fwd:f16,b2,hq12,hkv3,lq5,lk7,d72,dv80,align=tl,offset=9,"
                     "window=11:13,scale=0.5,softcap=25,bias=bf16,pages=16,"
                     "dropout=0.5,lse,layout=4:8:16:2")
    want = {"type": F16, "batch": 2, "heads_q": 12, "heads_kv": 3, "len_q": 5, "len_kv": 7,
            "dim_qk": 72, "dim_v": 80, "offset": 9, "window_left": 11, "window_right": 13,
            "scale": 0.5, "softcap": 25, "type_bias": BF16, "page_size": 16,
            "dropout": 0.5,
            "layout_q": 2, "layout_k": 1, "layout_v": 0, "layout_o": 3}
    have = {name: getattr(desc, name) for name in want}
    assert have == want, f"attn_softmax_desc: have {have}, want {want}"

    length, dim = 9, 16
    view = lib.so.attn_tensor_blhd(64, F32, 2, 3, length, dim)
    assert (view.type, view.data, list(view.sizes), list(view.strides)) == (
        F32, 64, [2, 3, length, dim], [3 * length * dim, dim, 3 * dim, 1]), "attn_tensor"

    rng = random.Random(1)
    floats = ctypes.c_float * (length * dim)
    q, k, v = (floats(*[rng.gauss(0, 1) for _ in range(length * dim)]) for _ in range(3))
    o, sums, word = floats(), (ctypes.c_float * length)(), ctypes.c_int(0)
    desc = lib.parse(f"softmax_fwd:f32,b1,hq1,hkv1,lq{length},lk{length},d{dim},lse,"
                     "layout=4")
    args = Args(size=ctypes.sizeof(Args))
    sizes, strides = (1, 1, length, dim), (length * dim, length * dim, dim, 1)
    for name, array in (("q", q), ("k", k), ("v", v), ("o", o)):
        setattr(args, name, tensor(ctypes.addressof(array), F32, sizes, strides))
    args.lse = tensor(ctypes.addressof(sums), F32, (1, 1, length, 1),
                      (length, length, 1, 1))
    args.status = tensor(ctypes.addressof(word), 4, (1, 1, 1, 1), (1, 1, 1, 1))
    ctx = lib.context("host")
    plan = lib.plan(ctx, desc, "softmax_fwd_tile")
    assert lib.instance(plan).startswith("host:softmax_fwd_tile["), lib.instance(plan)
    space = ctypes.create_string_buffer(lib.workspace_bytes(plan) + 64)
    args.workspace = -(-ctypes.addressof(space) // 64) * 64
    args.workspace_bytes = lib.workspace_bytes(plan)
    lib.execute(plan, ctypes.byref(args), None)
    rows, plain_sums = _plain_rows(q, k, v, length, dim)
    worst = max(abs(a - b) for a, b in zip([*o, *sums], rows + plain_sums))
    assert worst < 1e-5, f"O or the LSE is off by {worst}"
    _refuses_larger(lib, args, lambda memory: lib.execute(plan, memory, None))
    _refuses_larger(lib, desc, lambda memory: lib.so.attn_plan_softmax_with(
        ctx, memory, None, ctypes.byref(ctypes.c_void_p())))
    options = Options(size=ctypes.sizeof(Options))
    _refuses_larger(lib, options, lambda memory: lib.so.attn_plan_softmax_with(
        ctx, ctypes.byref(desc), memory, ctypes.byref(ctypes.c_void_p())))
    lib.free(ctx, plan)
    return f"libattn {lib.version()}: structs agree, O and LSE within {worst:.1e} of double"
