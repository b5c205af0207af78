"""Compilation by Numba with a cache that stays right after edits of other files.

Before it uses stored code, `numba.njit(cache=True)` checks only whether the function's own file has changed. That code
also contains the functions that it calls and the constants that it reads. `jit` adds a hash of all of them to the key
of the cache. Functions that only compiled functions call are declared with it or with `device_function`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, overload

import numpy as np
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature

F = TypeVar("F", bound=Callable[..., Any])
LIBRARIES = {
    "builtins",
    "llvmlite",
    "math",
    "numba",
    "numpy",
    "scipy",
    "torch",
}  # their versions do not change in place


@overload
def jit(function: F, /) -> F: ...
@overload
def jit(**options: Any) -> Callable[[F], F]: ...
def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compile a function without Python objects, with NumPy's arithmetic (x / 0 is inf), cached on disk.

    `options` are those of `numba.njit`.
    """
    if function is None:
        return lambda function: Compiled(function, **options)
    return Compiled(function, **options)


def device_function(function: F) -> F:
    """Compile a function that kernels call, as CUDA names it: it may not make arrays.

    It does without the reference counts that Numba otherwise keeps for every array and slice that a function touches:
    atomic additions, which can take more time than the work itself.
    """
    return jit(_nrt=False)(function)


class Compiled(CPUDispatcher):
    """A function compiled by Numba when it is first called with arguments of certain types."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(function, targetoptions={"nopython": True, "error_model": "numpy", **options})
        self.enable_caching()

    def enable_caching(self) -> None:
        self._cache = _SourceCache(self.py_func, _text(self.targetoptions))


def callback(signature: Any, function: Callable[..., Any]) -> Any:
    """Compile a function to a C function pointer, as `numba.cfunc` does, with the cache of `jit`."""
    found: Any = CFunc(function, normalize_signature(signature), {}, {"nopython": True})
    found._cache = _SourceCache(function, "callback")
    found.compile()
    return found


class _SourceCache(FunctionCache):
    """Numba's cache on disk, with all sources and the options in the key."""

    def __init__(self, function: Callable[..., Any], options: str) -> None:
        super().__init__(function)
        self._options = options

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        # Taken when something is compiled or looked up: at that time all that the function calls is defined.
        return sig, codegen.magic_tuple(), self._options, source_digest(self._py_func)


def source_digest(function: Callable[..., Any]) -> str:
    """Hash the code of a function, of all functions that it calls, and the constants that they read.

    Comments, docstrings and line numbers do not count.
    """
    waiting, lines = [_python_function(function)], []
    for found in waiting:  # grows
        lines.append(f"{found.__module__}.{found.__qualname__}: {_code_text(found.__code__, found.__doc__)}")
        for name, value in _names_read(found):
            called = _python_function(value)
            if called is None:
                lines.append(f"{name} = {_text(value)}")
                continue
            options = value.targetoptions if isinstance(value, Dispatcher) else {}
            lines.append(f"{name} = {called.__module__}.{called.__qualname__} {_text(options)}")
            if called not in waiting:
                waiting.append(called)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _python_function(value: Any) -> Any:
    """The Python function behind a compiled one, or a function of ours that is not compiled; None for all else."""
    if isinstance(value, (CFunc, Dispatcher)):
        return vars(value)["__wrapped__"]
    if isinstance(value, FunctionType) and value.__module__.partition(".")[0] not in LIBRARIES:
        return value
    return None


def _names_read(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield every global name and free variable that a function reads, with its value, in a fixed order."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        yield name, cell.cell_contents
    names = sorted(set(_names(function.__code__)))
    for name in names:
        if name not in function.__globals__:
            continue  # an attribute or a builtin
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in LIBRARIES:
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code_text(code: CodeType, documentation: str | None) -> str:
    """The bytecode of a function with its names and constants, without its docstring."""
    constants = [constant for constant in code.co_consts if constant is not documentation]
    texts = [_code_text(c, None) if isinstance(c, CodeType) else _text(c) for c in constants]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {texts}"


def _text(value: Any) -> str:
    """A text that is the same in every process for equal constants, and differs for others."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (set, frozenset)):
        return f"{{{sorted(map(_text, value))}}}"
    if isinstance(value, dict):
        return f"{sorted((_text(key), _text(part)) for key, part in value.items())}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}{[_text(part) for part in value]}"
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)):
        return repr(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}{getattr(value, '_fields', '')}"
    return type(value).__qualname__
