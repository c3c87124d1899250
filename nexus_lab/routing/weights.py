"""Weights that come with the package: int8, without the token embeddings, which are the bundled model's.

A matrix is kept as int8 with one float32 scale for each row (symmetric: the largest magnitude of a row is
127); vectors are kept as float16. A card beside the file names it, says what they were trained on and by
which command, and holds the SHA-256 that the file is checked against.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.paths import atomic_write, home
from nexus_lab.routing.base import RoutingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

__all__ = [
    "Trained",
    "WeightsError",
    "fill",
    "pack",
    "read_card",
    "read_weights",
    "unpack",
    "weights_folder",
    "write_weights",
    "write_with_card",
]

_SCALE = ".scale"
_LEVELS = 127
_SHOWN = 12
_BUNDLED = {"embeddings", "pooler"}


class WeightsError(RoutingError):
    """Trained weights are missing, damaged, or belong to another model."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Where something newly trained is, and what is known of it."""

    path: Path
    card: Mapping[str, Any]


def weights_folder(name: str) -> Any:
    """Return where the weights called `name` are: the user's own, if there are any, else the package's."""
    own = home() / "gate" / f"{name}.json"
    return own.parent if own.is_file() else files("nexus_lab.routing").joinpath("weights")


def pack(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return float arrays as int8 rows with scales, and float16 vectors."""
    packed: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        if values.ndim != 2:  # noqa: PLR2004 - a matrix
            packed[name] = values.astype(np.float16)
            continue
        scale = np.maximum(np.abs(values).max(axis=1), np.finfo(np.float32).tiny) / _LEVELS
        packed[name] = np.rint(values / scale[:, None]).astype(np.int8)
        packed[name + _SCALE] = scale.astype(np.float32)
    return packed


def unpack(packed: Arrays) -> dict[str, NDArray[np.float32]]:
    """Return the float32 arrays that `pack` was given, to within half a step."""
    whole: dict[str, NDArray[np.float32]] = {}
    for name, values in packed.items():
        if name.endswith(_SCALE):
            continue
        scale = packed.get(name + _SCALE)
        plain = values.astype(np.float32)
        whole[name] = plain if scale is None else plain * scale[:, None]
    return whole


def write_weights(folder: Path, name: str, arrays: Arrays, card: Mapping[str, Any]) -> Path:
    """Write weights to `folder`, and their card; see `write_with_card`.

    Raises
    ------
    WeightsError
        When a weight is no finite number.
    """
    from safetensors.numpy import save

    for part, values in arrays.items():
        if not np.isfinite(values).all():
            raise WeightsError(
                f"{part} of the {name} holds what is no number; nothing was written",
                next_step="train again, at a lower learning rate",
            )
    path = write_with_card(folder, name, ".safetensors", save(pack(arrays)), card).path
    (folder / f"{name}.safetensors").unlink(missing_ok=True)
    return path


def write_with_card(folder: Path, name: str, suffix: str, data: bytes, card: Mapping[str, Any]) -> Trained:
    """Write what was trained under its digest, and then the card that names it: only with it does it count.

    A kill before that leaves the old file in use; files that no card names go with the next write.
    """
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{name}-{digest[:_SHOWN]}{suffix}"
    atomic_write(path, data)
    told = {**card, "file": path.name, "sha256": digest, "bytes": len(data)}
    atomic_write(folder / f"{name}.json", (json.dumps(told, indent=1) + "\n").encode())
    for old in folder.glob(f"{name}-{_SHOWN * '[0-9a-f]'}{suffix}"):
        if old != path:
            old.unlink(missing_ok=True)
    return Trained(path, told)


def read_card(folder: Any, name: str) -> dict[str, Any]:
    """Return what is known of the weights called `name`."""
    try:
        card = json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(name, str(error)) from error
    if not isinstance(card, dict) or not isinstance(card.get("sha256"), str):
        raise _unusable(name, "its card says no SHA-256")
    return {"file": f"{name}.safetensors", **card}


def read_weights(folder: Any, name: str) -> dict[str, NDArray[np.float32]]:
    """Return the float32 arrays of the weights called `name`.

    Raises
    ------
    WeightsError
        When the file is missing, or is not the one that its card tells of.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    card = read_card(folder, name)
    try:
        data = folder.joinpath(str(card["file"])).read_bytes()
    except (OSError, ValueError) as error:
        raise _unusable(name, str(error)) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != card["sha256"]:
        raise _unusable(name, f"SHA-256 {digest[:16]}…, not {card['sha256'][:16]}…")
    try:
        arrays = unpack(load(data))
    except (SafetensorError, ValueError, TypeError, KeyError, IndexError) as error:
        raise _unusable(name, str(error)) from error
    odd = next((part for part, values in arrays.items() if not np.isfinite(values).all()), None)
    if odd is not None:
        raise _unusable(name, f"{odd} holds what is no number")
    return arrays


def fill(module: Any, arrays: Arrays, *, name: str) -> None:
    """Write `arrays` over the parameters of a torch module.

    Raises
    ------
    WeightsError
        When a name or a shape is not the module's.
    """
    import torch

    known = module.state_dict()
    strange = [
        key for key, rows in arrays.items() if key not in known or tuple(known[key].shape) != rows.shape
    ]
    # Token embeddings are the bundled model's, and nothing asks the pooler; a layer would be left untrained.
    strange += [key for key in known if key not in arrays and not _BUNDLED & set(key.split("."))]
    if strange:
        raise _unusable(name, f"they do not fit the bundled model: {strange[0]}")
    module.load_state_dict({key: torch.from_numpy(values) for key, values in arrays.items()}, strict=False)


def _unusable(name: str, why: str) -> WeightsError:
    return WeightsError(
        f"the weights {name!r} cannot be used: {why}",
        next_step="install the package again, or run nexus-lab train-gate if they are your own",
    )
