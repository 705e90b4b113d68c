"""scikit-learn's handwritten digits: shipped with it, needs no network. The embedded default.

1797 grey 8x8 images, doubled to 16x16 and stored as RGB; a fixed fifth of each class is the test set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pcr_ray.datasets._base import DATASETS, Dataset, Images


@DATASETS.register("digits")
class Digits(Dataset):
    title = "Split Digits"
    classes, tasks, image_size = 10, 5, 16
    train_images, test_images = 1433, 364
    how_to_get = "It comes with scikit-learn."

    def native(self, root: Path) -> tuple[Images, Images, list[str]]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        grey = np.kron(digits.images / 16 * 255, np.ones((1, 2, 2))).astype(np.uint8)  # (N, 16, 16)
        everything = Images(np.repeat(grey[..., None], 3, axis=3), digits.target).canonical()
        # The canonical order inside a class is by hash: its first fifth is an arbitrary, fixed sample.
        position = np.concatenate([np.arange(n) / n for n in np.bincount(everything.labels)])
        test = position < 0.2
        return (
            Images(everything.images[~test], everything.labels[~test]),
            Images(everything.images[test], everything.labels[test]),
            [str(d) for d in range(10)],
        )
