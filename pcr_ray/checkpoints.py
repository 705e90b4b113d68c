"""Where the checkpoints of a sweep's trials live: a folder, or any URI that pyarrow's file systems know."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pcr_ray.learner import Learner

NAME = "checkpoint.pt"


def below(storage: str, name: str) -> str:
    """`s3://bucket/path?region=here` and `name` -> `s3://bucket/path/name?region=here`."""
    place, mark, query = storage.partition("?") if "://" in storage else (storage, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{query}"


def kept(storage: str) -> set[str]:
    """The trials that have a checkpoint."""
    if "://" not in storage:
        return {place.name for place in Path(storage).iterdir()}
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(storage)
    return {info.base_name for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))}


class CheckpointStore:
    """One trial's checkpoint under `<storage>/<identity>/<code>/`: other code than began a trial starts it over."""

    def __init__(self, storage: str, identity: str, code: str = "") -> None:
        self.remote = "://" in storage
        self.folder = below(storage, identity)
        self.place = below(self.folder, code) if code else self.folder

    def save(self, learner: Learner) -> None:
        if not self.remote:
            learner.save(Path(self.place))
            return
        with tempfile.TemporaryDirectory() as folder:
            learner.save(Path(folder))
            filesystem, path = self._filesystem()
            filesystem.create_dir(path)
            self._copy(Path(folder) / NAME, f"{path}/{NAME}")

    def load(self, learner: Learner) -> bool:
        """Continue from the checkpoint if there is one."""
        if not self.remote:
            return learner.load(Path(self.place))
        from pyarrow import fs

        filesystem, path = self._filesystem()
        if filesystem.get_file_info(f"{path}/{NAME}").type == fs.FileType.NotFound:
            return False
        with tempfile.TemporaryDirectory() as folder:
            fs.copy_files(
                f"{path}/{NAME}",
                f"{folder}/{NAME}",
                source_filesystem=filesystem,
                destination_filesystem=fs.LocalFileSystem(),
            )
            return learner.load(Path(folder))

    def discard(self) -> None:
        """This code's checkpoint cannot be used."""
        if not self.remote:
            (Path(self.place) / NAME).unlink(missing_ok=True)
            return
        filesystem, path = self._filesystem()
        filesystem.delete_file(f"{path}/{NAME}")

    def delete(self) -> None:
        """The trial's numbers are safe: its checkpoints, by whatever code, are not needed again."""
        if not self.remote:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        from pyarrow import fs

        filesystem, path = fs.FileSystem.from_uri(self.folder)
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            filesystem.delete_dir(path)

    def _filesystem(self) -> tuple[Any, str]:  # pyarrow has no types
        from pyarrow import fs

        return fs.FileSystem.from_uri(self.place)

    def _copy(self, source: Path, target: str) -> None:
        from pyarrow import fs

        filesystem, _ = self._filesystem()
        fs.copy_files(str(source), target, source_filesystem=fs.LocalFileSystem(), destination_filesystem=filesystem)
