"""PCR as a straightforward script has it, to measure ours against: same network, batches, loss and protocol.

Written for this benchmark in the manner of public code for online continual learning: images channels first, each
augmented on its own as a PIL image, stream and memory through the network one after the other, the loss over a matrix
of all pairs in the batch, a reservoir filled image by image, every task evaluated with its own pass.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import transforms


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def backbone(filters: int = 20) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
    width = filters
    for outputs, stride in ((filters, 1), (2 * filters, 2), (4 * filters, 2), (8 * filters, 2)):
        layers += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class PlainPCR:
    """Images are uint8 (N, H, W, 3) arrays, labels class numbers."""

    def __init__(self, size: int, classes: int, buffer: int, replay: int = 10) -> None:
        self.net, self.proxies = backbone(), nn.Parameter(torch.randn(classes, 160) / 160**0.5)
        self.optimiser = torch.optim.SGD([*self.net.parameters(), self.proxies], lr=0.1, foreach=False)
        self.buffer, self.replay, self.seen = buffer, replay, 0
        self.memory: list[tuple[np.ndarray, int]] = []
        self.to_tensor = transforms.ToTensor()
        jitter = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
        crop = transforms.RandomResizedCrop(size, (0.2, 1.0))
        steps = [transforms.ToPILImage(), crop, transforms.RandomHorizontalFlip(), jitter]
        self.augment = transforms.Compose([*steps, transforms.RandomGrayscale(0.2), transforms.ToTensor()])

    def views(self, images: list[np.ndarray]) -> Tensor:
        return torch.stack([self.to_tensor(x) for x in images] + [self.augment(x) for x in images])

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        scores = F.normalize(features) @ F.normalize(self.proxies[labels]).T / 0.09  # (N, N), a column per anchor
        scores = scores - scores.max(1, keepdim=True).values.detach()
        log_probability = scores - scores.exp().sum(1, keepdim=True).log()
        positive = (labels[:, None] == labels[None]).float()
        return -((positive * log_probability).sum(1) / positive.sum(1)).mean()

    def step(self, images: np.ndarray, labels: list[int]) -> float:
        self.net.train()
        features = [self.net(self.views(list(images)))]
        targets = [*labels, *labels]
        if self.memory:
            drawn = random.sample(self.memory, min(self.replay, len(self.memory)))
            features.append(self.net(self.views([image for image, _ in drawn])))
            targets += [label for _, label in drawn] * 2
        loss = self.loss(torch.cat(features), torch.tensor(targets))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        for image, label in zip(images, labels):
            self.remember(image, label)
        return loss.item()

    def remember(self, image: np.ndarray, label: int) -> None:
        self.seen += 1
        if len(self.memory) < self.buffer:
            self.memory.append((image, label))
        elif (slot := random.randrange(self.seen)) < self.buffer:
            self.memory[slot] = (image, label)

    @torch.no_grad()
    def accuracy(self, images: np.ndarray, labels: list[int], seen: int) -> float:
        """Of the softmax over proxies alone, one task's test images."""
        self.net.eval()
        correct = 0
        for start in range(0, len(images), 64):
            batch = torch.stack([self.to_tensor(x) for x in images[start : start + 64]])
            logits = F.normalize(self.net(batch)) @ F.normalize(self.proxies[:seen]).T
            correct += int((logits.argmax(1) == torch.tensor(labels[start : start + 64])).sum())
        return 100 * correct / len(images)
