"""Functions of the user's in files and modules: what stands on disk runs, also where it was edited meanwhile.

Files are loaded by their text, so that an edit is another module. A module is imported as Python does, once,
and stays what others hold of it; where its source has changed since, it is executed again in its place, as
`importlib.reload` does. What it imports itself stays as it was imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["UserCode", "load_code"]

_HEADER = 16
# One user's code at a time; it may itself ask for a policy.
_TURN = threading.RLock()
_LOADED: dict[str, tuple[ModuleType, str]] = {}


@dataclass(frozen=True, slots=True)
class UserCode:
    """What a place holds.

    Attributes
    ----------
    value
        The object of that name.
    digest
        SHA-256 (hex) of the source that it was made from; empty where there is none.
    """

    value: Any
    digest: str


def load_code(place: str, name: str) -> UserCode:
    """Return what is called `name` in a ``.py`` file, or in a module, as its source is now.

    Raises
    ------
    Exception, SystemExit
        Whatever the code raises, or Python when it is not there.
    """
    with _TURN:
        if place.endswith(".py"):
            module, digest = _from_file(Path(place).expanduser())
        else:
            module, digest = _from_module(place)
        return UserCode(getattr(module, name), digest)


def _from_file(path: Path) -> tuple[ModuleType, str]:
    source = path.read_bytes()
    digest = sha256(source).hexdigest()
    name = f"nexus_lab_policy_{sha256(f'{path.resolve()} {digest}'.encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses of the file look their module up
        try:
            _execute(source, module, path)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name], digest


def _from_module(name: str) -> tuple[ModuleType, str]:
    before = sys.modules.get(name)
    if before is None:
        importlib.invalidate_caches()  # it may have been written a moment ago
    module = importlib.import_module(name)
    path = _source_of(module)
    if path is None:
        return module, ""
    source = path.read_bytes()
    digest = sha256(source).hexdigest()
    known = _LOADED.get(name)
    if known is not None and known[0] is module:
        edited = known[1] != digest
    else:
        edited = before is not None and _edited_since_import(module, path, source)
    if edited:
        _execute(source, module, path)
    _LOADED[name] = (module, digest)
    return module, digest


def _execute(source: bytes, module: ModuleType, path: Path) -> None:
    # Python's own cache of compiled files takes an edit within a second, of the same length, for none.
    code = compile(source, str(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the user named it to be run


def _source_of(module: ModuleType) -> Path | None:
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        return None
    return Path(str(spec.origin))


def _edited_since_import(module: ModuleType, path: Path, source: bytes) -> bool:
    """Whether a module that somebody else imported was made from other source, as its compiled file tells."""
    spec = module.__spec__
    try:
        with Path(str(spec.cached if spec else None)).open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return False
    if int.from_bytes(header[4:8], "little"):
        return header[8:16] != importlib.util.source_hash(source)
    told = (int(path.stat().st_mtime), len(source))
    return header[8:16] != b"".join((value & 0xFFFFFFFF).to_bytes(4, "little") for value in told)
