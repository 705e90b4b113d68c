"""CIFAR10 and CIFAR100 through torchvision, which downloads and checks them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from pcr_ray.datasets._base import Dataset, Images
from pcr_ray.errors import DataError


class Cifar(Dataset):
    """Shared by both: only the torchvision class and its folder differ."""

    image_size = 32
    downloads = True
    train_images, test_images = 50_000, 10_000
    torchvision_name: ClassVar[str]
    directory: ClassVar[str]

    def native_paths(self, root: Path) -> list[Path]:
        return [root / self.directory, root / self.name / self.directory]

    def native(self, root: Path) -> tuple[Images, Images, list[str]]:
        import torchvision.datasets

        cls = getattr(torchvision.datasets, self.torchvision_name)
        place = root / self.name if (root / self.name / self.directory).is_dir() else root
        try:
            train, test = (cls(str(place), train=t, download=True) for t in (True, False))
        except (OSError, RuntimeError) as error:
            raise DataError(f"the download failed ({error})") from None
        return (
            Images(train.data, np.array(train.targets)),
            Images(test.data, np.array(test.targets)),
            list(train.classes),
        )
