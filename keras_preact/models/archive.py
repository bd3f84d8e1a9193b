"""The container of a `.keras` file: a zip archive with a configuration and an HDF5 file of weights.

Both are read from one open file, and what is checked is what is loaded. Everything that a reader would allocate is
bounded by the size of the file: members are stored without compression, and the arrays do not overlap.
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
"""Bytes of a configuration: parsed, it takes up to 30 times as much memory. NASNetLarge has 1.2 MB."""


@dataclass(frozen=True)
class Archive:
    """The checked content of a `.keras` file.

    Args:
        name: of the file, for messages.
        config: the parsed configuration.
        weights: the HDF5 file.
        stored: bytes of all arrays in it.
        size: bytes of the file: what its configuration asks for is compared with this.
    """

    name: str
    config: dict[str, Any]
    weights: io.BytesIO
    stored: int
    size: int


def read_archive(path: Path) -> Archive:
    """Return the content of a `.keras` file whose members and arrays are all that they claim to be.

    Raises:
        InputError: it is another file, damaged, or claims more than it holds.
    """
    name = shown(path.name)
    if not path.is_file():
        raise InputError(f"there is no file {shown(path)}; give the path of a .keras file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # By content: a zip archive may also follow other data, which Keras would load by the name of the file.
        if file.read(len(ZIP_SIGNATURE)) != ZIP_SIGNATURE or not zipfile.is_zipfile(file):
            raise InputError(f"{name} is no .keras file, or one that is cut short; save the model again, as .keras")
        with zipfile.ZipFile(file) as archive:
            _check_members(name, archive, size)
            config = json.loads(archive.read(CONFIG))
            weights = io.BytesIO(archive.read(WEIGHTS))
    if not isinstance(config, dict):
        raise InputError(f"{name} has a configuration that describes no model; save the model again")
    return Archive(name, config, weights, check_weights(name, weights), size)


def _check_members(name: str, archive: zipfile.ZipFile, size: int) -> None:
    members = archive.infolist()
    names = [member.filename for member in members]
    strange = sorted(set(names) - MEMBERS)
    if strange or len(names) != len(set(names)):
        listed = ", ".join(map(shown, strange[:3])) or "a name twice"
        raise InputError(f"{name} contains {listed}, which no network needs; save it again without")
    if missing := sorted({CONFIG, WEIGHTS} - set(names)):
        raise InputError(f"{name} contains no {missing[0]}; save the model again, as .keras")
    check_stored(name, archive, size)
    if archive.getinfo(CONFIG).file_size > CONFIG_LIMIT:
        raise InputError(f"{name} has a configuration of over {CONFIG_LIMIT >> 20} MB; split the model")


def check_stored(name: str, archive: zipfile.ZipFile, size: int) -> None:
    """Refuse an archive that can unpack to more than its size.

    The directory's sizes are claims. Keras and NumPy store without compression: then no more is read than is there.
    """
    members = archive.infolist()
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    true = all(member.compress_size == member.file_size for member in members)
    if not stored or not true or sum(member.file_size for member in members) > size:
        raise InputError(f"{name} unpacks to more than it is; save it as Keras does, without compression")


def check_weights(name: str, file: io.BytesIO) -> int:
    """Check that all arrays of an HDF5 file are in it, each for itself; return the number of their bytes."""
    import h5py  # Keras does without until a file is read

    size = file.getbuffer().nbytes
    with h5py.File(file, "r") as weights:
        return _bytes_below(name, weights, {_address(weights)}, size)


def _address(member: Any) -> int:
    import h5py

    return int(h5py.h5o.get_info(member.id).addr)


def _bytes_below(name: str, group: Any, seen: set[int], size: int) -> int:
    """Return the bytes of the arrays below a group; refuse them once they are more than `size`, that of the file."""
    import h5py

    total = 0
    for key in group:
        where = shown(f"{group.name.rstrip('/')}/{key}")
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise InputError(f"{name} links to other data at {where}; save the model again, without links")
        member = group[key]
        if _address(member) in seen:  # it would be counted, or walked through, again and again
            raise InputError(f"{name} contains {where} under another name too; save the model again")
        seen.add(_address(member))
        if isinstance(member, h5py.Group):
            total += _bytes_below(name, member, seen, size)
        elif not isinstance(member, h5py.Dataset):
            raise InputError(f"{name} contains {where}, which is no array; save the model again")
        else:
            total += _bytes_of(name, where, member)
        if total > size:  # arrays that share their bytes would fill the memory all the same
            raise InputError(f"{name} has arrays that overlap; save the model again")
    return total


def _bytes_of(name: str, where: str, member: Any) -> int:
    if member.external or member.is_virtual:
        raise InputError(f"{name} keeps {where} in another file; save the model again, into one")
    # Keras writes bfloat16, which HDF5 lacks, as bytes, the dtype beside them.
    is_bfloat16 = member.dtype == "V2" and member.attrs.get("dtype") == "bfloat16"
    if not (is_bfloat16 or member.dtype.kind in "fiub") or member.id.get_storage_size() < member.nbytes:
        raise InputError(f"{name} claims more for {where} than it holds, or no numbers; save the model again")
    if member.chunks is not None:  # a chunk may be larger than its array, and compressed
        raise InputError(f"{name} stores {where} in chunks; save it as Keras does, in one piece")
    return int(member.nbytes)
