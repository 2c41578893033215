"""How long an overloaded API server is left alone: for as long as it says, and no longer than is sensible."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from queueworker_operator.apiserver import LONGEST_WAIT_SECONDS, UnavailableError, queueworkers
from tests.operator.api_stand_in import served


@pytest.mark.parametrize(
    ("said", "waited"),
    [
        ("3", 3.0),
        ("86400", LONGEST_WAIT_SECONDS),
        (None, 0.0),
        ("-1", 0.0),
        ("Tue, 01 Dec 2026 00:00:00 GMT", 0.0),
    ],
)
async def test_an_overload_says_when_to_come_again(tmp_path: Path, said: str | None, waited: float) -> None:
    async def overloaded(request: web.Request) -> web.Response:
        headers = {} if said is None else {"Retry-After": said}
        return web.json_response({"reason": "TooManyRequests"}, status=429, headers=headers)

    async with served(overloaded, tmp_path) as api:
        with pytest.raises(UnavailableError) as refused:
            await api.get(queueworkers("shop", "one"))
        assert refused.value.wait_seconds == waited
        with pytest.raises(UnavailableError) as refused:
            async with api.watch(queueworkers("shop"), "1"):
                pass
        assert refused.value.wait_seconds == waited
