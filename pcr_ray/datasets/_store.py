"""Data once per node: prepared under a file lock into one uint8 array that every trial memory-maps."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from pcr_ray.config import TrialConfig
from pcr_ray.datasets._base import (
    DATASETS,
    Dataset,
    Images,
    code_fingerprint,
    folder_files,
    folder_fingerprint,
    native_fingerprint,
    read_folder,
)
from pcr_ray.errors import DataError

LAYOUT = 1  # raise when the files' layout changes: older ones are then rebuilt
OUTDATED = "outdated"  # the fingerprint of data that have changed and were not read again yet


@dataclass(frozen=True)
class Prepared:
    """A dataset on disk: images of train then test, by class; labels follow from the counts."""

    images: np.ndarray  # uint8 (N, H, W, 3), memory-mapped
    train_counts: list[int]
    test_counts: list[int]
    class_names: list[str]
    mean: list[float]
    std: list[float]
    fingerprint: str

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def rows(self, split: str, label: int) -> np.ndarray:
        """Row numbers of one class's images."""
        counts = self.train_counts if split == "train" else self.test_counts
        start = sum(counts[:label]) + (0 if split == "train" else sum(self.train_counts))
        return np.arange(start, start + counts[label])


def data_root(given: str | os.PathLike[str] | None = None) -> Path:
    """`--data-root`, else PCR_RAY_DATA, else a cache folder of the user's; absolute."""
    chosen = given or os.environ.get("PCR_RAY_DATA")
    try:
        return (Path(chosen).expanduser() if chosen else _cache()).absolute()
    except RuntimeError:
        if not chosen:
            raise DataError("there is no home folder for data: set --data-root, PCR_RAY_DATA or HOME") from None
        raise DataError(f"data root {chosen}: there is no such user") from None


def prepare(config: TrialConfig, root: Path, beside: Path | None = None) -> Prepared:
    """Open the prepared dataset, building it first where it is absent, outdated or damaged.

    `beside` is where a relative `folder` is looked for before the data root: the place of the sweep file.
    """
    try:
        return _prepare(config, root, beside)
    except OSError as error:  # a full disk, a broken link among the images, a place that may not be written
        raise DataError(f"dataset '{config.dataset}' cannot be prepared: {error}") from None


def _prepare(config: TrialConfig, root: Path, beside: Path | None) -> Prepared:
    dataset = DATASETS.get(config.dataset)()
    size = config.image_size or dataset.image_size
    source = _source_folder(dataset, config, root, beside)
    files = folder_files(source) if source else None
    wanted = _made_of(dataset, root, files)
    ready = _open(root / "prepared" / _key(dataset, size, source), wanted)
    if ready:  # also where the data root may only be read
        return ready
    target = _prepared_root(root) / _key(dataset, size, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        prepared = _open(target, wanted)
        if prepared is None:
            train, test, names = read_folder(files, size) if files else _native(dataset, root)
            _check(dataset, train, test, names)
            wanted = _made_of(dataset, root, files)  # a download has brought files
            _write(target, train.canonical(), test.canonical(), names, wanted)
            prepared = _open(target, wanted)
    if prepared is None:
        raise DataError(f"{target} was written and cannot be read back: is the disk full or failing?")
    return prepared


def _made_of(dataset: Dataset, root: Path, files: Any) -> dict[str, str]:
    """What a prepared copy depends on, as its manifest has it: an image folder, or a dataset's code and files."""
    if files:
        return {"source": folder_fingerprint(files)}
    native = native_fingerprint(dataset, root)
    return {"code": code_fingerprint(dataset)} | ({"files": native} if native else {})


def _fresh(manifest: dict[str, Any], wanted: dict[str, str]) -> bool:
    """Copies made before something was recorded count as made of what is there now."""
    return all(manifest.get(key, value) == value for key, value in wanted.items())


def known_fingerprint(config: TrialConfig, root: Path, beside: Path | None = None) -> str | None:
    """Of the data as prepared here, without preparing anything; None where that is not known, or `OUTDATED`."""
    dataset = DATASETS.get(config.dataset)()
    try:
        source = _source_folder(dataset, config, root, beside)
        place = _prepared_root(root, make=False) / _key(dataset, config.image_size or dataset.image_size, source)
        manifest = json.loads((place / "manifest.json").read_text())
        wanted = _made_of(dataset, root, folder_files(source) if source else None)
        return f"{manifest['crc32']:08x}" if _fresh(manifest, wanted) else OUTDATED
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None


def available(config: TrialConfig, root: Path, beside: Path | None = None) -> None:
    """Raises the DataError that preparing would raise, as far as can be told without reading or downloading."""
    dataset = DATASETS.get(config.dataset)()
    source = _source_folder(dataset, config, root, beside)
    if source:
        folder_files(source)
    elif not dataset.downloads and known_fingerprint(config, root) in (None, OUTDATED):
        missing = [path for path in dataset.native_paths(root) if not path.exists()]
        if missing:
            raise _absent(dataset, root, f"{', '.join(path.name for path in missing)} missing")


def _source_folder(dataset: Dataset, config: TrialConfig, root: Path, beside: Path | None) -> Path | None:
    if dataset.user_folder:
        try:
            given = Path(config.folder or "").expanduser()
        except RuntimeError:
            raise DataError(f"image folder {config.folder}: there is no such user") from None
        places = list(dict.fromkeys(place / given for place in (beside, root) if place))
        found = next((place for place in places if place.is_dir()), None)
        if found is None:
            raise DataError(
                f"image folder {' or '.join(map(str, places))} does not exist: set 'folder' to an absolute path, or to "
                f"one beside the sweep file or below the data root ({root}), which --data-root or PCR_RAY_DATA moves"
            )
        return found
    folder = root / dataset.name
    return folder if (folder / "train").is_dir() and (folder / "test").is_dir() else None


def _native(dataset: Dataset, root: Path) -> tuple[Images, Images, list[str]]:
    try:
        return dataset.native(root)
    except DataError as error:
        raise _absent(dataset, root, error) from None


def _absent(dataset: Dataset, root: Path, why: object) -> DataError:
    looked = [root / dataset.name / "{train,test}" / "<class>" / "*.png", *dataset.native_paths(root)]
    places = "".join(f"\n  looked for: {p}" for p in looked)
    return DataError(
        f"dataset '{dataset.name}' is not there: {why}{places}\n  {dataset.how_to_get}\n"
        f"  The data root is {root}; --data-root or PCR_RAY_DATA moves it."
    )


def _check(dataset: Dataset, train: Images, test: Images, names: list[str]) -> None:
    if not dataset.user_folder and len(names) != dataset.classes:
        raise DataError(f"dataset '{dataset.name}' should have {dataset.classes} classes, found {len(names)}")
    for split, images in (("train", train), ("test", test)):
        missing = set(range(len(names))) - set(np.unique(images.labels).tolist())
        if missing:
            raise DataError(f"{split}: no images of class {', '.join(names[m] for m in sorted(missing)[:8])}")


def _write(target: Path, train: Images, test: Images, names: list[str], made_of: dict[str, str]) -> None:
    """Into a temporary folder, the manifest last, then moved into place: a reader sees all or nothing."""
    scratch = target.with_name(f".writing-{target.name}")  # one writer at a time: the caller holds the lock
    shutil.rmtree(scratch, ignore_errors=True)  # left by a writer that was killed
    scratch.mkdir()
    try:
        images = np.concatenate([train.images, test.images])
        np.save(scratch / "images.npy", images)
        channels = train.images.reshape(-1, 3)
        manifest = {
            "layout": LAYOUT,
            "source": None,
            **made_of,
            "crc32": zlib.crc32(images.data),
            "shape": list(images.shape),
            "train_counts": np.bincount(train.labels, minlength=len(names)).tolist(),
            "test_counts": np.bincount(test.labels, minlength=len(names)).tolist(),
            "class_names": names,
            "mean": (channels.mean(0, dtype=np.float64) / 255).tolist(),
            "std": (channels.std(0, dtype=np.float64) / 255).tolist(),
        }
        (scratch / "manifest.json").write_text(json.dumps(manifest))
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open(target: Path, wanted: dict[str, str]) -> Prepared | None:
    """None where it has to be (re)built."""
    try:
        manifest = json.loads((target / "manifest.json").read_text())
        if manifest["layout"] != LAYOUT or not _fresh(manifest, wanted):
            return None
        file = target / "images.npy"
        images = np.load(file, mmap_mode="r")
        stat = file.stat()
        counted = sum(manifest["train_counts"]) + sum(manifest["test_counts"])
        if images.dtype != np.uint8 or list(images.shape) != manifest["shape"] or len(images) != counted:
            return None
        if _crc32(str(file), stat.st_mtime_ns, stat.st_size) != manifest["crc32"]:
            return None
        return Prepared(
            images=images,
            fingerprint=f"{manifest['crc32']:08x}",
            **{k: manifest[k] for k in ("train_counts", "test_counts", "class_names", "mean", "std")},
        )
    except Exception:  # damaged files raise many kinds: EOFError and TokenError from numpy's header alone
        return None


@lru_cache(maxsize=16)
def _crc32(file: str, mtime: int, size: int) -> int:
    """Once per node and day, noted beside the file: 0.1 s for CIFAR, 1 s for MiniImageNet, in each of 64 workers."""
    note = Path(file).with_name(f".checked-{platform.node()}")
    version = [mtime, size, int(time.time() // 86_400)]
    with contextlib.suppress(OSError, ValueError, TypeError):  # not there, or half a line
        *noted, known = json.loads(note.read_text())
        if noted == version:
            return int(known)
    found = zlib.crc32(np.load(file, mmap_mode="r"))
    with contextlib.suppress(OSError):  # data that may only be read are looked at by every process
        scratch = note.with_name(f"{note.name}-{os.getpid()}")
        scratch.write_text(json.dumps([*version, found]))
        scratch.replace(note)
    return found


def _key(dataset: Dataset, size: int, source: Path | None) -> str:
    if not dataset.user_folder:
        return dataset.name
    return (
        f"{source.name}-{size}-{hashlib.sha1(str(source).encode(), usedforsecurity=False).hexdigest()[:8]}"
        if source
        else ""
    )


def _prepared_root(root: Path, *, make: bool = True) -> Path:
    """Below the data root, or in the user's cache where that is read-only."""
    place = root / "prepared"
    if not make and place.is_dir():
        return place
    try:
        if make:
            place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return place
    except OSError:
        return _cache() / "prepared" / hashlib.sha1(str(root).encode(), usedforsecurity=False).hexdigest()[:8]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pcr_ray"
