"""Prepared data: built once, rebuilt when damaged or outdated, safe among processes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import stat
import sys
import time
import zlib
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcr_ray import plugins
from pcr_ray.config import TrialConfig
from pcr_ray.datasets import _store, data_root, prepare
from pcr_ray.errors import DataError
from pcr_ray.study.resolve import resolve
from tests.made_images import Splits, assert_holds, assert_same, random_splits, write_folder

NAMES = [f"class {c}" for c in range(10)]


@pytest.fixture
def splits() -> Splits:
    return random_splits(NAMES, 32)


@pytest.fixture
def cifar(tmp_path: Path, splits: Splits) -> TrialConfig:
    """A small image folder in the place of CIFAR10, below `tmp_path`."""
    write_folder(tmp_path / "cifar10", splits)
    return resolve({"dataset": "cifar10"})


def files_of(root: Path) -> dict[str, tuple[int, int]]:
    """What is on disk, and whether it was written again: name -> inode and time."""
    found = (root / "prepared").rglob("*")
    return {str(p.relative_to(root)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found if p.suffix != ".lock"}


def test_data_is_prepared_once_and_then_reused(cifar: TrialConfig, tmp_path: Path, splits: Splits) -> None:
    first = prepare(cifar, tmp_path)
    before = files_of(tmp_path)
    second = prepare(cifar, tmp_path)
    assert files_of(tmp_path) == before
    assert_same(first, second)
    assert_holds(second, splits)
    assert isinstance(second.images, np.memmap) and not second.images.flags.writeable


def test_data_are_checksummed_once_per_node(
    cifar: TrialConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first process. Forgetting what this one knows makes it the second, third and fourth."""
    prepare(cifar, tmp_path)
    counted: list[int] = []
    real = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda data: counted.append(len(data)) or real(data))
    for _ in range(2):
        _store._crc32.cache_clear()
        prepare(cifar, tmp_path)
    assert not counted
    (note,) = (tmp_path / "prepared").rglob(".checked-*")
    note.write_text("[1, 2")
    _store._crc32.cache_clear()
    prepare(cifar, tmp_path)
    assert len(counted) == 1, "a note that cannot be read is none"


def test_prepared_data_serves_after_its_source_is_gone(cifar: TrialConfig, tmp_path: Path) -> None:
    first = prepare(cifar, tmp_path)
    (tmp_path / "cifar10").rename(tmp_path / "elsewhere")
    assert_same(prepare(cifar, tmp_path), first)


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def cut(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])


def edit(manifest: Path, **values: Any) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | values))


DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "half-written, no manifest": lambda images, manifest: manifest.unlink(),
    "no images": lambda images, manifest: images.unlink(),
    "empty images": lambda images, manifest: cut(images, 0),
    "images cut in the header": lambda images, manifest: cut(images, 60),
    "images cut in the middle": lambda images, manifest: cut(images, 9000),
    "images cut by one byte": lambda images, manifest: cut(images, -1),
    "a bit in the first image": lambda images, manifest: flip(images, 128),
    "a bit in the last image": lambda images, manifest: flip(images, -1),
    "a bit in the magic": lambda images, manifest: flip(images, 1),
    "a bit in the length of the header": lambda images, manifest: flip(images, 9),
    "a brace in the header": lambda images, manifest: flip(images, images.read_bytes().index(b"}")),
    "images of another type": lambda images, manifest: np.save(images, np.load(images).view(np.int8)),
    "images of another shape": lambda images, manifest: np.save(images, np.load(images).reshape(100, -1, 16, 3)),
    "empty manifest": lambda images, manifest: cut(manifest, 0),
    "manifest cut": lambda images, manifest: cut(manifest, 100),
    "manifest of something else": lambda images, manifest: manifest.write_text("[]"),
    "an older layout": lambda images, manifest: edit(manifest, layout=0),
    "counts that do not add up": lambda images, manifest: edit(manifest, train_counts=[3] * 9 + [2]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_is_noticed_and_rebuilt(damage: str, cifar: TrialConfig, tmp_path: Path, splits: Splits) -> None:
    prepare(cifar, tmp_path)
    (images,) = (tmp_path / "prepared").rglob("images.npy")
    DAMAGES[damage](images, images.with_name("manifest.json"))
    damaged = files_of(tmp_path)
    assert_holds(prepare(cifar, tmp_path), splits)
    rebuilt = files_of(tmp_path)
    assert rebuilt != damaged
    prepare(cifar, tmp_path)
    assert files_of(tmp_path) == rebuilt


def test_a_changed_source_is_rebuilt(cifar: TrialConfig, tmp_path: Path, splits: Splits) -> None:
    prepare(cifar, tmp_path)
    changed = random_splits(NAMES, 32, train=4, seed=1)
    (tmp_path / "cifar10").rename(tmp_path / "old")
    write_folder(tmp_path / "cifar10", changed)
    assert_holds(prepare(cifar, tmp_path), changed)
    (tmp_path / "cifar10" / "train" / NAMES[2] / "3.png").unlink()
    changed["train"][NAMES[2]] = changed["train"][NAMES[2]][:3]
    assert_holds(prepare(cifar, tmp_path), changed)
    (tmp_path / "cifar10" / "train" / NAMES[0] / "0.png").rename(tmp_path / "cifar10" / "train" / NAMES[1] / "9.png")
    moved = changed["train"][NAMES[0]][:1]
    changed["train"][NAMES[0]] = changed["train"][NAMES[0]][1:]
    changed["train"][NAMES[1]] = np.concatenate([changed["train"][NAMES[1]], moved])
    assert_holds(prepare(cifar, tmp_path), changed)


def test_an_image_replaced_by_one_of_the_same_length_is_noticed(
    cifar: TrialConfig, tmp_path: Path, splits: Splits
) -> None:
    prepare(cifar, tmp_path)
    a, b = (tmp_path / "cifar10" / "train" / name / "0.png" for name in NAMES[:2])
    assert a.stat().st_size == b.stat().st_size  # noise does not compress
    content = a.read_bytes(), b.read_bytes()
    a.write_bytes(content[1])
    b.write_bytes(content[0])
    first, second = splits["train"][NAMES[0]], splits["train"][NAMES[1]]
    first[0], second[0] = second[0].copy(), first[0].copy()
    assert_holds(prepare(cifar, tmp_path), splits)


# Among processes and users.


def prepare_at_once(config: TrialConfig, root: Path, barrier: Barrier, results: Any) -> None:
    """On a slow disk, so that both are in the middle of it."""
    save = np.save

    def slow(file: Path, array: np.ndarray) -> None:
        save(file, array)
        time.sleep(0.5)

    np.save = slow
    barrier.wait(timeout=60)
    prepared = prepare(config, root)
    inode = next((root / "prepared").rglob("images.npy")).stat().st_ino
    results.put((inode, prepared.fingerprint, prepared.train_counts, prepared.images.tobytes()))


def test_processes_that_prepare_at_once_share_one_result(cifar: TrialConfig, tmp_path: Path, splits: Splits) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=prepare_at_once, args=(cifar, tmp_path, barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    first, second = (results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert first == second  # the same file: the second process did not write it again
    assert_holds(prepare(cifar, tmp_path), splits)


def die_while_writing(config: TrialConfig, root: Path) -> None:
    def half(file: Path, array: np.ndarray) -> None:
        Path(file).write_bytes(array.tobytes()[: array.nbytes // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    np.save = half
    prepare(config, root)


def test_a_writer_that_was_killed_leaves_no_trace(cifar: TrialConfig, tmp_path: Path, splits: Splits) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=die_while_writing, args=(cifar, tmp_path))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    assert_holds(prepare(cifar, tmp_path), splits)
    assert sorted(p.name for p in (tmp_path / "prepared").iterdir()) == ["cifar10", "cifar10.lock"]


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(
    cifar: TrialConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: Splits
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(DataError, match=r"'cifar10' cannot be prepared.*No space left"):
            prepare(cifar, tmp_path)
    assert files_of(tmp_path) == {}
    assert_holds(prepare(cifar, tmp_path), splits)


def test_others_may_read_what_was_prepared(cifar: TrialConfig, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        prepare(cifar, tmp_path)
    finally:
        os.umask(before)
    for path in (tmp_path / "prepared").rglob("*"):
        wanted = 0o755 if path.is_dir() else 0o644
        assert stat.S_IMODE(path.stat().st_mode) & wanted == wanted, path


def test_a_read_only_data_root_falls_back_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root lies below a file, where not even the superuser can write; its images are given by absolute path."""
    (tmp_path / "file").write_text("in the way")
    root, cache = tmp_path / "file" / "data", tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    splits = random_splits(["a", "b"], 16)
    write_folder(tmp_path / "mine", splits)
    config = resolve({"dataset": "folder", "folder": str(tmp_path / "mine"), "image_size": 16, "tasks": 2})
    assert_holds(prepare(config, root), splits)
    (images,) = cache.rglob("images.npy")
    before = images.stat().st_ino
    prepare(config, root)
    assert next(cache.rglob("images.npy")).stat().st_ino == before


def test_no_place_to_write_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="'digits' cannot be prepared") as raised:
        prepare(resolve({"dataset": "digits"}), tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "cache") in str(raised.value)


def test_the_data_root_is_the_given_one_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PCR_RAY_DATA", raising=False)
    assert data_root() == tmp_path / "cache" / "pcr_ray"
    monkeypatch.setenv("PCR_RAY_DATA", "data")
    assert data_root() == tmp_path / "data"
    assert data_root("other") == tmp_path / "other"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root("~/mine") == tmp_path / "mine"


READER = '''"""Text is not code."""
import numpy as np
from pcr_ray.datasets import DATASETS, Dataset, Images

@DATASETS.register("watched")
class Watched(Dataset):
    title, how_to_get, classes, tasks, image_size = "Watched", "Made up.", 2, 2, 16
    def native_paths(self, root):
        return [root / "watched.bin"]
    def native(self, root):
        value = int((root / "watched.bin").read_text())
        images = np.full((4, 16, 16, 3), value, np.uint8)
        return Images(images, np.arange(4) % 2), Images(images, np.arange(4) % 2), ["a", "b"]
'''


def test_a_prepared_copy_depends_on_the_code_and_the_files_that_made_it(tmp_path: Path) -> None:
    file, data = tmp_path / "watched_reader.py", tmp_path / "watched.bin"

    def value() -> int:
        plugins.load([str(file)])
        return int(prepare(resolve({"dataset": "watched"}), tmp_path).images.max())

    try:
        file.write_text(READER)
        data.write_text("7")
        assert value() == 7
        before = files_of(tmp_path)
        file.write_text(READER.replace("Text is", "What is written here is"))
        assert value() == 7 and files_of(tmp_path) == before
        file.write_text(READER.replace("np.full((4, 16, 16, 3), value", "np.full((4, 16, 16, 3), value + 100"))
        assert value() == 107
        data.write_text("23")
        assert value() == 123
        data.unlink()  # kept prepared, without its source
        assert value() == 123
    finally:
        plugins._forget("watched_reader")
        sys.path.remove(str(tmp_path))
