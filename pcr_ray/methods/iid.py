"""IID: the whole training set shuffled, one epoch, no memory. The upper reference.

L = mean over the batch of -log softmax(s)_y over all classes, with s = gamma * cos(z, w): FINE-TUNE's loss
(eq. 2 of the PCR paper), as the first batch already belongs to a task that has every class.

Differences from public code:
1. The shuffled set is cut into as many parts as there are tasks, each evaluated at its end, so that the
   results have the shape of every other method's. Only the last row is the reference.
2. Doubled augmented batch, as the PCR paper has it for all methods; AML's code has one augmented view, a linear head
   and a smaller learning rate (preset `aml`).
"""

from __future__ import annotations

from pcr_ray.methods._base import METHODS
from pcr_ray.methods.finetune import Finetune


@METHODS.register("iid")
class IID(Finetune):
    title = "IID"
    idea = "cross-entropy over all classes on the whole shuffled set, no memory"
    iid = True
    inert = {"softmax": "seen"}  # all are, from the first step on
