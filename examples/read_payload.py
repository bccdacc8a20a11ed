"""Payloads read by hand, from kernels/compress/WIRE_FORMAT.md alone, and compared with the library.

python examples/read_payload.py prints what a payload of a million elements is made of, for every
compressor. Nothing but compress() and decompress(), to compare with, is the library's.
"""

import math
import struct

import numpy as np

import gradwire

CHUNK = 4096  # elements whose indices count from the same place
BLOCK = 256  # elements that share a scale
BITS = {0: 32, 1: 16, 2: 16, 3: 8, 4: 4, 6: 2, 7: 1, 8: 8, 9: 8, 10: 8}  # of a value, by the header's code
DENSE, BLOCKS, SPARSE, DRAWN, LOW_RANK = 1, 2, 3, 4, 5  # the header's formats


# [header]
def read_header(payload):
    """The 32 bytes that every payload begins with."""
    names = "magic version format values flags spec first_chunk numel variant bytes"
    header = dict(zip(names.split(), struct.unpack_from("<4s4B4IQ", payload)))
    assert header["magic"] == b"GRW1" and header["version"] == 1
    assert header["flags"] == 0, "bit 0: the gradient held NaN or infinity"
    assert header["bytes"] == len(payload)
    return header
# [header-end]


# [codes]
def read_codes(kind, data, count):
    """`count` values, as they are before a scale multiplies them."""
    if kind == 0:
        return np.frombuffer(data, "<f4", count)
    if kind == 1:
        return np.frombuffer(data, "<f2", count).astype(np.float32)
    if kind == 2:  # the upper half of a float32
        return (np.frombuffer(data, "<u2", count).astype(np.uint32) << 16).view(np.float32)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")  # the lowest bit first
    codes = bits.reshape(-1, BITS[kind]) @ (1 << np.arange(BITS[kind]))
    return NARROW[kind](codes[:count]).astype(np.float32)
# [codes-end]


# [narrow]
def signed(width):
    """Two's complement."""
    return lambda code: (code ^ (1 << width - 1)) - (1 << width - 1)


def small_float(mantissa, bias):
    """A sign, an exponent, `mantissa` bits; with exponent 0 the leading 1 is not there."""
    def value(code):
        exponent, rest = code >> mantissa & (127 >> mantissa), code & ((1 << mantissa) - 1)
        size = np.where(exponent > 0, rest + (1 << mantissa), rest) * 2.0 ** (
            np.maximum(exponent, 1) - bias - mantissa)
        return np.where(code > 127, -size, size)
    return value


def power_of_two(code):
    return np.where(code & 127, 2.0 ** ((code & 127) - 126.0), 0) * np.where(code > 127, -1, 1)


NARROW = {3: signed(8), 4: signed(4), 6: signed(2), 7: lambda code: 1 - 2 * code,
          8: small_float(3, 7), 9: small_float(2, 15), 10: power_of_two}
# [narrow-end]


def chunks_of(numel):
    """(first element, length) of every chunk."""
    return [(begin, min(CHUNK, numel - begin)) for begin in range(0, numel, CHUNK)]


# [blocks]
def read_blocks(header, body, out):
    """Chunk after chunk: a float32 scale for each block, then the codes."""
    at, kind = 0, header["values"]
    for begin, length in chunks_of(header["numel"]):
        blocks, size = -(-length // BLOCK), -(-length * BITS[kind] // 8)
        scales = np.frombuffer(body, "<f4", blocks, at)
        codes = read_codes(kind, body[at + 4 * blocks : at + 4 * blocks + size], length)
        out[begin : begin + length] = codes * np.repeat(scales, BLOCK)[:length]
        at += 4 * blocks + size
# [blocks-end]
    assert at == len(body)


def pad4(size):
    return -(-size // 4) * 4


# [indices]
def read_indices(body, at, count, length, packed):
    """Indices of one chunk, and where the next one's begin."""
    if not packed:  # a bitmap
        bits = np.unpackbits(np.frombuffer(body, np.uint8, -(-length // 8), at), bitorder="little")
        return np.flatnonzero(bits[:length]), at + -(-length // 8)
    found = []
    for _ in range(count // 2):  # two indices of 12 bits in three bytes
        pair = int.from_bytes(body[at : at + 3], "little")
        found, at = [*found, pair & 4095, pair >> 12], at + 3
    if count % 2:
        found, at = [*found, int.from_bytes(body[at : at + 2], "little")], at + 2
    return np.array(found, int), at
# [indices-end]


# [sparse]
def read_sparse(header, body, out, packed, width=0):
    """Counts [and indices' counts] [and scales] of all chunks, their indices, then their values."""
    kind, chunks = header["values"], chunks_of(header["numel"])
    sections = 1 + (width > 0) + (BITS[kind] <= 8)  # each of 2 bytes a chunk, padded
    starts = [i * pad4(2 * len(chunks)) for i in range(sections + 1)]
    counts = np.frombuffer(body, "<u2", len(chunks), starts[1] if width else 0).tolist()
    scales = read_codes(2, body[starts[-2] :], len(chunks)) if BITS[kind] <= 8 else [1.0] * len(chunks)
    at, places = starts[-1], []
    for count, (begin, length) in zip(counts, chunks):
        found, at = read_indices(body, at, count, length, packed)
        places.append(begin + (elements_of_blocks(found, begin, length, width) if width else found))
    read_runs(kind, body[pad4(at) :], zip(places, scales), out)
# [sparse-end]


def elements_of_blocks(found, begin, length, width):
    """Of blocktopk an index is a block's first element in the chunk; blocks end at multiples of width."""
    runs = [np.arange(i, min(length, ((begin + i) // width + 1) * width - begin)) for i in found]
    return np.concatenate([np.empty(0, int), *runs])


def read_runs(kind, data, runs, out):
    """The values of each chunk, beginning at a byte of their own."""
    at = 0
    for places, scale in runs:
        size = -(-len(places) * BITS[kind] // 8)
        out[places] = read_codes(kind, data[at : at + size], len(places)) * np.float32(scale)
        at += size
    assert at == len(data)


# [philox]
def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011): four random words for a counter of four."""
    low, (a, b, c, d), first, second = 2**32 - 1, counter, key & (2**32 - 1), key >> 32
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = right >> 32 ^ b ^ first, right & low, left >> 32 ^ d ^ second, left & low
        first, second = first + 0x9E3779B9 & low, second + 0xBB67AE85 & low
    return a, b, c, d
# [philox-end]


# [drawn]
def drawn_places(variant, chunk, length, count):
    """Which elements of a chunk all ranks send, in this order: swaps of a list, by the header's draw."""
    order = list(range(length))
    for j in range(count):
        word = philox((j // 4, chunk, 0, 0), variant)[j % 4]
        other = j + (word * (length - j) >> 32)
        order[j], order[other] = order[other], order[j]
    return np.array(order[:count])
# [drawn-end]


def read_drawn(header, body, out, per_chunk):
    at, kind = 0, header["values"]
    for chunk, (begin, length) in enumerate(chunks_of(header["numel"])):
        places = drawn_places(header["variant"], chunk, length, max(1, -(-per_chunk * length // CHUNK)))
        size = -(-len(places) * BITS[kind] // 8)
        scale = 1.0
        if BITS[kind] <= 8:
            scale, at = read_codes(2, body[at : at + 2], 1)[0], at + 2
        out[begin + places] = read_codes(kind, body[at : at + size], len(places)) * np.float32(scale)
        at += size
    assert at == len(body)


def most_entries(spec, numel):
    """How many entries a payload may hold: it decides how all indices of the group are written."""
    if spec.name == "chunktopk":
        per_chunk = round(spec.density * CHUNK)
        return sum(max(1, -(-per_chunk * length // CHUNK)) for _, length in chunks_of(numel))
    k = max(1, math.ceil(spec.density * numel))
    return min(numel, k + -(-k // 4)) if spec.name == "threshold" else k


def decode(text, payload):
    """What a payload of the spec says, as float32; None of low rank, whose other factor is not in it."""
    spec, header, body = gradwire.parse_spec(text), read_header(payload), payload[32:]
    assert header["spec"] == spec.fingerprint
    out = np.zeros(header["numel"], np.float32)
    if header["format"] == DENSE:
        out[:] = read_codes(header["values"], body, len(out))
    elif header["format"] == BLOCKS:
        read_blocks(header, body, out)
    elif header["format"] == SPARSE:
        blocks = spec.name == "blocktopk"
        packed = blocks or most_entries(spec, len(out)) <= len(out) // 12
        read_sparse(header, body, out, packed, width=64 if blocks else 0)
    elif header["format"] == DRAWN:
        read_drawn(header, body, out, round(spec.density * CHUNK))
    else:
        return None
    return out


def compare(text, gradient):
    """The bytes of the gradient's payload; it decodes to what the library makes of it, bit for bit."""
    compressor = gradwire.Compressor(text, gradient.size, seed=1)
    payload = compressor.compress(gradient)
    read = decode(text, payload.tobytes())
    if read is not None:
        np.testing.assert_array_equal(read, compressor.decompress([payload], 1.0), text)
    return payload.nbytes


def main():
    random = np.random.default_rng(0)
    small, large = random.standard_normal(9000, np.float32), random.standard_normal(1_000_000, np.float32)
    specs = [row.example for row in gradwire.compressors() if row.name != "powersgd"]
    more = ["topk:1%,int4", "topk:1%,fp16", "topk:1%,bf16", "topk:1%,e4m3", "topk:1%,1bit", "topk:30%",
            "chunktopk:64/4096,2bit", "blocktopk:1%,int8", "randomk:1%,int4", "qsgd:1", "qsgd:100"]
    for text in [*specs, *more]:
        compare(text, small)
    print("| spec | bytes of a million elements | fewer than float32's |\n|---|---|---|")
    for text in [*specs, "topk:1%,int4", "chunktopk:64/4096,2bit"]:
        size = compare(text, large) if "randomk" not in text else gradwire.Compressor(
            text, large.size).compress(large).nbytes  # drawing a million by hand takes its time
        print(f"| `{text}` | {size:,} | {large.nbytes / size:.1f} |")


if __name__ == "__main__":
    main()
