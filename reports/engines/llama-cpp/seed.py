"""llama.cpp b11549: the seed 2^32 - 1 is none; every chain that is given it draws by another one.

Needs xllamacpp only, whose extension exports the C API; no model.
"""

import ctypes
import importlib.util
from ctypes import c_bool, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

folder = Path(importlib.util.find_spec("xllamacpp").submodule_search_locations[0])
library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))


class Token(ctypes.Structure):
    _fields_ = [("id", c_int32), ("logit", c_float), ("p", c_float)]


class Tokens(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.POINTER(Token)),
        ("size", c_size_t),
        ("selected", c_int64),
        ("sorted", c_bool),
    ]


library.llama_sampler_init_dist.restype = c_void_p
library.llama_sampler_init_dist.argtypes = [c_uint32]
library.llama_sampler_apply.restype = None
library.llama_sampler_apply.argtypes = [c_void_p, ctypes.POINTER(Tokens)]


def drawn(seed, count=4, vocab=1000):
    sampler = library.llama_sampler_init_dist(seed)
    found = []
    for _ in range(count):
        flat = (Token * vocab)(*[Token(place, 0.0, 0.0) for place in range(vocab)])
        tokens = Tokens(flat, vocab, -1, False)
        library.llama_sampler_apply(sampler, ctypes.byref(tokens))
        found.append(tokens.data[tokens.selected].id)
    return found


for seed in (2**32 - 2, 2**32 - 1):
    print("seed", seed, "twice:", drawn(seed), drawn(seed))
