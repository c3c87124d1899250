"""The one door to llama.cpp: loads the library on first use, routes its log, and looks up addresses."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import threading
from collections import deque
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nexus_lab.engine.threads import DEFAULT_WAIT, WAIT_VARIABLES, user_wait_policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["LogTail", "function_address", "function_addresses", "llama", "llama_build"]

_LOG = logging.getLogger(__name__)
_WARNING, _ERROR = 3, 4
_KEPT: list[Any] = []
_BRIDGE_FUNCTIONS = (
    "ggml_get_name",
    "ggml_set_name",
    "ggml_nelements",
    "ggml_nrows",
    "ggml_nbytes",
    "ggml_get_data",
    "ggml_type_size",
    "ggml_element_size",
    "ggml_tensor_overhead",
    "ggml_init",
    "ggml_free",
    "ggml_new_tensor_4d",
    "ggml_view_1d",
    "ggml_add",
    "ggml_backend_buffer_is_host",
    "ggml_backend_buffer_get_base",
    "ggml_backend_buffer_get_size",
    "ggml_backend_buffer_free",
    "ggml_backend_cpu_buffer_type",
    "ggml_backend_alloc_ctx_tensors_from_buft",
    "ggml_backend_tensor_get",
)


class LogTail:
    """Collects the warnings and errors that llama.cpp prints while the block runs, on any thread.

    Examples
    --------
    >>> with LogTail() as tail:
    ...     pass
    >>> tail.text()
    ''
    """

    _open: ClassVar[deque[LogTail]] = deque()

    def __init__(self, *, most_lines: int = 6) -> None:
        self._lines: deque[str] = deque(maxlen=most_lines)

    def __enter__(self) -> Self:
        LogTail._open.append(self)
        return self

    def __exit__(self, *_exception: object) -> None:
        LogTail._open.remove(self)

    def text(self) -> str:
        """Return the collected lines, joined."""
        return "; ".join(self._lines)

    @classmethod
    def record(cls, line: str) -> None:
        """Give `line` to every open tail."""
        for tail in tuple(cls._open):
            tail._lines.append(line)  # noqa: SLF001 - the class's own


class _LogRouter:
    """Joins the pieces llama.cpp prints into lines, one buffer per thread."""

    def __init__(self) -> None:
        self._pending = threading.local()

    def __call__(self, level: int, text: bytes, _user_data: object) -> None:
        pending = getattr(self._pending, "text", "") + text.decode("utf-8", "replace")
        *lines, rest = pending.split("\n")
        self._pending.text = rest
        for line in filter(None, map(str.strip, lines)):
            if level in (_WARNING, _ERROR):
                LogTail.record(line)
            # Failures become typed errors that carry these lines, so they need not reach the terminal.
            _LOG.log(logging.INFO if level in (_WARNING, _ERROR) else logging.DEBUG, "llama.cpp: %s", line)


@cache
def llama() -> ModuleType:
    """Return the low-level binding, its backend initialised and its log routed."""
    with _patient_barriers():
        from llama_cpp import llama_cpp as binding

    router = binding.llama_log_callback(_LogRouter())
    binding.llama_log_set(router, ctypes.c_void_p(0))
    _KEPT.append(router)  # the library keeps the bare pointer for good
    binding.llama_backend_init()
    return binding


@cache
def llama_build() -> str:
    """Return what names this build of llama.cpp: its versions, and a digest of the features that it uses.

    Another version, or kernels for other instructions, add in another order, so that rows of the same tokens
    differ in their last bits.
    """
    import llama_cpp

    features = llama().llama_print_system_info()
    parts = [f"llama-cpp-python {llama_cpp.__version__}"]
    version, commit = (_text(name) for name in ("ggml_version", "ggml_commit"))
    if version or commit:
        parts.append(" ".join(filter(None, ("ggml", version, commit and f"({commit})"))))
    return ", ".join([*parts, f"features {hashlib.sha256(features).hexdigest()[:8]}"])


def _text(name: str) -> str:
    """Return what a function of the library without parameters says; empty where it has none of that name."""
    for library in _libraries():
        function: Any = getattr(library, name, None)
        if function is not None:
            function.restype = ctypes.c_char_p
            return (function() or b"").decode("utf-8", "replace")
    return ""


@contextmanager
def _patient_barriers() -> Iterator[None]:
    """Let llama.cpp's threads sleep at barriers, unless the user has set it otherwise.

    A graph has about a thousand barriers. On a machine that does other work too, threads that spin there hold
    the core that the awaited thread needs, and a decode takes tens of times as long. The setting is read when
    the OpenMP library is loaded, and is not left in the environment for others.
    """
    if user_wait_policy() is not None:
        yield
        return
    os.environ[WAIT_VARIABLES[0]] = DEFAULT_WAIT
    try:
        yield
    finally:
        del os.environ[WAIT_VARIABLES[0]]


def _libraries() -> list[Any]:
    """Open handles of the shared libraries that llama-cpp-python has loaded already."""
    from pathlib import Path

    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    names = ("ggml-base", "ggml", "llama")
    files = [folder / f"lib{name}{suffix}" for name in names for suffix in (".so", ".dylib")]
    return [ctypes.CDLL(str(file)) for file in files if file.exists()]


def _address(name: str, libraries: list[Any]) -> int | None:
    for library in libraries:
        function: Any = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


def function_address(name: str) -> int:
    """Address of one public function of the library.

    Raises
    ------
    AttributeError
        When the library has none of that name.
    """
    llama()
    address = _address(name, _libraries())
    if address is None:
        raise AttributeError(f"llama.cpp has no function {name}")
    return address


def function_addresses() -> dict[str, int]:
    """Addresses of the public ggml functions that the native bridge calls; missing ones are left out."""
    llama()
    libraries = _libraries()
    found = {name: _address(name, libraries) for name in _BRIDGE_FUNCTIONS}
    return {name: address for name, address in found.items() if address is not None}
