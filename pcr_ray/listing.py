"""What there is: pcr-ray methods, pcr-ray presets, pcr-ray datasets"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from pcr_ray import plugins
from pcr_ray.console import Parser, console

if TYPE_CHECKING:
    from pcr_ray.methods import Method
    from pcr_ray.study.presets import Preset


def methods(argv: Sequence[str]) -> int:
    p = Parser(prog="pcr-ray methods", description="List the methods and their parameters.")
    p.add_argument("names", nargs="*", metavar="METHOD", help="describe these: formula, differences, parameters")
    p.add_argument("--markdown", action="store_true", help="everything about them, as in docs/methods.md")
    plugins.add_argument(p)
    options = p.parse_args(argv)
    plugins.load(options.plugins)
    if options.markdown:
        sys.stdout.write(methods_markdown())
        return 0
    from pcr_ray.methods import METHODS

    for method in [METHODS.get(name) for name in options.names]:
        console.print("\n".join([_text(method), *_notes(method)]), markup=False, soft_wrap=True)
    if options.names:
        return 0
    table = Table()
    for column in ("name", "in the paper", "idea", "classifier", "parameters"):
        table.add_column(column, overflow="fold")
    for method in METHODS:
        table.add_row(method.name, method.title, method.idea, _classifier(method), _parameters(method))
    console.print(table)
    console.print("`pcr-ray methods NAME` describes one: its formula, its parameters, how it differs from the paper")
    return 0


def _classifier(method: type[Method]) -> str:
    return "nearest mean" if method.nearest_mean else method.head


def _as_yaml(value: object) -> str:
    """As it is written in a sweep file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parameters(method: type[Method]) -> str:
    return ", ".join(f"{name}={_as_yaml(field.default)}" for name, field in method.Params.model_fields.items())


def _default(method: type[Method], name: str) -> str:
    """`0.05, on cifar100 0.01`."""
    others = [f", on {d} {_as_yaml(v[name])}" for d, v in method.Params.by_dataset.items() if name in v]
    return f"{_as_yaml(method.Params.model_fields[name].default)}{''.join(others)}"


def methods_markdown() -> str:
    """docs/methods.md: written from the methods' own files, so that it cannot say anything else."""
    from pcr_ray.methods import METHODS

    lines = [
        "# Methods",
        "",
        "Written by `pcr-ray methods --markdown` from the methods' files; a test holds it to them.",
        "Parameters go under `params` in a sweep file, such as `params.alpha: [0.1, 0.5]`. Cost is a step's time over",
        "that of ER with as many images (FINE-TUNE and IID see half as many), measured on CIFAR10 at batch 10 + 10",
        "with one CPU thread; forecasts use it where no trial of the kind was recorded yet, and in `make bench` it is",
        "the ratio of ER over that of the method. A method that has to wait for the device when it stores a batch says",
        "why below, and so does one whose step `--compile` does not make one graph of.",
        "",
        "Common to all, unless a trial says otherwise: images and augmented copies in one batch, pixels in [0, 1],",
        "Reduced ResNet18 with a global average pool (160 features at every image size; public code pools 4 x 4 cells,",
        "which makes 640 of MiniImageNet's 84 x 84: `pool: 4`), SGD at lr 0.1, and at inference the classes seen so",
        "far. A task's last batch is trained on also where it is smaller; much public code drops it (the batches of",
        "the paper's datasets come out even). The classifier is cosine where the PCR paper writes the method's",
        "equation with it, else linear as in public code; `head` switches it. [Presets](presets.md) are protocols of",
        "public code: what to set for a method as its authors run it.",
        "",
        "| name | in the paper | idea | classifier | parameters | cost |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    for method in METHODS:
        cells = [f"[{method.name}](#{method.name})", method.title, method.idea, _classifier(method)]
        lines.append(f"| {' | '.join(cells)} | {_parameters(method)} | {method.cost:g} |")
    for method in METHODS:
        lines += ["", f"## {method.name}", "", "```", _text(method), "```", *_notes(method)]
    return "\n".join(lines) + "\n"


def _text(method: type[Method]) -> str:
    """What stands at the top of the method's file."""
    return (inspect.getdoc(inspect.getmodule(method)) or "").strip()


def _notes(method: type[Method]) -> list[str]:
    fields = method.Params.model_fields.items()
    lines = [f"- `params.{name}` (default {_default(method, name)}): {field.description}" for name, field in fields]
    if method.inert:
        lines.append(f"- Without effect: {', '.join(f'`{name}`' for name in method.inert)}.")
    if method.syncs:
        lines.append(f"- Waits for the device when it stores a batch: {method.syncs}.")
    if method.uncompiled:
        lines.append(f"- `--compile` compiles the network alone: {method.uncompiled}.")
    elif not method.one_loss():
        lines.append("- `--compile` compiles each loss on its own: a step takes more than one.")
    return lines


def presets(argv: Sequence[str]) -> int:
    p = Parser(prog="pcr-ray presets", description="List the named protocols and their fields.")
    p.add_argument("names", nargs="*", metavar="PRESET", help="show all that these say")
    p.add_argument("--markdown", action="store_true", help="everything about them, as in docs/presets.md")
    options = p.parse_args(argv)
    from pcr_ray.study.presets import PRESETS, preset

    if options.markdown:
        sys.stdout.write(presets_markdown())
        return 0
    for name in options.names:
        found = preset(name)
        console.print(f"{name}: {found.summary}\nSource: {found.source}", markup=False, soft_wrap=True)
        for heading, fields in _parts(found):
            console.print(f"{heading}:\n{_block(fields, indent='  ')}", markup=False, soft_wrap=True)
        for method, other in found.like.items():
            console.print(f"{method}: as in preset {other}")
    if options.names:
        return 0
    table = Table("name", "what it is", show_lines=True)
    for name, found in PRESETS.items():
        origin = f"methods: {_speaks_of(found)}\nsource: {escape(found.source)}"
        table.add_row(name, f"{escape(found.summary)}\n[dim]{origin}[/]")
    console.print(table)
    console.print("`pcr-ray presets NAME` shows the fields that one sets")
    return 0


def _speaks_of(preset: Preset) -> str:
    return ", ".join([*preset.methods, *preset.like]) or "all"


def _parts(preset: Preset) -> list[tuple[str, Mapping[str, object]]]:
    """Headings and fields: for all methods, for some, for some with a memory of some size."""
    parts = [("For all methods", preset.fields)] if preset.fields else []
    parts += [(f"Also for {method}", fields) for method, fields in preset.methods.items() if fields]
    for method, sizes in preset.buffers.items():
        for number, (size, fields) in enumerate(sizes.items()):
            which = f"from {size} images on" if number else f"of fewer images than {list(sizes)[1]}"
            parts.append((f"Also for {method} with a memory {which}", fields))
    return parts


def _block(fields: Mapping[str, object], indent: str = "") -> str:
    """As lines of a sweep file."""
    lines = [f"{k}: {v if isinstance(v, str) else json.dumps(v)}" for k, v in fields.items()]
    return "\n".join(indent + line for line in lines)


def presets_markdown() -> str:
    """docs/presets.md: written from the presets themselves."""
    from pcr_ray.study.presets import PRESETS

    lines = [
        "# Presets",
        "",
        "Written by `pcr-ray presets --markdown` from the code; a test compares the two. A preset is a protocol with a",
        "name: `preset: aml` in a sweep file's `fixed`, `grid` or `adjust`, `presets: [aml]` for a whole file,",
        "`--preset aml` for one trial. Fields that you give win over the preset, and what the preset says for a method",
        "wins over what it says for all. Presets without augmentation have `augment: none` and `views: original`: if",
        "you ask for augmentation by one of these fields, the preset's other one is dropped. Fields that neither you",
        "nor the preset gives have their defaults. The name is only a label: trials with the same fields are the same",
        "trial, whatever their presets.",
        "",
        "A preset sets what fields can set; other differences from a code base are listed with each method in",
        "[methods.md](methods.md). Any method can be run with any preset. The second column has the methods of its",
        "source.",
        "",
        "| name | methods of its source | what it is |",
        "| --- | --- | --- |",
    ]
    for name, found in PRESETS.items():
        lines.append(f"| [{name}](#{name}) | {_speaks_of(found)} | {found.summary} |")
    for name, found in PRESETS.items():
        lines += ["", f"## {name}", "", f"{_sentence(found.summary)} Source: {found.source}."]
        for heading, fields in _parts(found):
            lines += ["", f"{heading}:", "", "```yaml", _block(fields), "```"]
        lines += [""] * bool(found.like) + [
            f"- {method}: as in [{other}](#{other})" for method, other in found.like.items()
        ]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def datasets(argv: Sequence[str]) -> int:
    if argv[:1] == ["fetch"]:
        from pcr_ray.fetch import main

        return main(argv[1:])
    p = Parser(
        prog="pcr-ray datasets", description="List the datasets.",
        epilog="`pcr-ray datasets fetch NAME` fills a data root beforehand, for nodes without internet.",
    )  # fmt: skip
    plugins.add_argument(p)
    plugins.load(p.parse_args(argv).plugins)
    from pcr_ray.datasets import DATASETS, data_root

    table = Table()
    for column in ("name", "title", "classes", "tasks", "image size"):
        table.add_column(column)
    for dataset in DATASETS:
        numbers = [str(n or "yours") for n in (dataset.classes, dataset.tasks, dataset.image_size)]
        table.add_row(dataset.name, dataset.title, *numbers)
    console.print(table)
    for dataset in DATASETS:
        console.print(f"{dataset.name}: {dataset.how_to_get}", markup=False, soft_wrap=True)
    console.print(
        f"The data root is {data_root(None)}; --data-root or PCR_RAY_DATA moves it.\n"
        "`pcr-ray datasets fetch NAME` downloads one beforehand, for machines without internet.",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    return 0
