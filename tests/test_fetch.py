"""pcr-ray datasets fetch: a data root filled beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcr_ray.cli import main
from pcr_ray.config import TrialConfig
from pcr_ray.console import run
from pcr_ray.datasets import DATASETS, prepare
from tests.made_images import assert_holds, random_splits, write_folder


def test_fetched_digits_are_found_without_their_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["datasets", "fetch", "digits", "--data-root", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "1797 images of 10 classes" in text and str(tmp_path / "prepared/digits") in text

    def gone(*_: object) -> None:
        raise AssertionError("read again from its source")

    monkeypatch.setattr(DATASETS.get("digits"), "native", gone)
    assert prepare(TrialConfig(dataset="digits"), tmp_path).classes == 10


def test_a_fetched_folder_holds_its_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = random_splits(["cat", "dog"], 12)
    write_folder(tmp_path / "pets", splits)
    arguments = ["--folder", "pets", "--image-size", "12", "--data-root", str(tmp_path)]
    assert main(["datasets", "fetch", "folder", *arguments]) == 0
    assert "10 images of 2 classes" in capsys.readouterr().out
    assert len(list((tmp_path / "prepared").glob("pets-12-*/images.npy"))) == 1
    assert_holds(prepare(TrialConfig(dataset="folder", folder="pets", image_size=12, tasks=1), tmp_path), splits)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("digit", "did you mean 'digits'?"),
        ("folder", "needs --folder and --image-size"),
        ("folder --folder nowhere --image-size 12", "nowhere does not exist"),
        ("folder --folder nowhere --image-size 2", "greater than or equal to 9"),
        ("mini_imagenet", "mini-imagenet-cache-train.pkl"),
        ("digits --data-root /proc/nowhere", "--data-root /proc/nowhere: cannot be written to"),
    ],
)
def test_what_cannot_be_fetched_is_one_message(
    words: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCR_RAY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run(main, ["datasets", "fetch", *words.split()]) == 2
    said = capsys.readouterr()
    assert text in said.err.replace("\n", " ") and said.err.count("error:") == 1 and not said.out
