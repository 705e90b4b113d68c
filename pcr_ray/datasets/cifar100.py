"""Split CIFAR100: 32x32, 10 tasks of 10 classes, downloaded on first use."""

from pcr_ray.datasets._base import DATASETS
from pcr_ray.datasets._cifar import Cifar


@DATASETS.register("cifar100")
class Cifar100(Cifar):
    title = "Split CIFAR100"
    classes, tasks = 100, 10
    torchvision_name, directory = "CIFAR100", "cifar-100-python"
    how_to_get = "Downloaded by torchvision on first use; an image folder <data root>/cifar100/ serves too."
