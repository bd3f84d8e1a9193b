"""The container of a `.keras` file: a zip archive with a configuration and an HDF5 file of weights.

Both are read once, from the same open file, so the checked bytes are the loaded bytes. The size of the file bounds all
allocations: members are stored without compression, and arrays do not overlap.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preact.errors import InputError, shown

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
MEMBERS = {"metadata.json", CONFIG, WEIGHTS}
ZIP_SIGNATURE = b"PK\x03\x04"
CONFIG_LIMIT = 8 << 20
"""Most bytes of a configuration. Parsed, it needs up to 30 times as much memory. NASNetLarge has 1.2 MB."""


@dataclass(frozen=True)
class Archive:
    """The checked content of a `.keras` file.

    Args:
        name: name of the file, for error messages.
        config: the parsed configuration.
        weights: the HDF5 file.
        weight_bytes: total bytes of the arrays in it.
        size: bytes of the file; the sizes in the configuration are checked against it.
    """

    name: str
    config: dict[str, Any]
    weights: io.BytesIO
    weight_bytes: int
    size: int


def read_archive(path: Path) -> Archive:
    """Read a `.keras` file and check its members and arrays.

    Raises:
        InputError: the file is missing, damaged, of another format, or declares more data than it contains.
    """
    name = shown(path.name)
    if not path.is_file():
        raise InputError(f"{shown(path)} does not exist; pass the path of a .keras file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A zip archive may follow other data, for example a legacy HDF5 model, which Keras would load if named .h5.
        if file.read(len(ZIP_SIGNATURE)) != ZIP_SIGNATURE or not zipfile.is_zipfile(file):
            raise InputError(f"{name} is not a .keras file, or is truncated; save the model again as .keras")
        with zipfile.ZipFile(file) as archive:
            _check_members(name, archive, size)
            config = json.loads(archive.read(CONFIG))
            weights = io.BytesIO(archive.read(WEIGHTS))
    if not isinstance(config, dict):
        raise InputError(f"the configuration in {name} is not a JSON object; save the model again")
    return Archive(name, config, weights, check_weights(name, weights), size)


def _check_members(name: str, archive: zipfile.ZipFile, size: int) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    unexpected = sorted(set(names) - MEMBERS)
    if unexpected or len(names) != len(set(names)):
        listed = ", ".join(map(shown, unexpected[:3])) or "a duplicate name"
        raise InputError(f"{name} contains {listed}, which load_model does not accept; save the model without it")
    if missing := sorted({CONFIG, WEIGHTS} - set(names)):
        raise InputError(f"{name} lacks {missing[0]}; save the model again as .keras")
    check_stored(name, archive, size)
    if archive.getinfo(CONFIG).file_size > CONFIG_LIMIT:
        raise InputError(f"the configuration in {name} is larger than {CONFIG_LIMIT >> 20} MB; split the model")


def check_stored(name: str, archive: zipfile.ZipFile, size: int) -> None:
    """Refuse an archive that can unpack to more than its size.

    The sizes in the directory may be false. Uncompressed members, which Keras and NumPy write, cannot unpack to more
    than their bytes in the file.
    """
    members = archive.infolist()
    uncompressed = all(
        member.compress_type == zipfile.ZIP_STORED and member.compress_size == member.file_size for member in members
    )
    if not uncompressed or sum(member.file_size for member in members) > size:
        raise InputError(f"{name} unpacks to more than its size; save it without compression")


def check_weights(name: str, file: io.BytesIO) -> int:
    """Check that an HDF5 file stores all its arrays itself and without overlap; return their total bytes."""
    import h5py  # imported only when a file is read, as in Keras

    size = file.getbuffer().nbytes
    with h5py.File(file, "r") as weights:
        return _bytes_below(name, weights, {_address(weights)}, size)


def _address(member: Any) -> int:
    import h5py

    return int(h5py.h5o.get_info(member.id).addr)


def _bytes_below(name: str, group: Any, seen: set[int], size: int) -> int:
    """Return the total bytes of the arrays in a group; refuse a total above `size`, the bytes of the file."""
    import h5py

    total = 0
    for key in group:
        where = shown(f"{group.name.rstrip('/')}/{key}")
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise InputError(f"{name} contains a link at {where}; save the model again without links")
        member = group[key]
        if _address(member) in seen:  # nested hard links would make the walk exponential
            raise InputError(f"{name} contains {where} under a second name; save the model again")
        seen.add(_address(member))
        if isinstance(member, h5py.Group):
            total += _bytes_below(name, member, seen, size)
        elif not isinstance(member, h5py.Dataset):
            raise InputError(f"{name} contains {where}, which is not an array; save the model again")
        else:
            total += _bytes_of(name, where, member)
        if total > size:  # overlapping arrays use no more of the file, but each would be loaded
            raise InputError(f"{name} contains overlapping arrays; save the model again")
    return total


def _bytes_of(name: str, where: str, member: Any) -> int:
    if member.external or member.is_virtual:
        raise InputError(f"{name} stores {where} in another file; save the model again as one file")
    # HDF5 has no bfloat16; Keras writes its bytes and stores the dtype as an attribute.
    is_bfloat16 = member.dtype == "V2" and member.attrs.get("dtype") == "bfloat16"
    if not (is_bfloat16 or member.dtype.kind in "fiub") or member.id.get_storage_size() < member.nbytes:
        raise InputError(f"{where} in {name} is not numeric or declares more data than it stores; save the model again")
    if member.chunks is not None:  # a chunk can be larger than its array, and compressed
        raise InputError(f"{name} stores {where} in chunks; save the model again without chunks")
    return int(member.nbytes)
