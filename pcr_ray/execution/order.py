"""Which trial comes next: the first seed of everything early, and no long trial so late that all wait for it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping

from pcr_ray.config import TrialConfig


def arrange(
    trials: Mapping[str, TrialConfig], workers: int, cost: Callable[[TrialConfig], float]
) -> dict[str, TrialConfig]:
    """Seed by seed, so that an early look compares like with like, and within a seed the longest first.

    A trial comes earlier where it would otherwise end after the time that the whole work needs on so many workers.
    """
    costs = {identity: cost(trial) for identity, trial in trials.items()}
    by_seed = deque(sorted(trials, key=lambda i: (trials[i].seed, -costs[i])))
    longest = deque(sorted(trials, key=lambda i: (-costs[i], trials[i].seed)))
    free = [0.0] * min(workers, len(trials))  # when each worker is
    end = max(sum(costs.values()) / max(1, len(free)), max(costs.values(), default=0.0))
    order: dict[str, TrialConfig] = {}
    while len(order) < len(trials):
        for queue in (by_seed, longest):
            while queue[0] in order:
                queue.popleft()
        now = heapq.heappop(free)
        chosen = longest[0] if now + costs[longest[0]] > end else by_seed[0]
        order[chosen] = trials[chosen]
        heapq.heappush(free, now + costs[chosen])
    return order
