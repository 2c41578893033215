"""The body of an HTTP answer, whole and of bounded length."""

from __future__ import annotations

import aiohttp


class BodyTooLongError(ValueError):
    """More was answered than is read. The text says how much that is."""


async def whole(answer: aiohttp.ClientResponse, longest: int) -> bytes:
    """All of it, in however many pieces it comes. Raises BodyTooLongError beyond so many bytes."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > longest:
            raise BodyTooLongError(f"answered with more than {longest} bytes")
    return bytes(body)
