"""Any image folder: train/<class>/* and test/<class>/* of PNG or JPEG files."""

from pcr_ray.datasets._base import DATASETS, Dataset


@DATASETS.register("folder")
class Folder(Dataset):
    title = "Image folder"
    classes, tasks, image_size = 0, 0, 0  # the user's data and config decide
    user_folder = True
    how_to_get = "Your images: train/<class>/* and test/<class>/*."
