"""Named protocols: what papers and their public code fix, as fields of a trial.

Each reproduces the settings of one code base for the methods that it has. What no field can set stands at the top of
a method's own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pcr_ray.config import TrialConfig
from pcr_ray.errors import InputError
from pcr_ray.text import did_you_mean

Fields = Mapping[str, Any]
NUMBER = TypeAdapter(int)


@dataclass(frozen=True)
class Preset:
    """Fields for all methods, more for those that its source has, and more for some by the size of the memory."""

    summary: str
    source: str
    fields: Fields = field(default_factory=dict)
    methods: Mapping[str, Fields] = field(default_factory=dict)
    buffers: Mapping[str, Mapping[int, Fields]] = field(default_factory=dict)  # method -> smallest memory -> fields
    like: Mapping[str, str] = field(default_factory=dict)  # methods for which another preset speaks

    def fields_for(self, method: Any, buffer: Any) -> dict[str, Any]:
        """All that the protocol says of a trial with this method and memory."""
        if str(method) in self.like:
            return PRESETS[self.like[str(method)]].fields_for(method, buffer)
        sizes = self.buffers.get(str(method), {})
        try:
            wanted = NUMBER.validate_python(buffer)  # a command line gives text
        except ValidationError:
            wanted = 0  # it is said elsewhere
        size = max((s for s in sizes if s <= wanted), default=min(sizes, default=0))
        return {**self.fields, **self.methods.get(str(method), {}), **sizes.get(size, {})}


# What the code bases for online learning below share.
ONLINE = {
    "batch_size": 10,
    "replay_batch_size": 10,
    "model": "reduced_resnet18",
    "optimiser": "sgd",
    "lr": 0.1,
    "normalise": False,
}
PUBLIC = ONLINE | {"softmax": "all", "pool": 4}
LINEAR = {"head": "linear"}

PRESETS: dict[str, Preset] = {
    "paper": Preset(
        "the PCR paper's protocol for all its methods; these are the defaults",
        "Lin et al., PCR, CVPR 2023",
        ONLINE
        | {
            "class_order": "shuffled",
            "augment": "paper",
            "views": "both",
            "batchnorm": "auto",
            "head": "auto",
            "softmax": "seen",
            "pixels": "unit",
            "pool": None,
        },
    ),
    "ocm": Preset(
        "the setting of the PCR paper's second accuracy table, taken over from OCM; what the PCR text does not name "
        "(betas, weight decay, normalisation, order, replay per class, augmentation, softmax) is as in OCM's code",
        "Guo et al., OCM, ICML 2022; github.com/gydpku/OCM",
        {
            # Named in the text of the PCR paper:
            "model": "resnet18",  # 64 filters
            "optimiser": "adam",
            "lr": 0.001,
            "replay_batch_size": 64,
            # As in the public code of OCM:
            "batch_size": 10,
            "betas": [0.9, 0.99],
            "weight_decay": 1e-4,
            "normalise": True,
            "class_order": "natural",
            "replay_per_class": 7,
            "augment": "ocm",
            "softmax": "all",
        },
        methods={"ocm": {}},
    ),
    "resnet18_adam": Preset(
        "the same setting of the PCR paper's second accuracy table, with what its text does not name as in PCR's own "
        "code: Adam's default betas, no weight decay, no normalisation, shuffled classes, PCR's augmentation",
        "Lin et al., PCR, CVPR 2023; github.com/FelixHuiweiLin/PCR",
        {
            "model": "resnet18",
            "optimiser": "adam",
            "lr": 0.001,
            "replay_batch_size": 64,
            "batch_size": 10,
            "betas": [0.9, 0.999],
            "weight_decay": 0.0,
            "normalise": False,
            "class_order": "shuffled",
            "augment": "paper",
            "views": "both",
        },
        methods={"pcr": {}},
    ),
    "survey": Preset(
        "ER and its relatives without augmentation, as in the survey of online continual learning",
        "Mai et al., Neurocomputing 2022; github.com/RaptorMai/online-continual-learning",
        PUBLIC | {"class_order": "shuffled", "augment": "none", "views": "original", "pixels": "unit"},
        methods={
            "er": LINEAR,
            "mir": {},
            "gss": {},
            "aser": {},
            "agem": {},
            "finetune": LINEAR,
            "iid": LINEAR,
        },
    ),
    "scr": Preset(
        "SCR with 100 replayed images and the review trick",
        "Mai et al., SCR, CVPR Workshops 2021; github.com/RaptorMai/online-continual-learning, config_CVPR",
        PUBLIC | {"replay_batch_size": 100, "class_order": "natural", "augment": "paper", "views": "both"},
        methods={"scr": {"batchnorm": "views", "params.temperature": 0.1, "params.review": True}},
    ),
    "aml": Preset(
        "one augmented view (crop and flip), pixels in [-1, 1], learning rates chosen per method; its CIFAR100 and "
        "MiniImageNet have 20 tasks",
        "Caccia et al., ICLR 2022; github.com/pclucas14/AML",
        PUBLIC | {"class_order": "natural", "augment": "crop_flip", "views": "augmented", "pixels": "signed"},
        methods={
            "er": LINEAR,
            "er_ace": {"head": "cosine", "gamma": 10.0, "params.stream_classes": "batch"},
            "derpp": {"lr": 0.01, "params.alpha": 0.25, "params.beta": 1.0},
            "mir": {},
            "ss_il": LINEAR,
            "agem": {},
            "iid": LINEAR | {"lr": 0.01},
        },
    ),
    "mir": Preset(
        "no augmentation, pixels in [-1, 1], replay of earlier tasks only; a twentieth of the images is kept for "
        "validation; its MiniImageNet has 20 tasks",
        "Aljundi et al., MIR, NeurIPS 2019; github.com/optimass/Maximally_Interfered_Retrieval",
        PUBLIC
        | {
            "class_order": "natural",
            "augment": "none",
            "views": "original",
            "pixels": "signed",
            "replay_current": False,
            "fraction": 0.95,
        },
        methods={"mir": {"params.candidates": 50, "params.move_statistics": True}, "er": LINEAR},
    ),
    "mammoth": Preset(
        "DER++ with one augmented view (crop and flip), normalised; weights by the memory as chosen for CIFAR10. Its "
        "50 epochs in batches of 32 with 64 filters are one epoch in batches of 10 with 20 filters here",
        "Buzzega et al., DER++, NeurIPS 2020; github.com/aimagelab/mammoth",
        ONLINE
        | {
            "lr": 0.03,
            "class_order": "natural",
            "augment": "crop_flip",
            "views": "augmented",
            "normalise": True,
            "softmax": "all",
        },
        methods={"derpp": {}},
        buffers={
            "derpp": {
                200: {"params.alpha": 0.1, "params.beta": 0.5},
                500: {"params.alpha": 0.2, "params.beta": 0.5},
                5120: {"params.alpha": 0.1, "params.beta": 1.0},
            }
        },
    ),
    "gmed": Preset(
        "no augmentation, stream and memory in one forward pass, the regulariser added; its CIFAR100 and MiniImageNet "
        "have 20 tasks",
        "Jin et al., GMED, NeurIPS 2021; github.com/INK-USC/GMED",
        PUBLIC
        | {"class_order": "natural", "augment": "none", "views": "original", "pixels": "unit", "batchnorm": "joint"},
        methods={"gmed": {"params.regulariser": "plus"}, "er": LINEAR},
    ),
    "dvc": Preset(
        "augmentation drawn once per batch, colours always jittered",
        "Gu et al., DVC, CVPR 2022; github.com/YananGu/DVC",
        PUBLIC | {"class_order": "natural", "augment": "dvc", "views": "both", "pixels": "unit"},
        methods={"er_dvc": {"params.move_statistics": True}},
    ),
    "wa": Preset(
        "one augmented view (crop and flip), normalised, L1 norm, head weights of 0 and more. Its 250 epochs with "
        "momentum, weight decay and distillation are one epoch of plain SGD here",
        "Zhao et al., CVPR 2020; github.com/bwbwzhao/Weight-Aligning",
        ONLINE | {"class_order": "shuffled", "augment": "crop_flip", "views": "augmented", "normalise": True},
        methods={"er_wa": {"params.clamp": True, "params.norm": "l1", "params.clip": True}},
    ),
    "authors": Preset(
        "each baseline as in its authors' code; ER, IID and FINE-TUNE, which have none, as in public code for online "
        "learning; other methods as in `paper`",
        "the presets that speak for each method",
        like={
            "iid": "aml",
            "finetune": "survey",
            "er": "aml",
            "gss": "survey",
            "gmed": "gmed",
            "mir": "mir",
            "aser": "survey",
            "agem": "survey",
            "er_wa": "wa",
            "derpp": "mammoth",
            "ss_il": "aml",
            "scr": "scr",
            "er_dvc": "dvc",
            "ocm": "ocm",
            "er_ace": "aml",
        },
    ),
}


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}'{did_you_mean(name, list(PRESETS))}")
    return PRESETS[name]


def preset_fields(name: str, given: Fields) -> dict[str, Any]:
    """What a preset says of a trial with these fields; its method and memory decide. None of them: nothing."""
    if name not in PRESETS:
        return {}
    method, buffer = (given.get(k, TrialConfig.model_fields[k].default) for k in ("method", "buffer"))
    fields = PRESETS[name].fields_for(method, buffer)
    if given.get("augment", "none") == "none" and given.get("views", "original") == "original":
        return fields
    # It takes two fields to say "no augmentation": the one that is not given would make the other one idle.
    return {k: v for k, v in fields.items() if (k, v) not in (("augment", "none"), ("views", "original"))}
