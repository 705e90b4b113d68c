"""One trial's configuration: a strict schema. `pcr_ray.study.resolve` is the only way to a complete one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from pcr_ray.text import did_you_mean

GAMMA = 1 / 0.09  # the paper's temperature 0.09, as the scale of the cosine head

MOST = 10**9  # images: a slip of the finger ends here, not in an overflow somewhere inside

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class TrialConfig(BaseModel):
    """Everything that decides a trial's numbers, and the name of its protocol (no device, no paths of data roots)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    # Fields added later: the value that means "as before", see identity.py.
    added: ClassVar[dict[str, Any]] = {"softmax": "seen", "pixels": "unit", "pool": None, "stop_after": None,
                                         "precision": "float32"}  # fmt: skip
    labels: ClassVar[tuple[str, ...]] = ("preset",)  # fields that decide nothing: no part of the identity

    preset: str | None = Field(
        None, description="the protocol of `pcr-ray presets` from which the fields that are not given come"
    )
    dataset: str = Field("digits", description="a dataset of `pcr-ray datasets`")
    folder: str | None = Field(
        None,
        description="dataset 'folder' only: the image folder, absolute, beside the sweep file or below the data root",
    )
    # From 9 on the last feature map has more than one pixel: BatchNorm can then learn from a single image.
    image_size: Annotated[int, Field(ge=9, le=512)] | None = Field(
        None, description="dataset 'folder' only: side length that images are resized to"
    )
    tasks: Annotated[int, Field(ge=1)] | None = Field(
        None, description="number of tasks the classes are split into; default: the dataset's usual number"
    )
    stop_after: Annotated[int, Field(ge=1)] | None = Field(
        None, description="learn only so many of the tasks, the first ones; default: all"
    )
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="train on this part of each class's images, for quick looks"
    )
    class_order: Literal["shuffled", "natural"] = Field(
        "shuffled", description="classes shuffled by the seed, or in the dataset's own order"
    )
    method: str = Field("pcr", description="a method of `pcr-ray methods`")
    params: dict[str, Any] = Field(default_factory=dict, description="the method's own parameters")
    buffer: Annotated[int, Field(ge=0, le=MOST)] = Field(1000, description="images in the replay memory")
    batch_size: Annotated[int, Field(ge=1, le=MOST)] = Field(10, description="images taken from the stream per step")
    replay_batch_size: Annotated[int, Field(ge=0, le=MOST)] = Field(
        10, description="images replayed from memory per step"
    )
    replay_per_class: Annotated[int, Field(ge=1, le=MOST)] | None = Field(
        None, description="replay at most this many images times the number of classes seen; default: no such limit"
    )
    replay_current: bool = Field(True, description="whether replay may draw images of the current task")
    model: Literal["reduced_resnet18", "resnet18"] = Field(
        "reduced_resnet18", description="backbone: 20 or 64 filters in the first stage"
    )
    pool: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None,
        description="side of the average pool on the last feature map; default: the whole map. 4, as in most public "
        "code, is the whole map at 32 x 32 pixels and keeps 2 x 2 cells (640 features) of MiniImageNet's 84 x 84",
    )
    head: Literal["auto", "cosine", "linear"] = Field(
        "auto", description="classifier; auto: what the method's equations have"
    )
    gamma: Positive | None = Field(GAMMA, description="scale of the cosine head, 1 / temperature")
    softmax: Literal["seen", "all"] = Field(
        "seen",
        description="classes that compete in the cross-entropies of training: those seen so far, or the whole head as "
        "in most public code; at inference it is always those seen",
    )
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="optimiser")
    lr: Positive = Field(0.1, description="learning rate")
    momentum: Beta = Field(0.0, description="momentum of SGD")
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = Field([0.9, 0.999], description="betas of Adam")
    weight_decay: NonNegative = Field(0.0, description="weight decay")
    augment: Literal["paper", "ocm", "dvc", "crop_flip", "none"] = Field(
        "paper",
        description="augmentation: the PCR paper's; OCM's; dvc, the paper's with one draw per batch and colour jitter "
        "always; crop_flip, a random crop after padding by 4 pixels and a flip; none",
    )
    views: Literal["both", "augmented", "original"] = Field(
        "both", description="train on originals and augmented copies, or on one of them"
    )
    batchnorm: Literal["auto", "joint", "separate", "views"] = Field(
        "auto",
        description="what shares BatchNorm's statistics: joint, stream and memory; separate, neither with the other; "
        "views, stream and memory, but originals apart from augmented copies; auto: as in the method's public code",
    )
    normalise: bool = Field(False, description="subtract the training set's mean and divide by its deviation")
    pixels: Literal["unit", "signed"] = Field(
        "unit", description="pixels in [0, 1] or in [-1, 1]; without effect where they are normalised"
    )
    proxy_gradients: bool = Field(
        False, description="also record the cumulative gradient magnitude of every class proxy"
    )
    precision: Literal["float32", "tf32", "bf16"] = Field(
        "float32",
        description="arithmetic on a GPU: float32 throughout; tf32, TF32 in convolutions and products of matrices; "
        "bf16, the backbone in bfloat16, with parameters, BatchNorm's statistics and the loss in float32",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of all randomness")

    def flat(self) -> dict[str, Any]:
        """One level of keys, method parameters as `params.name`."""
        fields = self.model_dump()
        params = fields.pop("params")
        return fields | {f"params.{k}": v for k, v in sorted(params.items())}


def map_side(image_size: int) -> int:
    """Side of the backbone's last feature map: three halvings, each rounded up."""
    return -(-image_size // 8)


FIELDS = list(TrialConfig.model_fields)

# What people call fields elsewhere.
ALIASES = {
    alias: field
    for field, aliases in {
        "lr": "learning_rate",
        "batch_size": "batch bs batchsize stream_batch stream_batch_size minibatch_size",
        "replay_batch_size": "mem_batch memory_batch_size replay_size replay_batch eps_mem_batch",
        "buffer": "memory mem memory_size mem_size buffer_size capacity",
        "optimiser": "optimizer optim opt",
        "weight_decay": "wd l2",
        "method": "agent algorithm algo strategy approach learner",
        "dataset": "data",
        "model": "backbone network net arch architecture",
        "head": "classifier",
        "tasks": "n_tasks num_tasks experiences",
        "augment": "augmentation aug transform",
        "batchnorm": "batch_norm bn",
        "normalise": "normalize normalization",
        "precision": "dtype amp mixed_precision autocast",
        "class_order": "classes_order order",
        "seed": "seeds random_seed rng",
        "folder": "image_folder images data_dir path",
        "fraction": "subset subsample",
    }.items()
    for alias in aliases.split()
}
NOTES = {
    "epochs": "each image of the stream is seen once",
    "epoch": "each image of the stream is seen once",
    "temperature": "the cosine head's scale is 'gamma', 1 / temperature; some methods have params.temperature",
    "data_root": "it is an option of the command, --data-root",
    "device": "resources decide: {gpu: 1}, or {gpu: 0} for the CPU",
}


def field_hint(key: str) -> str:
    """What a field that does not exist may have meant."""
    plain = key.lower().replace("-", "_")
    if plain in FIELDS or plain in ALIASES:
        return f"; here it is '{plain if plain in FIELDS else ALIASES[plain]}'"
    return f"; {NOTES[plain]}" if plain in NOTES else did_you_mean(key, FIELDS)
