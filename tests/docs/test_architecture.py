"""docs/architecture.md says what the code is: paths, rooms, threads, locks, words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshmsg

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PRODUCT = ("meshmsg", "recovery", "transports", "spark_sink", "pyspark_meshmsg")
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
LOCKS |= {"new_lock", "new_rlock", "new_condition"}
#: What starts a thread by being called, or by being subclassed; the last is of a library.
THREADS = {
    "new_thread",
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "to_thread",
    "start_new_thread",
    "Zeroconf",
}


def section(title: str) -> str:
    """The text of one section, without its heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, f"docs/architecture.md has no section {title}"
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of the tables in a text, without heads."""
    for line in text.splitlines():
        if line.startswith("|") and not re.match(r"\|[-:| ]+\|$", line):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def paths() -> Iterator[str]:
    """Every product module, once: links are left out."""
    for room in PRODUCT:
        for path in sorted((ROOT / room).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if not any((ROOT / parent).is_symlink() for parent in relative.parents):
                yield relative.as_posix()


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in paths():
        yield path, ast.parse((ROOT / path).read_text(encoding="utf-8"))


def packages() -> Iterator[tuple[str, str]]:
    """The packages of each room, as the room and the package's name."""
    for room in PRODUCT[:-1]:
        for folder in (ROOT / room).iterdir():
            if not folder.is_symlink() and (folder / "__init__.py").exists():
                yield room, folder.name


def is_named(node: ast.AST, names: set[str]) -> bool:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in names
    return False


def starts_threads(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=used) if is_named(used, THREADS):
                return True
            case ast.ClassDef(bases=bases) if any(is_named(base, THREADS) for base in bases):
                return True
    return False


def locks_of(tree: ast.Module) -> set[str]:
    """The names under which a module keeps its locks."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(value=ast.Call(func=used), targets=targets) if is_named(used, LOCKS):
                pass
            case ast.AnnAssign(value=ast.Call(func=used), target=target) if is_named(used, LOCKS):
                targets = [target]
            case _:
                continue
        for target in targets:
            assert isinstance(target, ast.Attribute | ast.Name)
            found.add(target.attr if isinstance(target, ast.Attribute) else target.id)
    return found


def named_paths() -> Iterator[str]:
    """Each path in backticks; a bare file name stands in the folder of the path before it."""
    folder = ""
    for line in PAGE.splitlines():
        for name in re.findall(r"`([\w./]+(?:\.py|\.c|\.md|\.toml|/))`", line):
            if "/" in name:
                folder = name.rstrip("/").rpartition("/")[0]
                yield name
            elif not (ROOT / name).exists():
                yield f"{folder}/{name}" if folder else name


@pytest.mark.parametrize("path", sorted(set(named_paths())))
def test_every_path_on_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists(), path


def test_every_package_is_in_the_table_of_rooms() -> None:
    text = section("Rooms")
    missing = [f"{room}/{name}" for room, name in packages() if f"`{room}/{name}/`" not in text]
    assert missing == []


def test_every_package_is_in_the_picture() -> None:
    picture = (ROOT / "docs" / "layers.svg").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r">([^<>]+)</text>", picture))))
    assert [f"{room}/{name}" for room, name in packages() if name not in words] == []


def test_every_package_is_in_the_general_layout() -> None:
    layout = re.findall(r"^    (\S.*?)  ", meshmsg.__doc__ or "", re.M)
    words = set(re.findall(r"\w+", " ".join(layout)))
    names = {name for room, name in packages() if room == "meshmsg"}
    assert words == names | set(PRODUCT[1:-1]) | {"_native"}


def test_every_module_beside_the_packages_is_in_the_section_of_rooms() -> None:
    text = section("Rooms")
    beside = [
        path.name
        for room in PRODUCT[1:-1]
        for path in (ROOT / room).glob("*.py")
        if path.name != "__init__.py"
    ]
    assert [name for name in beside if not re.search(rf"\b{name}`", text)] == []


def test_every_c_file_is_on_the_page() -> None:
    text = section("Compiled code")
    files = [path.name for path in (ROOT / "meshmsg" / "c").glob("*.[ch]")]
    assert [name for name in files if f"`meshmsg/c/{name}`" not in text] == []


def test_what_c_files_name_in_python_is_there() -> None:
    """A C file says where the same stands in Python: by a path, and often by a name in it."""
    for file in (ROOT / "meshmsg" / "c").glob("*.[ch]"):
        text = file.read_text(encoding="utf-8")
        for path in re.findall(r"`([\w/]+\.py)`", text):
            assert python_beside(path), f"{file.name}: {path}"
        for name, path in re.findall(r"`(\w+)` in[\s*]+`([\w/]+\.py)`", text):
            [found] = python_beside(path)
            assert re.search(rf"(def|class) {name}\b", found), f"{file.name}: {name} in {path}"


def python_beside(path: str) -> list[str]:
    """The sources of the modules whose paths end so."""
    found = [one for one in paths() if f"/{one}".endswith(f"/{path}")]
    return [(ROOT / one).read_text(encoding="utf-8") for one in found]


def test_the_table_of_threads_has_every_module_that_starts_one() -> None:
    started = {path for path, tree in modules() if starts_threads(tree)}
    assert {cells[1].strip("`") for cells in rows(section("Threads"))} - {"started in"} == started


@pytest.mark.parametrize(
    "text",
    [
        "threading.Thread(target=run)",
        "Thread(target=run)",
        "threading.Timer(1, run)",
        "class Reader(threading.Thread): pass",
        "pool = ThreadPoolExecutor(2)",
        "async def f(): await asyncio.to_thread(run)",
    ],
)
def test_whatever_starts_a_thread_is_found(text: str) -> None:
    assert starts_threads(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    ["self._x = threading.Lock()", "_x = RLock()", "self._x: Lock = Lock()", "_x = Semaphore(2)"],
)
def test_every_lock_is_found(text: str) -> None:
    assert locks_of(ast.parse(text)) == {"_x"}


def test_the_table_of_locks_has_every_lock() -> None:
    made = {(path, name) for path, tree in modules() for name in locks_of(tree)}
    told = set()
    for cells in rows(section("Locks")):
        for name in re.findall(r"`(\w+)`", cells[0]):
            told.add((cells[1].strip("`"), name))
    assert told == made


def test_the_glossary_is_sorted_and_has_each_word_once() -> None:
    words = [cells[0] for cells in rows(section("Glossary"))][1:]
    assert words == sorted(set(words), key=str.lower)
