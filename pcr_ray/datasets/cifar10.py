"""Split CIFAR10: 32x32, 5 tasks of 2 classes, downloaded on first use."""

from pcr_ray.datasets._base import DATASETS
from pcr_ray.datasets._cifar import Cifar


@DATASETS.register("cifar10")
class Cifar10(Cifar):
    title = "Split CIFAR10"
    classes, tasks = 10, 5
    torchvision_name, directory = "CIFAR10", "cifar-10-batches-py"
    how_to_get = "Downloaded by torchvision on first use; an image folder <data root>/cifar10/ serves too."
