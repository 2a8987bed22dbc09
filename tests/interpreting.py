"""Triton's interpreter, with most of its work left out."""

import functools
from dataclasses import replace

from triton.runtime import interpreter


class _Scope:
    """What one launch patches."""

    def __init__(self, scope, patched):
        self._scope, self._patched = scope, patched

    def restore(self):
        self._patched.clear()
        self._scope.restore()


class _Nothing:
    """What a device function patches whose launch has done so."""

    def restore(self):
        """There is nothing to restore."""


@functools.cache
def patch_once():
    """Leave out what the interpreter repeats, three quarters of its time.

    A launch patches the language once, instead of again for each device function it calls, and
    restores what it patched, so the next one begins anew.  Integers wrap as on a GPU, instead of
    being computed twice to see whether they do.
    """
    patch = interpreter._patch_lang
    patched: set[int] = set()
    imported: dict[int, set[int]] = {}

    def quick(fn):
        names = fn.__globals__
        modules = imported.get(id(names))
        if modules is None:
            modules = {id(one) for one in _LANGUAGE if any(one is own for own in names.values())}
            imported[id(names)] = modules
        if patched and modules <= patched:
            return _Nothing()
        outermost = not patched
        patched.update(modules)
        scope = patch(fn)
        return _Scope(scope, patched) if outermost else scope

    interpreter._patch_lang = quick
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    dtype = interpreter._get_np_dtype
    known = {}

    def dtype_once(of):
        name = of.name
        if name not in known:
            known[name] = dtype(of)
        return known[name]

    interpreter._get_np_dtype = dtype_once


_LANGUAGE = (interpreter.tl, interpreter.tl.core)
