"""Image folders as people have them: mixed formats and sizes, stray files, broken images."""

from __future__ import annotations

import io
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pcr_ray.config import TrialConfig
from pcr_ray.datasets import data_root, known_fingerprint, prepare
from pcr_ray.errors import DataError
from pcr_ray.execution import driver
from pcr_ray.execution.options import RunOptions
from pcr_ray.execution.plan import make_plan
from pcr_ray.study.load import load
from pcr_ray.study.resolve import resolve
from tests.made_images import assert_holds, random_splits, write_folder
from tests.sweeping import sweep_file

RED, GREEN, BLUE = (250, 10, 20), (30, 240, 40), (20, 10, 245)


def folder_config(folder: Path | str, size: int = 16) -> TrialConfig:
    return resolve({"dataset": "folder", "folder": str(folder), "image_size": size, "tasks": 2})


def plain(colour: tuple[int, int, int], width: int, height: int, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (width, height), colour).convert(mode)


def test_jpeg_and_png_of_any_size_and_mode_become_rgb_of_the_wanted_size(tmp_path: Path) -> None:
    halves = plain(RED, 60, 20)
    halves.paste(BLUE, (30, 0, 60, 20))
    for split in ("train", "test"):
        for name in ("plain", "tall", "wide"):
            (tmp_path / split / name).mkdir(parents=True)
        halves.save(tmp_path / split / "wide" / "a.png")
        halves.rotate(90, expand=True).save(tmp_path / split / "tall" / "a.PNG")
        plain(GREEN, 40, 33).save(tmp_path / split / "plain" / "a.jpg", quality=95)
        plain(GREEN, 5, 7).save(tmp_path / split / "plain" / "b.JPEG", quality=95)
        plain(GREEN, 16, 16, "RGBA").save(tmp_path / split / "plain" / "c.png")
        plain(GREEN, 16, 9, "P").save(tmp_path / split / "plain" / "d.png")
        (tmp_path / split / "plain" / "notes.txt").write_text("not an image")
        (tmp_path / split / "README.png").write_text("no class folder")
    prepared = prepare(folder_config(tmp_path), tmp_path / "root")
    assert prepared.class_names == ["plain", "tall", "wide"]
    assert prepared.train_counts == prepared.test_counts == [4, 1, 1]
    near = {"atol": 40, "rtol": 0}  # JPEG and palettes are inexact; the colours differ by 200
    greens, (tall,), (wide,) = (prepared.images[prepared.rows("test", label)] for label in range(3))
    np.testing.assert_allclose(greens, np.broadcast_to(GREEN, greens.shape), **near)
    np.testing.assert_allclose(wide[:, :7], np.broadcast_to(RED, (16, 7, 3)), **near)
    np.testing.assert_allclose(wide[:, 9:], np.broadcast_to(BLUE, (16, 7, 3)), **near)
    np.testing.assert_allclose(tall[9:], np.broadcast_to(RED, (7, 16, 3)), **near)
    np.testing.assert_allclose(tall[:7], np.broadcast_to(BLUE, (7, 16, 3)), **near)


def test_images_of_the_wanted_size_are_kept_bit_by_bit(tmp_path: Path) -> None:
    splits = random_splits(["b", "a", "c"], 16)
    write_folder(tmp_path / "mine", splits)
    assert_holds(prepare(folder_config(tmp_path / "mine"), tmp_path), splits)


def test_a_folder_may_be_named_below_the_data_root(tmp_path: Path) -> None:
    splits = random_splits(["a", "b"], 16)
    write_folder(tmp_path / "pictures" / "mine", splits)
    assert_holds(prepare(folder_config("pictures/mine"), tmp_path), splits)


def test_one_folder_in_two_sizes_and_two_folders_of_one_name_do_not_mix(tmp_path: Path) -> None:
    first, second = random_splits(["a", "b"], 16), random_splits(["a", "b"], 16, seed=1)
    write_folder(tmp_path / "x" / "mine", first)
    write_folder(tmp_path / "y" / "mine", second)
    for _ in range(2):
        assert_holds(prepare(folder_config(tmp_path / "x" / "mine"), tmp_path), first)
        assert_holds(prepare(folder_config(tmp_path / "y" / "mine"), tmp_path), second)
        assert prepare(folder_config(tmp_path / "x" / "mine", size=9), tmp_path).images.shape[1:] == (9, 9, 3)


def damaged(kind: str) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG" if kind == "half a JPEG" else "PNG")
    whole = bytearray(buffer.getvalue())
    if kind == "a flipped bit":
        whole[len(whole) // 2] ^= 4
        return bytes(whole)
    return {"nothing": b"", "text": b"404 not found\n"}.get(kind, bytes(whole[: len(whole) // 2]))


@pytest.mark.parametrize("kind", ["nothing", "text", "half a PNG", "half a JPEG", "a flipped bit"])
def test_an_unreadable_image_is_named(kind: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    bad = tmp_path / "mine" / "train" / "b" / ("9.jpg" if "JPEG" in kind else "9.png")
    bad.write_bytes(damaged(kind))
    with pytest.raises(DataError, match="cannot be read as an image") as raised:
        prepare(folder_config(tmp_path / "mine"), tmp_path)
    assert str(bad) in str(raised.value)
    bad.unlink()
    assert prepare(folder_config(tmp_path / "mine"), tmp_path).train_counts == [3, 3]


def test_a_picture_too_large_to_be_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow refuses images of more than twice its limit, which is lowered here."""
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    plain(RED, 40, 40).save(bad := tmp_path / "mine" / "test" / "a" / "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with pytest.raises(DataError, match="cannot be read as an image") as raised:
        prepare(folder_config(tmp_path / "mine"), tmp_path)
    assert str(bad) in str(raised.value)


def test_a_broken_link_among_the_images_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    (bad := tmp_path / "mine" / "train" / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match="cannot be prepared") as raised:
        prepare(folder_config(tmp_path / "mine"), tmp_path)
    assert str(bad) in str(raised.value)


def test_a_folder_that_does_not_exist_is_named_with_the_data_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist") as raised:
        prepare(folder_config("mine"), tmp_path)
    assert str(tmp_path / "mine") in str(raised.value) and "--data-root" in str(raised.value)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("test", "has no folder 'test'"),
        ("test/b", "only one of train and test: b"),
        ("train/a", "only one of train and test: a"),
        ("train/*", "holds no PNG or JPEG"),
    ],
)
def test_what_is_missing_in_a_folder_is_said(missing: str, message: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    for gone in (tmp_path / "mine").glob(missing):
        gone.rename(tmp_path / f"{gone.parent.name}-{gone.name}")
    with pytest.raises(DataError, match=message):
        prepare(folder_config(tmp_path / "mine"), tmp_path)


def test_a_folder_is_looked_for_beside_the_sweep_file_then_below_the_data_root(tmp_path: Path) -> None:
    root, beside = tmp_path / "root", tmp_path / "study"
    here, there = random_splits(["a", "b"], 16, seed=1), random_splits(["a", "b"], 16, seed=2)
    with pytest.raises(DataError, match="does not exist") as raised:
        prepare(folder_config("mine"), root, beside)
    assert f"{beside / 'mine'} or {root / 'mine'}" in str(raised.value)
    write_folder(root / "mine", there)
    assert_holds(prepare(folder_config("mine"), root, beside), there)
    write_folder(beside / "mine", here)
    assert_holds(prepare(folder_config("mine"), root, beside), here)
    file = beside / "s.yaml"
    file.write_text("{name: s, fixed: {dataset: folder, folder: mine, image_size: 16, tasks: 2}, grid: {seed: [0]}}")
    study = load(file)
    assert study.place == beside and [t.folder for t in study.trials.values()] == ["mine"]  # whatever its place


def test_an_edited_folder_is_told_before_it_is_read_again(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    config = folder_config("mine")
    assert known_fingerprint(config, tmp_path) is None
    first = prepare(config, tmp_path).fingerprint
    assert known_fingerprint(config, tmp_path) == first
    Image.new("RGB", (16, 16)).save(tmp_path / "mine" / "train" / "a" / "more.png")
    assert known_fingerprint(config, tmp_path) == "outdated"
    assert prepare(config, tmp_path).fingerprint not in (first, "outdated")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_named_and_not_waited_for(kind: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    bad = tmp_path / "mine" / "train" / "b" / "x.png"
    {"pipe": lambda: os.mkfifo(bad), "folder": bad.mkdir, "device": lambda: bad.symlink_to("/dev/zero")}[kind]()
    with pytest.raises(DataError, match="is not a file") as raised:
        prepare(folder_config(tmp_path / "mine"), tmp_path)
    assert str(bad) in str(raised.value)


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    splits = random_splits(["a", "b"], 16)
    write_folder(tmp_path / "mine", splits)
    for split in ("train", "test"):
        folder = tmp_path / "mine" / split
        (folder / "b").rename(folder / os.fsdecode(b"b\xff"))
        (folder / "a" / "0.png").rename(folder / "a" / os.fsdecode(b"\xfe.png"))
    prepared = prepare(folder_config(tmp_path / "mine"), tmp_path)
    assert prepared.class_names == ["a", "b\\xff"]
    assert prepare(folder_config(tmp_path / "mine"), tmp_path).fingerprint == prepared.fingerprint


def test_a_sweeps_run_names_the_data_of_a_folder_beside_its_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", random_splits(["a", "b"], 16))
    fixed = {"dataset": "folder", "folder": "mine", "image_size": 16, "tasks": 2}
    study, options = load(sweep_file(tmp_path, fixed=fixed)), RunOptions(data_root=str(tmp_path / "root"))
    prepared = prepare(next(iter(study.trials.values())), options.root, study.place)
    said: list[dict[str, str]] = []
    sweep_run: Any = SimpleNamespace(begin=lambda known, data, place: said.append(data))
    driver._begin(make_plan(study, None, options.root), sweep_run, options)
    assert said == [{"folder": prepared.fingerprint}]


def test_without_a_home_the_data_root_has_to_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PCR_RAY_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(DataError, match="PCR_RAY_DATA"):
        data_root()
    assert data_root(tmp_path) == tmp_path


def test_a_folder_of_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such user"):
        prepare(folder_config("~nobody-of-this-name/x"), tmp_path)
