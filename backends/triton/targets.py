"""Compile the kernels for GPUs that are not there, and read what they would use.

``python -m refsampler.backends.triton.targets`` prints a table and exits 1 if a kernel breaks a
limit: scratch memory, spilled vector registers, or more shared memory than the target has.  It says
"compiled for", never "ran on".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refsampler.backends.triton.device.draw import draw_kernel
from refsampler.backends.triton.device.edges import edge_kernel
from refsampler.backends.triton.device.nucleus import above_kernel
from refsampler.backends.triton.device.rest import rest_kernel
from refsampler.backends.triton.device.scan import scan_kernel, scan_mixed_kernel
from refsampler.backends.triton.device.top_k import top_k_kernel
from refsampler.backends.triton.device.verify import (
    draft_scan_kernel,
    judge_kernel,
    residual_kernel,
    settle_kernel,
)
from refsampler.backends.triton.geometry import WAVES_OF_32, WAVES_OF_64, padded, sizes_of

__all__ = ["TARGETS", "Resources", "Target", "Variant", "compile_for", "main", "variants"]

_VOCAB = 128256


@dataclass(frozen=True, slots=True)
class Target:
    """An AMD GPU.

    Attributes:
        arch: as the compiler names it.
        wave: lanes of a wave.
        shared: bytes of shared memory that a program may have.

    """

    arch: str
    wave: int
    shared: int = 65536


TARGETS = (
    Target("gfx90a", 64),
    Target("gfx942", 64),
    Target("gfx950", 64, 163840),
    Target("gfx1100", 32),
    Target("gfx1201", 32),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as the launcher calls it.

    Attributes:
        name: as shown.
        kernel: the jitted function.
        types: argument -> Triton type; arguments that are absent are None in the call.
        constants: argument -> constant.
        warps: of a program.

    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, object]
    warps: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel uses.

    Attributes:
        vgprs: vector registers a lane, accumulation registers included.
        vgpr_spills, sgpr_spills: registers that did not fit; scalar ones go to vector lanes.
        scratch: bytes of private memory a lane.
        shared: bytes of shared memory a program.
        code: bytes of the code object.

    """

    vgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch: int
    shared: int
    code: int

    def broken_limits(self, target: Target) -> tuple[str, ...]:
        """Return in words which limits are broken."""
        return tuple(
            words
            for words, broken in (
                (f"{self.scratch} bytes of scratch", self.scratch > 0),
                (f"{self.vgpr_spills} spilled vector registers", self.vgpr_spills > 0),
                (f"{self.shared} of {target.shared} shared bytes", self.shared > target.shared),
            )
            if broken
        )


_POINTERS = {
    "logits": "*fp32",
    "temperature": "*fp32",
    "top_k": "*i32",
    "top_p": "*fp32",
    "min_p": "*fp32",
    "seed": "*i64",
    "noise": "*i64",
    "seeded": "*i1",
    "step": "*i64",
    "chunk_max": "*fp32",
    "mass_max": "*fp32",
    "top_max": "*fp32",
    "chunk_mass": "*i64",
    "block_mass": "*i64",
    "picked": "*i32",
    "cand_x": "*fp32",
    "cand_i": "*i32",
    "todo": "*i32",
    "out": "*i32",
    "proposed": "*i32",
    "turn": "*i32",
    "edge": "*fp32",
    "part": "*fp32",
    "total": "*i64",
    "largest": "*fp32",
    "position": "*i64",
    "owner": "*i32",
    "first": "*i32",
    "sizes": "*i32",
    "draft_ids": "*i32",
    "draft_probs": "*fp32",
    "low": "*fp32",
    "kept": "*i64",
    "accepted": "*i32",
    "best": "*i32",
    "scale": "*fp32",
    "residual": "*i64",
    "bonus": "*i32",
}
_ALL_CONSTANTS = {"STRIDED": False, "PTX": False, "SCALE": 2.0**44}


def variants(wave: int, vocab: int = _VOCAB) -> Iterator[Variant]:
    """Yield every kernel as the launcher calls it for float32 logits, on AMD waves of that size."""
    g = WAVES_OF_32 if wave == 32 else WAVES_OF_64
    sizes = sizes_of(g, vocab)
    chunks = {"CHUNKS": padded(sizes.mass_chunks, g.least_chunks), "C": g.mass_chunk}
    lanes = {"LANES": g.lanes}
    maxima = {"R": g.top_rows, "C": g.top_chunk, "MASS_C": g.mass_chunk, **lanes}
    yield _variant("scan, maxima", scan_mixed_kernel, maxima)
    masses = {"R": g.mass_rows, "C": g.mass_chunk}
    yield _variant("scan, masses", scan_kernel, {**masses, **lanes})
    yield _variant(
        "top-k",
        top_k_kernel,
        {
            "CAP": g.candidates,
            "CHUNKS": padded(sizes.top_chunks, g.least_top_chunks),
            "C": g.top_chunk,
            "G": g.reopened,
            "FAST": g.ranked,
            "MOST": g.most_chunks,
            "PARTS": sizes.level_parts,
            **dict(zip(("W", "L"), g.level_tile, strict=True)),
        },
    )
    for name, count in (("draw, one", 1), ("draw, four", 4)):
        yield _variant(name, draw_kernel, {**chunks, "N": count})
    above = {**_tile(g.above_tile), **lanes, "C": g.mass_chunk}
    yield _variant("above", above_kernel, above)
    rest = {**chunks, **lanes, "ROUNDS": g.rounds}
    rest |= {"PARTS": padded(sizes.parts, g.least_blocks * g.above_tile[1])}
    rest |= {"BLOCK": g.rest_block, "BLOCKS": sizes.blocks}
    beside, alone = _tile(g.rounds_beside), _tile(g.rounds_tile)
    yield _variant("rest, top-k", rest_kernel, {**rest, **beside, "SETTLE": False}, g.rest_warps)
    yield _variant("rest, top-p", rest_kernel, {**rest, **alone, "SETTLE": True}, g.rest_warps)
    yield _variant("drafts, scan", draft_scan_kernel, {**masses, **lanes})
    edges = {**chunks, "G": g.opened, "CAP": g.candidates, "BLOCK": g.rest_block}
    yield _variant("drafts, edges", edge_kernel, edges, g.rest_warps)
    yield _variant("drafts, judge", judge_kernel, chunks)
    most = {"MOST": g.least_drafts}
    yield _variant("drafts, residual", residual_kernel, {**masses, **lanes, **most})
    settle = {**chunks, **most, "BLOCK": g.rest_block, "BLOCKS": sizes.blocks}
    yield _variant("drafts, settle", settle_kernel, settle)


def _tile(tile: tuple[int, int]) -> Mapping[str, int]:
    return dict(zip(("A", "W"), tile, strict=True))


def _variant(name: str, kernel: Any, constants: Mapping[str, object], warps: int = 4) -> Variant:
    names = kernel.arg_names
    given = {**_ALL_CONSTANTS, **constants, "id_stride": 1}
    types = {one: "constexpr" if one in given else _POINTERS.get(one, "i32") for one in names}
    return Variant(name, kernel, types, {one: given[one] for one in names if one in given}, warps)


def compile_for(variant: Variant, target: Target) -> Resources:
    """Compile one kernel for an AMD GPU, without line numbers; no GPU is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # Pointers and row strides are multiples of 16, as torch allocates them.
    names = variant.kernel.arg_names
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, one in enumerate(names)
        if variant.types[one].startswith("*") or one in ("row_stride", "law_stride")
    }
    source = ASTSource(
        fn=variant.kernel,
        signature=dict(variant.types),
        constexprs=dict(variant.constants),
        attrs=aligned,
    )
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        built = triton.compile(
            source,
            target=GPUTarget("hip", target.arch, target.wave),
            options={"num_warps": variant.warps},
        )
    text = built.asm["amdgcn"]
    return Resources(
        vgprs=_metadata(text, "vgpr_count"),
        vgpr_spills=_metadata(text, "vgpr_spill_count"),
        sgpr_spills=_metadata(text, "sgpr_spill_count"),
        scratch=_metadata(text, "private_segment_fixed_size"),
        shared=built.metadata.shared,
        code=len(built.asm["hsaco"]),
    )


def _metadata(text: str, field: str) -> int:
    found = re.search(rf"\.{field}:\s+(\d+)", text)
    if found is None:
        raise ValueError(f"no .{field} in the code object's metadata: allowed is one number")
    return int(found.group(1))


def main(archs: Sequence[str] = ()) -> int:
    """Print the table for the named targets, all by default; return 1 if a limit is broken."""
    import triton

    broken = []
    print(f"Compiled with triton {triton.__version__}, V = {_VOCAB}, float32; not run.\n")
    print("| kernel | compiled for | VGPRs | spills V / S | scratch | shared | code |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for target in TARGETS:
        if archs and target.arch not in archs:
            continue
        for variant in variants(target.wave):
            used = compile_for(variant, target)
            print(
                f"| {variant.name} | {target.arch} | {used.vgprs} "
                f"| {used.vgpr_spills} / {used.sgpr_spills} "
                f"| {used.scratch} | {used.shared} | {used.code} |",
                flush=True,
            )
            broken += [
                f"{variant.name} for {target.arch}: {words}" for words in used.broken_limits(target)
            ]
    for words in broken:
        print(f"limit broken: {words}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
