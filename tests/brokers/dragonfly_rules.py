"""A real Redis behind the rules by which Dragonfly runs scripts, for a machine that has no Dragonfly.

Between client and redis-server sits this: it passes everything on but scripts, which it runs itself, one at
a time, in Lua 5.4. What differs from Redis is what Dragonfly's documentation and source say, see
docs/dragonfly.md: undeclared keys are refused, scores and the time come as numbers, an error of ours gets
`ERR` in front, an error inside names the script first, there are no globals to be made, and no `#!lua` line.
A call that stands for itself as a statement is put off there until a result is needed, and gives none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import threading
from collections.abc import Sequence
from typing import Any, Self

import hiredis
from lupa.lua54 import LuaError, LuaRuntime, lua_type

_INCOMPLETE = object()
_STATEMENT = re.compile(rb"((?:\n|\bthen|\bdo)\s*redis\.)(call\()")

_STRICT = b"""
unpack = table.unpack
setmetatable(_G, {
  __newindex = function(_, name) error('script makes the global ' .. name, 2) end,
  __index = function(_, name) error('script reads the unknown global ' .. name, 2) end,
})
"""


class _ScriptError(Exception):
    """What `redis.call` raises."""


class DragonflyRules:
    """Listens on a free port of 127.0.0.1 from `start` to `stop`, in a thread of its own."""

    def __init__(self, redis_port: int, version: str = "1.40.1") -> None:
        self._redis_port = redis_port
        self._version = b"dragonfly_version:df-v%b\r\n" % version.encode()
        self._scripts = _Scripts(redis_port)
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._listening = threading.Event()
        self._clients: set[asyncio.Task[None]] = set()
        # Dragonfly runs a script whole. So no other command is on its way while one runs here.
        self._turn = asyncio.Lock()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._scripts.close()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._send_away())
        self._loop.close()

    async def _send_away(self) -> None:
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self._redis_port, limit=1 << 30)
        try:
            await self._serve(reader, writer, from_redis, to_redis)
        except OSError:
            pass
        finally:
            self._clients.discard(task)
            writer.close()
            to_redis.close()

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_redis: asyncio.StreamReader,
        to_redis: asyncio.StreamWriter,
    ) -> None:
        parser = hiredis.Reader(notEnoughData=_INCOMPLETE)
        coming = asyncio.ensure_future(reader.read(1 << 16))
        try:
            while data := await coming:
                coming = asyncio.ensure_future(reader.read(1 << 16))
                parser.feed(data)
                while (command := parser.gets()) is not _INCOMPLETE:
                    name = command[0].upper()
                    if name in {b"EVAL", b"EVALSHA", b"SCRIPT"}:
                        async with self._turn:
                            writer.write(self._scripts.answer(name, command[1:]))
                    elif name == b"BLMOVE":
                        to_redis.write(hiredis.pack_command(tuple(command)))
                        answer = asyncio.ensure_future(_reply(from_redis))
                        await asyncio.wait((answer, coming), return_when=asyncio.FIRST_COMPLETED)
                        if coming.done() and not coming.result():
                            to_redis.write_eof()
                        writer.write(await answer)
                    else:
                        async with self._turn:
                            to_redis.write(hiredis.pack_command(tuple(command)))
                            reply = await _reply(from_redis)
                        if name == b"INFO" and b"redis_version:" in reply:
                            text = reply.split(b"\r\n", 1)[1][:-2].removeprefix(b"txt:")
                            text = text.replace(b"redis_version:", self._version + b"redis_version:")
                            reply = b"$%d\r\n%b\r\n" % (len(text), text)
                        writer.write(reply)
        finally:
            coming.cancel()


def _reader() -> hiredis.Reader:
    """One that gives an error as its text."""
    text: Any = str
    return hiredis.Reader(notEnoughData=_INCOMPLETE, replyError=text)


async def _reply(stream: asyncio.StreamReader) -> bytes:
    """The bytes of one reply. b"" when the connection ended."""
    parser = _reader()
    parts = []
    while data := await stream.read(1 << 16):
        parts.append(data)
        parser.feed(data)
        if parser.gets() is not _INCOMPLETE:
            return b"".join(parts)
    return b""


class _Scripts:
    """The scripts that were loaded, and the interpreter."""

    def __init__(self, redis_port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", redis_port))
        self._key_places: dict[bytes, tuple[int, int, int]] = {}
        self._functions: dict[bytes, Any] = {}
        self._sources: dict[bytes, bytes] = {}
        self._declared: frozenset[bytes] = frozenset()
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=False)
        of = self._lua.globals()
        of[b"KEYS"] = of[b"ARGV"] = self._lua.table()
        of[b"redis"] = self._lua.table_from(
            {
                b"call": self._call,
                b"acall": self._put_off,
                b"sha1hex": lambda text: hashlib.sha1(text).hexdigest().encode(),
                b"error_reply": lambda text: self._lua.table_from({b"err": text}),
                b"status_reply": lambda text: self._lua.table_from({b"ok": text}),
            }
        )
        of[b"cjson"] = self._lua.table_from({b"encode": self._encode})
        self._lua.execute(_STRICT)

    def close(self) -> None:
        self._socket.close()

    def answer(self, name: bytes, args: Sequence[bytes]) -> bytes:
        """The reply to one of the commands that are about scripts."""
        if name == b"SCRIPT":
            what = args[0].upper()
            if what == b"FLUSH":
                self._sources.clear()
                return b"+OK\r\n"
            if what == b"LOAD":
                return _bulk(self._keep(args[1]))
            return _failure(b"Unknown subcommand or wrong number of arguments for '%b'" % args[0])
        sha = self._keep(args[0]) if name == b"EVAL" else args[0].lower()
        if sha not in self._sources:
            return b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        count = int(args[1])
        keys, values = args[2 : 2 + count], args[2 + count :]
        self._declared = frozenset(keys)
        of = self._lua.globals()
        of[b"KEYS"], of[b"ARGV"] = self._lua.table_from(keys), self._lua.table_from(values)
        try:
            if sha not in self._functions:
                source = _STATEMENT.sub(rb"\1a\2", self._sources[sha])
                self._functions[sha] = self._lua.execute(b"return function()\n" + source + b"\nend")
            return self._told(self._functions[sha]())
        except (LuaError, _ScriptError) as error:
            text = str(error).replace("\r", " ").replace("\n", " ")
            return _failure(b"Error running script (call to %b): @user_script: %b" % (sha, text.encode()))

    def _keep(self, source: bytes) -> bytes:
        sha = hashlib.sha1(source).hexdigest().encode()
        self._sources[sha] = source
        return sha

    def _call(self, *args: bytes | int | float) -> Any:
        words = []
        for arg in args:
            if not isinstance(arg, bytes | int) or isinstance(arg, bool):
                raise _ScriptError(
                    f"Lua redis lib command arguments must be strings or integers, not {arg!r}"
                )
            words.append(arg if isinstance(arg, bytes) else b"%d" % arg)
        name = words[0].upper()
        for key in self._keys_of(name, words):
            if key not in self._declared:
                raise _ScriptError(f"script tried accessing undeclared key, key: {key!r}")
        raw, reply = self._ask(words)
        if raw[:1] == b"-":
            raise _ScriptError(raw[1:].decode("utf-8", "replace").strip())
        if raw[:1] == b"+":
            return self._lua.table_from({b"ok": reply})
        if name == b"ZSCORE":
            reply = _number(reply)
        elif name == b"TIME":
            reply = [int(part) for part in reply]
        elif b"WITHSCORES" in words:
            reply = [_number(one) if index % 2 else one for index, one in enumerate(reply)]
        return self._given(reply)

    def _put_off(self, *args: bytes | int | float) -> None:
        self._call(*args)

    def _keys_of(self, name: bytes, words: Sequence[bytes]) -> list[bytes]:
        if name not in self._key_places:
            described = self._ask([b"COMMAND", b"INFO", name])[1][0]
            self._key_places[name] = (described[3], described[4], described[5])
        first, last, step = self._key_places[name]
        if not first:
            return []
        return list(words[first : (last if last >= 0 else len(words) + last) + 1 : step])

    def _ask(self, words: Sequence[bytes]) -> tuple[bytes, Any]:
        packed: Any = tuple(words)  # hiredis types a tuple of one word.
        self._socket.sendall(hiredis.pack_command(packed))
        parser = _reader()
        raw = b""
        while (reply := parser.gets()) is _INCOMPLETE:
            data = self._socket.recv(1 << 20)
            if not data:
                raise _ScriptError("the server is gone")
            raw = raw or data
            parser.feed(data)
        return raw, reply

    def _given(self, reply: Any) -> Any:
        """A reply as Lua sees it."""
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table_from([self._given(one) for one in reply])
        return reply

    def _told(self, result: Any) -> bytes:
        """What a script returned, as the client sees it."""
        if result is None or result is False:
            return b"$-1\r\n"
        if isinstance(result, bytes):
            return _bulk(result)
        if isinstance(result, int):
            return b":%d\r\n" % result
        if isinstance(result, float):
            return _bulk(repr(result).encode())
        assert lua_type(result) == "table", f"a script returned {result!r}"
        if (text := result[b"err"]) is not None:
            return _failure(text)
        if (text := result[b"ok"]) is not None:
            return b"+%b\r\n" % text
        return b"*%d\r\n" % len(result) + b"".join(self._told(one) for one in result.values())

    def _encode(self, value: Any) -> bytes:
        texts = [one.decode("utf-8", "surrogateescape") for one in value.values()]
        return json.dumps(texts, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _number(score: bytes | None) -> int | float | None:
    """A score as Dragonfly hands it to a script: whole ones as integers."""
    if score is None:
        return None
    number = float(score)
    return int(number) if number.is_integer() else number


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _failure(text: bytes) -> bytes:
    return (text if text[:1] == b"-" else b"-ERR " + text) + b"\r\n"
