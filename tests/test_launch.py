"""What a person is told when Ray does not start. Ray's own failure is made: it cannot be brought about at will."""

from __future__ import annotations

import pytest
import ray

from pcr_ray.errors import InputError, NotNowError, PcrRayError
from pcr_ray.execution import tuner as launch


@pytest.mark.parametrize(
    ("address", "kind", "code"),
    [(None, NotNowError, 75), ("127.0.0.1:1", InputError, 2), ("ray://a:1", InputError, 2)],
)
def test_a_ray_that_does_not_start_is_one_message_and_nobodys_failed_trial(
    address: str | None, kind: type[PcrRayError], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(kind) as caught, launch.cluster(address, verbose=False):
        pass
    assert caught.value.exit_code == code
    assert ("timed out during startup" in str(caught.value)) == (address != "ray://a:1")
    assert "more\n" not in str(caught.value)
