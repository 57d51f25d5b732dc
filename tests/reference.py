# SPDX-License-Identifier: MIT
"""Softmax attention in Python's doubles, and the .npy files that it is held against."""
import math
import struct

CODES = {'<f4': 'f', '<f2': 'e', '<f8': 'd', '|b1': '?', '<i4': 'i', '<i8': 'q'}


# --- .npy files -----------------------------------------------------------------

def npy_bytes(descr, shape, values):
    sizes = ', '.join(map(str, shape)) + (',' if len(shape) == 1 else '')
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}"
    head += ' ' * (-(10 + len(head) + 1) % 64) + '\n'
    return (b'\x93NUMPY\x01\0' + struct.pack('<H', len(head)) + head.encode() +
            struct.pack(f'<{len(values)}{CODES[descr]}', *values))


def npy_read(path):
    with open(path, 'rb') as file:
        data = file.read()
    assert data[:8] == b'\x93NUMPY\x01\0', data[:8]
    end = 10 + struct.unpack('<H', data[8:10])[0]
    head = eval(data[10:end].decode(), {})
    n = math.prod(head['shape'])
    return (head['descr'], head['shape'],
            list(struct.unpack(f'<{n}{CODES[head["descr"]]}', data[end:])))


# --- the reference --------------------------------------------------------------

def round_to(kind, x):
    if kind == 'f32':
        return struct.unpack('<f', struct.pack('<f', x))[0]
    if kind == 'f16':
        return struct.unpack('<e', struct.pack('<e', x))[0]
    m, e = math.frexp(x)                      # bf16: 8 bits, ties to even
    return math.ldexp(round(m * 256), e - 8)


class Array:
    """Values in the order B, H, L, D, whatever their file looks like."""

    def __init__(self, size, values):
        self.size, self.values = size, values

    def row(self, b, h, i):
        _, heads, length, d = self.size
        at = ((b * heads + h) * length + i) * d
        return self.values[at:at + d]

    def in_file_order(self, layout):
        if layout == 'bhld':
            return self.size, self.values
        b, h, l, d = self.size
        out = [x for i in range(b) for j in range(l) for k in range(h)
               for x in self.row(i, k, j)]
        return (b, l, h, d), out


def from_file(shape, values, layout):
    size = (1,) * (4 - len(shape)) + tuple(shape)
    if layout == 'bhld':
        return Array(size, values)
    b, l, h, d = size
    flat = Array((b, l, h, d), values)
    return Array((b, h, l, d), [x for i in range(b) for k in range(h) for j in range(l)
                                for x in flat.row(i, j, k)])


class Broadcast:
    """A bias or mask of any rank, as NumPy broadcasts it to [B, H, Lq, Lk]."""

    def __init__(self, shape, values):
        self.shape, self.values = (1,) * (4 - len(shape)) + tuple(shape), values

    def __call__(self, *index):
        at = 0
        for i, size in zip(index, self.shape):
            at = at * size + (i if size > 1 else 0)
        return self.values[at]


def philox(counter, key):
    """The four words of Philox4x32-10."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        a, b = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & 0xffffffff, a >> 32 ^ c[3] ^ k1, a & 0xffffffff]
        k0, k1 = k0 + 0x9e3779b9 & 0xffffffff, k1 + 0xbb67ae85 & 0xffffffff
    return c


def kept(p, seed, offset, head, i, j):
    """What dropout multiplies a weight by; head counts over the batches."""
    p = round_to('f32', p)
    word = philox((j // 4, i, head, offset & 0xffffffff),
                  (seed & 0xffffffff, seed >> 32 ^ offset >> 32))[j % 4]
    return 1 / (1 - p) if word >= math.floor(p * 2 ** 32) else 0


def attention(q, k, v, scale=None, causal=False, align='top-left', offset=0,
              window=(-1, -1), lens=None, softcap=0, bias=None, mask=None, alibi=None,
              sinks=None, q_lens=None, dropout=0, seed=0, dropout_offset=0):
    """O, LSE and the largest |score| of each (batch, head). `alibi` is Broadcast to
    [B, H, 1, 1]; `offset` may be a list, one a batch; rows that are no query's are 0."""
    batch, hq, lq, d = q.size
    lk, dv = k.size[2], v.size[3]
    group = hq // k.size[1] if k.size[1] else 1
    scale = 1 / math.sqrt(d) if scale is None else scale
    out, lse, largest = [], [], []
    for b in range(batch):
        keys = lk if lens is None else lens[b]
        queries = lq if q_lens is None else q_lens[b]
        first = (keys - queries if align == 'bottom-right'
                 else offset[b] if isinstance(offset, list) else offset)
        for h in range(hq):
            most = 0.0
            for i in range(lq):
                if i >= queries:
                    out += [0.0] * dv
                    lse.append(0.0)
                    continue
                p, row = i + first, q.row(b, h, i)
                seen = [j for j in range(keys)
                        if (not causal or j <= p) and
                        (window[0] < 0 or j >= p - window[0]) and
                        (window[1] < 0 or j <= p + window[1]) and
                        (mask is None or mask(b, h, i, j)) and
                        (bias is None or bias(b, h, i, j) != -math.inf)]
                s = [scale * math.fsum(x * y for x, y in zip(row, k.row(b, h // group, j)))
                     for j in seen]
                if softcap:
                    s = [softcap * math.tanh(x / softcap) for x in s]
                s = [x + (bias(b, h, i, j) if bias else 0) -
                     (alibi(b, h, 0, 0) * abs(p - j) if alibi else 0)
                     for x, j in zip(s, seen)]
                sink = [] if sinks is None else [sinks[h]]
                m = max(s + sink, default=-math.inf)
                e = [math.exp(x - m) for x in s]
                total = math.fsum(e + [math.exp(x - m) for x in sink])
                if dropout:
                    e = [x * kept(dropout, seed, dropout_offset, b * hq + h, i, j)
                         for x, j in zip(e, seen)]
                rows = [v.row(b, h // group, j) for j in seen]
                out += [math.fsum(w * r[c] for w, r in zip(e, rows)) / total if e else 0.0
                        for c in range(dv)]
                lse.append(m + math.log(total) if total else -math.inf)
                most = max([most] + [abs(x) for x in s])
            largest.append(most)
    return Array((batch, hq, lq, dv), out), lse, largest
