"""Compare what the kernels take for llama.cpp's binary interface with its headers.

`native/ggml_abi.h` states layouts, numbers and virtual functions in names of its own, and `native/library.h`
the functions that are called, since users have llama.cpp compiled, without headers. `bind_llama_cpp.py`,
which has the headers, calls `differences` for every version that it binds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clang import cindex

NATIVE = Path(__file__).parent.parent / "src/foredraft/backends/llamacpp/native"
FOLDERS = ("include", "src", "ggml/include", "ggml/src", "ggml/src/ggml-cpu")
HEADERS = ("traits.h", "llama-context.h", "llama-graph.h")

STRUCTS = {
    "Tensor": "ggml_tensor",
    "Params": "ggml_compute_params",
    "BufferType": "ggml_backend_buffer_type",
    "BufferFunctions": "ggml_backend_buffer_i",
    "Buffer": "ggml_backend_buffer",
    "Traits": "tensor_traits",
    "ExtraBuffers": "extra_buffer_type",
}
"""Structs of ggml_abi.h, and llama.cpp's names of them."""

OWN = {"Named", "BufferTypes"}
"""Not llama.cpp's: a table's row, and a vector of the standard library."""

MEMBERS = {
    "Params": {"work_bytes": "wsize", "work": "wdata", "reference": "use_ref"},
    "Buffer": {"type": "buft", "bytes": "size"},
}
"""Members that have another name in llama.cpp, by struct."""

NUMBERS = {
    "MUL_MAT": "GGML_OP_MUL_MAT",
    "FILL": "GGML_OP_FILL",
    "FLASH_ATTN_EXT": "GGML_OP_FLASH_ATTN_EXT",
    "DEVICE_CPU": "GGML_BACKEND_DEVICE_TYPE_CPU",
    "DEVICE_ACCELERATOR": "GGML_BACKEND_DEVICE_TYPE_ACCEL",
}
"""Constants of ggml_abi.h and llama.cpp's names of them; the others are types of tensors."""

TABLES = ("Library", "GraphLibrary")
"""Structs of library.h whose members are pointers to llama.cpp's functions, by their names in the library."""

Kind, Cursor = cindex.TypeKind, cindex.CursorKind
_POINTERS = {Kind.POINTER, Kind.LVALUEREFERENCE, Kind.RVALUEREFERENCE}
_FRACTIONS = {Kind.FLOAT, Kind.DOUBLE}
_ANY = "pointer"


def differences(source: Path, build: int, native: Path = NATIVE) -> list[str]:
    """What has to be changed in the kernels' headers for the llama.cpp in the folder `source`, a line each.

    Raises SystemExit for headers that cannot be read.
    """
    ours = Declarations('#include "library.h"\n', [native])
    text = "".join(f'#include "{name}"\n' for name in HEADERS)
    theirs = Declarations(text, [source / folder for folder in FOLDERS])
    return [
        *_numbers(ours, theirs, build),
        *_structs(ours, theirs),
        *(line for table in TABLES for line in _functions(ours.structs[table], theirs)),
    ]


class Declarations:
    """What C++ headers declare, by name, whatever the namespace: definitions of structs, numbers that have a
    name, and functions by their name in a library.
    """

    def __init__(self, text: str, folders: list[Path]) -> None:
        arguments = ["-std=c++17", "-nostdinc", "-ferror-limit=0", *(f"-I{folder}" for folder in folders)]
        arguments += [f"-isystem{folder}" for folder in standard_folders()]
        unit = cindex.Index.create().parse("all.cpp", arguments, [("all.cpp", text)])
        self._folders = tuple(map(str, folders))
        wrong = [one for one in unit.diagnostics if one.severity >= cindex.Diagnostic.Error]
        faults = [str(one) for one in wrong if self._is_here(one)]  # GCC's intrinsics are no C++ to libclang
        if faults:
            raise SystemExit("The headers cannot be read:\n" + "\n".join(faults[:10]))
        self.structs: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}
        self.functions: dict[str, Any] = {}
        self._collect(unit.cursor)

    def _is_here(self, found: Any) -> bool:
        """Whether a declaration or a fault is in the given folders."""
        file = found.location.file
        return file is not None and file.name.startswith(self._folders)

    def _collect(self, parent: Any) -> None:
        for cursor in parent.get_children():
            if not self._is_here(cursor):
                continue  # the standard library's
            if cursor.kind in {Cursor.NAMESPACE, Cursor.LINKAGE_SPEC, Cursor.UNEXPOSED_DECL}:
                self._collect(cursor)
            elif cursor.kind in {Cursor.STRUCT_DECL, Cursor.CLASS_DECL} and cursor.is_definition():
                self.structs[cursor.spelling] = cursor
                self._collect(cursor)
            elif cursor.kind is Cursor.ENUM_DECL:
                self.numbers |= {one.spelling: one.enum_value for one in cursor.get_children()}
            elif cursor.kind is Cursor.VAR_DECL and cursor.type.spelling == "const int":
                self.numbers[cursor.spelling] = int(list(cursor.get_tokens())[-1].spelling)
            elif cursor.kind in {Cursor.FUNCTION_DECL, Cursor.CXX_METHOD}:
                self.functions[cursor.mangled_name] = cursor


def standard_folders() -> list[str]:
    """Where the compiler has the standard library's headers, which libclang's wheel lacks."""
    command = ["c++", "-E", "-x", "c++", "-v", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr  # noqa: S603
    listed = said.partition("#include <...> search starts here:\n")[2].partition("End of search list.")[0]
    return listed.split()


def _numbers(ours: Declarations, theirs: Declarations, build: int) -> Iterator[str]:
    for name, number in ours.numbers.items():
        if name == "GGML_BUILD":
            stands_for, right = "the build", build
        else:
            stands_for = NUMBERS.get(name, f"GGML_TYPE_{name.removesuffix('_TYPE')}")
            right = theirs.numbers.get(stands_for, -1)
        if right == -1:
            yield f"{name}: llama.cpp has no {stands_for}"
        elif number != right:
            yield f"{name} is {number}; {stands_for} is {right}"


def _structs(ours: Declarations, theirs: Declarations) -> Iterator[str]:
    for name, cursor in ours.structs.items():
        if name in OWN or name in TABLES:
            continue
        if name not in STRUCTS:
            yield f"{name}: scripts/native_abi.py does not know what it is in llama.cpp"
        elif STRUCTS[name] not in theirs.structs:
            yield f"{name}: llama.cpp has no {STRUCTS[name]}"
        else:
            yield from _struct(cursor, theirs.structs[STRUCTS[name]], MEMBERS.get(name, {}))


def _struct(mine: Any, other: Any, renamed: Mapping[str, str]) -> Iterator[str]:
    name = f"{mine.spelling} ({other.spelling})"
    if mine.type.get_size() != other.type.get_size():
        yield f"{name} has {mine.type.get_size()} bytes, in llama.cpp {other.type.get_size()}"
    own = [(renamed.get(member, member), *place) for member, *place in _members(mine.type)]
    yield from _compared(name, own, list(_members(other.type)))
    yield from _compared(name, list(_virtual(mine)), list(_virtual(other)))


def _compared(name: str, own: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> Iterator[str]:
    """The first difference: what follows is mostly moved by it."""
    for index in range(max(len(own), len(right))):
        mine, other = ((some[index] if index < len(some) else None) for some in (own, right))
        if mine is None or other is None or mine[:2] != other[:2] or not _fits(mine[2], other[2]):
            yield f"{name} has {_told(mine)}, llama.cpp {_told(other)}"
            return


def _told(member: tuple[Any, ...] | None) -> str:
    return "nothing more" if member is None else f"{member[0]} at {member[1]}: {member[2]}"


def _members(of: Any, start: int = 0) -> Iterator[tuple[str, int, str]]:
    """Names, places in bytes, and shapes of a struct's members; of structs in it their members."""
    for field in of.get_fields():
        place = start + of.get_offset(field.spelling) // 8
        if field.type.get_canonical().kind is Kind.RECORD:
            yield from _members(field.type.get_canonical(), place)
        else:
            yield field.spelling, place, _shape(field.type)


def _virtual(of: Any) -> Iterator[tuple[str, int, str]]:
    """Virtual functions in the order of their declaration, which is that of their table."""
    for index, cursor in enumerate(one for one in of.get_children() if _is_virtual(one)):
        is_destructor = cursor.kind is Cursor.DESTRUCTOR
        yield "~" if is_destructor else cursor.spelling, index, _shape(cursor.type)


def _is_virtual(cursor: Any) -> bool:
    return cursor.kind in {Cursor.CXX_METHOD, Cursor.DESTRUCTOR} and bool(cursor.is_virtual_method())


def _functions(table: Any, theirs: Declarations) -> Iterator[str]:
    for field in table.type.get_fields():
        cursor = theirs.functions.get(field.spelling)
        if cursor is None:
            yield f"{field.spelling}: llama.cpp's headers have no such function"
            continue
        mine, right = _shape(field.type.get_canonical().get_pointee()), _shape(cursor.type)
        if cursor.kind is Cursor.CXX_METHOD and not cursor.is_static_method():
            right = f"({_ANY}{', ' if right[1] != ')' else ''}{right[1:]}"
        if mine != right:
            yield f"{field.spelling} is {mine}, in llama.cpp {right}"


def _fits(mine: str, other: str) -> bool:
    """A plain pointer of ours stands for any: what is not called is not declared as a function."""
    return mine == other or (mine == _ANY and other.startswith("("))


def _shape(of: Any) -> str:
    """What a type is to the machine: how it is passed and how many bytes it has."""
    of = of.get_canonical()
    if of.kind is Kind.FUNCTIONPROTO:
        return f"({', '.join(map(_shape, of.argument_types()))}) -> {_shape(of.get_result())}"
    if of.kind in _POINTERS:
        to = of.get_pointee()
        return _shape(to) if to.kind is Kind.FUNCTIONPROTO else _ANY
    if of.kind is Kind.CONSTANTARRAY:
        return f"{of.element_count} x {_shape(of.element_type)}"
    if of.kind is Kind.VOID:
        return "void"
    what = "struct" if of.kind is Kind.RECORD else "float" if of.kind in _FRACTIONS else "whole"
    return f"{what} of {of.get_size()}"
