"""Data beforehand: pcr-ray datasets fetch NAME fills a data root, for nodes without internet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pcr_ray import plugins
from pcr_ray.console import Parser, console
from pcr_ray.datasets import DATASETS, data_root, prepare
from pcr_ray.errors import InputError
from pcr_ray.study.resolve import resolve_or_exit


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="pcr-ray datasets fetch",
        description="Download what is missing and prepare a dataset, so that trials find it and need no network.",
    )
    p.add_argument("name", metavar="NAME", help="such as cifar10; pcr-ray datasets lists them")
    p.add_argument("--data-root", metavar="DIR", help="where to (default: PCR_RAY_DATA, else a cache)")
    p.add_argument("--folder", metavar="DIR", help="of the dataset 'folder': the images")
    p.add_argument("--image-size", type=int, metavar="N", help="of the dataset 'folder': the images' side")
    plugins.add_argument(p)
    given = p.parse_args(argv)
    plugins.load(given.plugins)
    wanted = {"dataset": given.name}
    if DATASETS.get(given.name).user_folder:
        if given.folder is None or given.image_size is None:
            raise InputError("dataset 'folder' needs --folder and --image-size, as its trials do")
        wanted |= {"folder": given.folder, "image_size": given.image_size, "tasks": 1}
    root = data_root(given.data_root)
    found = prepare(resolve_or_exit(wanted, "this cannot be fetched"), root, Path.cwd())
    place = Path(os.fsdecode(found.images.filename)).parent  # type: ignore[attr-defined]  # it is a memory map
    if not place.is_relative_to(root):
        raise InputError(f"--data-root {root}: cannot be written to; {given.name} was prepared in {place} instead")
    console.print(
        f"{given.name}: {len(found.images)} images of {found.classes} classes in {place}\n"
        f"trials find them with --data-root {root} or PCR_RAY_DATA={root}", soft_wrap=True, markup=False,
    )  # fmt: skip
    return 0
