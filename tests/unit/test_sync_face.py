"""The synchronous client is generated from the asynchronous one, completely and with the same interface."""

import functools
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skep import AsyncSkep, Skep
from skep.client.aio import runtime as aio_runtime
from skep.client.sync import runtime as sync_runtime
from tools import make_sync

MODULES = sorted(path.stem for path in (make_sync.CLIENT / "aio").glob("*.py") if path.name not in make_sync.BY_HAND)
SPECIAL = {asynchronous: plain for asynchronous, plain in make_sync.WORDS.items() if asynchronous.startswith("__")}


def classes(module: str) -> list[type]:
    """Return the classes that a module of the asynchronous client defines."""
    found = importlib.import_module(f"skep.client.aio.{module}")
    return [value for value in vars(found).values() if inspect.isclass(value) and value.__module__ == found.__name__]


CLASSES = [kind for module in MODULES for kind in classes(module)]


def twin(kind: type) -> type:
    module = importlib.import_module(kind.__module__.replace(".aio.", ".sync."))
    return getattr(module, kind.__name__.removeprefix("Async"))


def methods(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if callable(value) or isinstance(value, property)}


def words(signature: inspect.Signature) -> str:
    """Return a signature as text, with the names of the synchronous client."""
    return make_sync.translate(re.sub(r"(?:\w+\.)+(?=\w)", "", str(signature)))


@functools.cache
def generated() -> dict[Path, str]:
    return make_sync.generate()


def test_the_synchronous_client_is_up_to_date():
    """The files are up to date and were not changed by hand."""
    wanted = generated()
    stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    assert stale == []


def test_both_clients_have_the_same_modules():
    names = [{path.name for path in (make_sync.CLIENT / face).glob("*.py")} for face in ("aio", "sync")]
    assert names[0] == names[1]


def test_a_generated_file_says_so_in_its_first_line():
    for path in generated():
        assert (
            path.read_text().splitlines()[0]
            == f"# Generated from src/skep/client/aio/{path.name} by `make format`. Change that file."
        )


def test_nothing_asynchronous_is_left():
    for path in (make_sync.CLIENT / "sync").glob("*.py"):
        code = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
        assert (
            re.findall(r"\b(?:await|async|__a\w+__|asyncio\.\w+|Async[A-Z]\w+)\b", code.replace("AsyncSkep", "")) == []
        )


def test_the_check_finds_what_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """A file changed by hand, a file that was not written, and a file without a source."""
    aio, sync = tmp_path / "src/skep/client/aio", tmp_path / "src/skep/client/sync"
    aio.mkdir(parents=True)
    sync.mkdir()
    for name in ("fine", "changed", "unwritten"):
        (aio / f"{name}.py").write_text(f'"""{name}."""\n\n\nasync def f() -> None:\n    await f()\n')
    monkeypatch.setattr(make_sync, "CLIENT", aio.parent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["make_sync"])
    assert make_sync.main() == 0
    assert (sync / "fine.py").read_text().endswith('"""fine."""\n\n\ndef f() -> None:\n    f()\n')
    with (sync / "changed.py").open("a") as file:
        file.write("# by hand\n")
    (sync / "unwritten.py").unlink()
    (sync / "orphan.py").write_text("")
    monkeypatch.setattr("sys.argv", ["make_sync", "--check"])
    assert make_sync.main() == 1
    found = re.findall(r"sync/(\w+)\.py is not", capsys.readouterr().out)
    assert sorted(found) == ["changed", "orphan", "unwritten"]


@pytest.mark.parametrize(
    ("asynchronous", "plain"),
    [
        ("async with a: await b()", "with a: b()"),
        ("async for x in y: yield await x", "for x in y: yield x"),
        ("class AsyncBatch(AsyncIterator[AsyncThing]):", "class Batch(Iterator[Thing]):"),
        ("from skep.client.aio import runtime", "from skep.client.sync import runtime"),
        ("async def __aenter__", "def __enter__"),
        ("raise StopAsyncIteration", "raise StopIteration"),
        ("@asynccontextmanager", "@contextmanager"),
        ("asynchronous, awaits, Asynchronous", "asynchronous, awaits, Asynchronous"),
    ],
)
def test_translation(asynchronous: str, plain: str):
    assert make_sync.translate(asynchronous) == plain


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_has_the_same_methods_in_both_clients(kind: type):
    expected = {SPECIAL.get(name, name) for name in methods(kind)}
    assert set(methods(twin(kind))) == expected


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_method_has_the_same_signature_in_both_clients(kind: type):
    for name, method in methods(kind).items():
        other = methods(twin(kind))[SPECIAL.get(name, name)]
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            assert words(inspect.signature(method)) == words(inspect.signature(other)), name
            assert make_sync.translate(method.__doc__ or "") == (other.__doc__ or ""), name


def test_public_methods_of_the_client_correspond_one_to_one():
    public = [{name for name in dir(kind) if not name.startswith("_")} for kind in (AsyncSkep, Skep)]
    assert public[0] == public[1]
    assert {"push_many", "pop", "consumer", "run", "stop", "close", "subscribe", "seek", "transaction"} <= public[0]


def test_a_coroutine_function_is_a_plain_function_in_the_synchronous_client():
    for kind in CLASSES:
        for name, method in methods(twin(kind)).items():
            assert not inspect.iscoroutinefunction(method), f"{kind.__name__}.{name}"
            assert not inspect.isasyncgenfunction(method), f"{kind.__name__}.{name}"


def defined(module: ModuleType) -> dict[str, Any]:
    """Return the public names of a runtime: its definitions and its aliases."""
    used = "\n".join(path.read_text() for path in (make_sync.CLIENT / "aio").glob("*.py"))
    return {name: value for name, value in vars(module).items() if re.search(rf"\bruntime\.{name}\b", used)}


def own_names(module: ModuleType) -> set[str]:
    """Return the names that a module defines, without its imports."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "T" and getattr(value, "__module__", "") == module.__name__
    }


def test_the_runtimes_have_the_same_names():
    assert defined(aio_runtime).keys() == defined(sync_runtime).keys()
    assert own_names(aio_runtime) == own_names(sync_runtime)


def test_every_name_of_a_runtime_is_used():
    assert own_names(aio_runtime) <= defined(aio_runtime).keys()


def test_the_classes_of_the_runtimes_have_the_same_methods():
    for name, kind in defined(aio_runtime).items():
        if inspect.isclass(kind) and kind.__module__ == aio_runtime.__name__:
            other = getattr(sync_runtime, name)
            assert set(methods(kind)) == set(methods(other)), name
            for method in methods(kind):
                assert parameters(getattr(kind, method)) == parameters(getattr(other, method)), f"{name}.{method}"


def test_the_functions_of_the_runtimes_take_the_same_arguments():
    for name, function in defined(aio_runtime).items():
        if inspect.isfunction(function) and function.__module__ == aio_runtime.__name__:
            assert parameters(function) == parameters(getattr(sync_runtime, name)), name


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments, without the underscore of unused ones."""
    return [name.lstrip("_") for name in inspect.signature(function).parameters]
