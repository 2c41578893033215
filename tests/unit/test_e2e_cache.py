"""The cache of slow results: what its keys depend on, and that only whole entries are ever used."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import cache
from e2e.cache import Recipe


def writer(content: str, calls: list[str]) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        calls.append(content)
        (folder / "bin").mkdir()
        (folder / "bin" / "program").write_text(content)

    return build


def test_a_result_is_built_once(tmp_path: Path) -> None:
    calls: list[str] = []
    recipe = Recipe("tool", (("version", "1"),))
    first = cache.obtain(tmp_path, recipe, writer("one", calls))
    second = cache.obtain(tmp_path, recipe, writer("two", calls))
    assert first == second
    assert (second / "bin" / "program").read_text() == "one"
    assert calls == ["one"]


@pytest.mark.parametrize(
    "other",
    [
        Recipe("tool", (("version", "2"),), (("go.mod", b"module x"),)),
        Recipe("tool", (("version", "1"), ("flags", "-s")), (("go.mod", b"module x"),)),
        Recipe("tool", (("version", "1"),), (("go.mod", b"module y"),)),
        Recipe("tool", (("version", "1"),), (("go.sum", b"module x"),)),
        Recipe("tool", (("version", "1"),), (("go.mod", b"modul"), ("e", b" x"))),
        Recipe("lot", (("version", "1"),), (("go.mod", b"module x"),)),
    ],
)
def test_everything_in_a_recipe_changes_its_key(other: Recipe) -> None:
    recipe = Recipe("tool", (("version", "1"),), (("go.mod", b"module x"),))
    assert other.key != recipe.key


def test_the_order_of_facts_and_files_does_not_matter() -> None:
    one = Recipe("tool", (("a", "1"), ("b", "2")), (("x", b"1"), ("y", b"2")))
    two = Recipe("tool", (("b", "2"), ("a", "1")), (("y", b"2"), ("x", b"1")))
    assert one.key == two.key


@pytest.mark.parametrize("damage", ["truncate", "delete", "marker"])
def test_a_broken_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    calls: list[str] = []
    recipe = Recipe("tool")
    entry = cache.obtain(tmp_path, recipe, writer("whole", calls))
    program = entry / "bin" / "program"
    if damage == "truncate":
        program.write_text("who")
    elif damage == "delete":
        program.unlink()
    else:
        (entry / cache.MARKER).write_text("{")
    assert cache.lookup(tmp_path, recipe) is None
    again = cache.obtain(tmp_path, recipe, writer("whole", calls))
    assert (again / "bin" / "program").read_text() == "whole"
    assert calls == ["whole", "whole"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    recipe = Recipe("tool")

    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError, match="no space"):
        cache.obtain(tmp_path, recipe, fails)
    assert cache.lookup(tmp_path, recipe) is None
    assert list((tmp_path / "entries").iterdir()) == []


def test_a_second_builder_waits_for_the_first_and_uses_its_result(tmp_path: Path) -> None:
    recipe = Recipe("tool")
    started, go_on = threading.Event(), threading.Event()
    waited: list[str] = []
    builds: list[str] = []

    def slow(folder: Path) -> None:
        builds.append("first")
        started.set()
        assert go_on.wait(30)
        (folder / "program").write_text("first")

    def waiting(text: str) -> None:
        waited.append(text)
        go_on.set()

    first = threading.Thread(target=cache.obtain, args=(tmp_path, recipe, slow))
    first.start()
    assert started.wait(30)
    entry = cache.obtain(tmp_path, recipe, writer("second", builds), waiting)
    first.join()
    assert (entry / "program").read_text() == "first"
    assert builds == ["first"]
    assert waited == ["waiting for another process that works on tool"]


def test_a_lock_ends_with_the_process_that_held_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from e2e import cache\n"
        "with cache.exclusive(Path(sys.argv[1]), 'tool'):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited: list[str] = []

        def waiting(text: str) -> None:
            waited.append(text)
            holder.kill()

        with cache.exclusive(tmp_path, "tool", waiting):
            assert len(waited) == 1


def test_older_recipes_and_killed_builds_are_swept_but_not_other_names(tmp_path: Path) -> None:
    old, new, other = Recipe("go", (("v", "1"),)), Recipe("go", (("v", "2"),)), Recipe("go-extra")
    for recipe in (old, new, other):
        cache.obtain(tmp_path, recipe, writer("x", []))
    killed = tmp_path / "entries" / f".{new.key}.abc123"
    killed.mkdir()
    cache.sweep(tmp_path, "go", new.key)
    assert {path.name for path in (tmp_path / "entries").iterdir()} == {new.key, other.key}
