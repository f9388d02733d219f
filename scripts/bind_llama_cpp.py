"""Write `backends/llamacpp/abi.py`: the part of llama.cpp's C API that Foredraft uses, from its headers.

    python scripts/bind_llama_cpp.py                  the pinned version, after using another function
    python scripts/bind_llama_cpp.py 2026.11.12000    another version of xllamacpp, whose end is the build

What is used is looked up: every `lib.NAME` and `abi.NAME` in the sources. The headers are those in the source
distribution of the wheel that Foredraft runs on, so both are the same llama.cpp. For a new version the pin in
pyproject.toml is changed, too. What the kernels take for llama.cpp's binary interface (`native/ggml_abi.h`)
is compared with the same headers (`native_abi.py`), and what differs is listed, to be changed by hand; the
exit code is then 1. What is left is to install it and run the tests.

Needs pip, a C++ compiler's headers, and libclang from PyPI. Structs are compared field by field with the
compiler's layout before anything is written. The default parameters of the library are recorded, so that one
whose structs differ is noticed when it is loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import native_abi
from clang import cindex

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "src/foredraft/backends/llamacpp/abi.py"
PROJECT = ROOT / "pyproject.toml"
READ = ("src", "tests", "benchmarks", "lab", "nightly")
HEADERS = ("llama.h", "ggml.h", "ggml-backend.h", "ggml-cpu.h", "gguf.h", "mtmd.h")
FOLDERS = ("include", "ggml/include", "tools/mtmd")

PIN = re.compile(r"xllamacpp==([\d.]+)")
BINDING = ROOT / "src/foredraft/backends/llamacpp/binding.py"
RECORDED = {"LLAMA_VERSION", "GGML_VERSION"}
"""Constants that come from the library, not from a header."""

QUOTED = re.compile(r"\"((?:llama|ggml)_\w+)\"")
USED = re.compile(r"\b(?:lib|abi)\.((?:llama|ggml|gguf|mtmd|LLAMA|GGML|GGUF|MTMD)_\w+)")
NUMBER = re.compile(r"^\(?\s*(-?(?:0x[0-9a-fA-F]+|\d+))[uUlL]*\s*\)?$")

Kind = cindex.TypeKind
SCALARS = {
    Kind.BOOL: "ctypes.c_bool",
    Kind.FLOAT: "ctypes.c_float",
    Kind.DOUBLE: "ctypes.c_double",
}
WHOLE = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
SIGNED = {Kind.CHAR_S, Kind.SCHAR, Kind.SHORT, Kind.INT, Kind.LONG, Kind.LONGLONG}
UNSIGNED = {Kind.CHAR_U, Kind.UCHAR, Kind.USHORT, Kind.UINT, Kind.ULONG, Kind.ULONGLONG}
PYTHON = {
    "ctypes.c_bool": "bool",
    "ctypes.c_float": "float",
    "ctypes.c_double": "float",
    "None": "None",
    "ctypes.c_char_p": "bytes | None",
}


class Api:
    """The declarations of the headers, by name; and what has been written of them."""

    def __init__(self, source: Path) -> None:
        arguments = [f"-I{source / folder}" for folder in FOLDERS]
        arguments.append(f"-I{compiler_headers()}")
        text = "".join(f'#include "{header}"\n' for header in HEADERS)
        unit = cindex.Index.create().parse(
            "all.c", arguments, [("all.c", text)], cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
        )
        faults = [str(fault) for fault in unit.diagnostics if fault.severity >= cindex.Diagnostic.Error]
        if faults:
            raise SystemExit("The headers cannot be read:\n" + "\n".join(faults))
        self.functions: dict[str, Any] = {}
        self.structs: dict[str, Any] = {}
        self.enums: dict[str, Any] = {}
        self.typedefs: dict[str, Any] = {}
        self.constants: dict[str, int] = {}
        for cursor in unit.cursor.get_children():
            self._add(cursor)
        self.written: list[str] = []
        self.done: set[str] = set()

    def _add(self, cursor: Any) -> None:
        name, kind = cursor.spelling, cursor.kind
        if kind is cindex.CursorKind.FUNCTION_DECL:
            self.functions[name] = cursor
        elif kind is cindex.CursorKind.STRUCT_DECL and cursor.is_definition():
            self.structs[name] = cursor
        elif kind is cindex.CursorKind.ENUM_DECL:
            self.enums[name] = cursor
            self.constants |= {one.spelling: one.enum_value for one in cursor.get_children()}
        elif kind is cindex.CursorKind.TYPEDEF_DECL:
            self.typedefs[name] = cursor.underlying_typedef_type
        elif kind is cindex.CursorKind.MACRO_DEFINITION:
            body = "".join(token.spelling for token in list(cursor.get_tokens())[1:])
            if found := NUMBER.match(body):
                self.constants[name] = int(found[1], 0)

    def require(self, name: str) -> None:
        """Write a struct, an enum or a type by its name, after what it needs."""
        if name in self.done:
            return
        self.done.add(name)
        if name in self.structs:
            self.written.append(self._struct(name))
        elif name in self.enums:
            members = [f"    {one.spelling} = {one.enum_value}" for one in self.enums[name].get_children()]
            self.written.append("\n".join([f"class {name}(IntEnum):", *members]))
        elif name in self.typedefs:
            self.written.append(f"{name} = {self.ctype(self.typedefs[name])}")
        else:
            raise SystemExit(f"llama.cpp's headers have no {name}.")

    def _struct(self, name: str) -> str:
        fields = list(self.structs[name].type.get_fields())
        types = [self.ctype(field.type) for field in fields]
        lines = [f"class {name}(ctypes.Structure):"]
        lines += [f"    {field.spelling}: {python(of)}" for field, of in zip(fields, types, strict=True)]
        lines += ["    _fields_ = ("]
        lines += [f'        ("{field.spelling}", {of}),' for field, of in zip(fields, types, strict=True)]
        return "\n".join([*lines, "    )"])

    def ctype(self, of: Any) -> str:
        """The expression of a ctypes type."""
        if of.kind is Kind.TYPEDEF and of.spelling.removeprefix("const ") in self.typedefs:
            canonical = of.get_canonical()
            if canonical.kind is Kind.POINTER and canonical.get_pointee().kind is Kind.FUNCTIONPROTO:
                self.require(of.spelling)
                return str(of.spelling)
        of = of.get_canonical()
        if of.kind is Kind.VOID:
            return "None"
        if of.kind is Kind.ENUM:
            return "ctypes.c_int"
        if of.kind in SCALARS:
            return SCALARS[of.kind]
        if of.kind in SIGNED | UNSIGNED:
            sign = "" if of.kind in SIGNED else "u"
            return f"ctypes.c_{sign}{WHOLE[of.get_size()]}"
        if of.kind is Kind.RECORD:
            name = of.get_declaration().spelling
            self.require(name)
            return str(name)
        if of.kind is Kind.CONSTANTARRAY:
            return f"{self.ctype(of.element_type)} * {of.element_count}"
        if of.kind is Kind.POINTER:
            return self._pointer(of.get_pointee())
        raise SystemExit(f"No ctypes type is known for {of.spelling}.")

    def _pointer(self, to: Any) -> str:
        if to.kind is Kind.FUNCTIONPROTO:
            signature = [self.ctype(to.get_result()), *map(self.ctype, to.argument_types())]
            return f"ctypes.CFUNCTYPE({', '.join(signature)})"
        if to.kind in {Kind.CHAR_S, Kind.CHAR_U}:
            return "ctypes.c_char_p"
        if to.kind is Kind.POINTER or to.kind in SIGNED | UNSIGNED or to.kind in SCALARS:
            return f"ctypes.POINTER({self.ctype(to)})"
        return "ctypes.c_void_p"

    def function(self, name: str) -> tuple[str, list[str]]:
        """The types of a function's result and arguments."""
        if name not in self.functions:
            raise SystemExit(f"llama.cpp's headers have no function {name}.")
        cursor = self.functions[name]
        return self.ctype(cursor.result_type), [self.ctype(one.type) for one in cursor.get_arguments()]


def python(of: str) -> str:
    """What a value of this ctypes type is in Python; Any for pointers and callbacks."""
    if of in PYTHON:
        return PYTHON[of]
    if of.startswith(("ctypes.c_int", "ctypes.c_uint")) and " * " not in of:
        return "int"
    return of if of.isidentifier() and not of.endswith("callback") else "Any"


def compiler_headers() -> str:
    """The folder of stddef.h and the like, which libclang's wheel lacks."""
    command = ["cc", "-print-file-name=include"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def used() -> set[str]:
    """The names that the sources use."""
    files = [file for folder in READ for file in (ROOT / folder).rglob("*.py") if file != TARGET]
    names = {name for file in files for name in USED.findall(file.read_text(encoding="utf-8"))}
    return (names | set(QUOTED.findall(BINDING.read_text(encoding="utf-8")))) - RECORDED


def text(api: Api, names: set[str], version: str) -> str:
    """The module's text, without the recorded defaults."""
    functions = {name: api.function(name) for name in sorted(names & set(api.functions))}
    for name in sorted(names - set(api.functions) - set(api.constants)):
        api.require(name)
    constants = [f"{name}: Final = {api.constants[name]}" for name in sorted(names & set(api.constants))]
    build = version.rpartition(".")[2]
    lines = [
        f'"""llama.cpp\'s C API, build {build}, as far as Foredraft uses it: structs, constants, functions.',
        "",
        "Written by scripts/bind_llama_cpp.py; do not edit.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import ctypes",
        "from collections.abc import Callable",
        "from enum import IntEnum",
        "from typing import Any, Final",
        "",
        f'VERSION: Final = "{version}"',
        '"""The version of the xllamacpp package with this llama.cpp."""',
        "",
        *constants,
        "",
        *("\n" + one + "\n" for one in api.written),
        "",
        "class Functions:",
        '    """The functions, as attributes of a loaded library."""',
        "",
        *(f"    {name}: {called(*types)}" for name, types in functions.items()),
        "",
        "",
        "SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {",
        *(
            f'    "{name}": ({result}, ({arguments_of(types)})),'
            for name, (result, types) in functions.items()
        ),
        "}",
        '"""The ctypes types of each function\'s result and arguments."""',
        "",
    ]
    return "\n".join(lines)


def arguments_of(types: list[str]) -> str:
    return ", ".join(types) + ("," if len(types) == 1 else "")


def called(result: str, types: list[str]) -> str:
    """The Python type of a function."""
    given = ["Any" if "POINTER" in of or of.endswith("_p") else python(of) for of in types]
    return f"Callable[[{', '.join(given)}], {python(result)}]"


def module(source: str) -> Any:
    """The written module, executed."""
    spec = importlib.util.spec_from_loader("abi", loader=None)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["abi"] = found
    exec(compile(source, "abi.py", "exec"), found.__dict__)  # noqa: S102 - written here
    return found


def check_layout(api: Api, abi: Any) -> None:
    """Exit if ctypes places a field elsewhere than the C compiler."""
    for name, cursor in api.structs.items():
        mine = getattr(abi, name, None)
        if mine is None:
            continue
        places = {
            field.spelling: cursor.type.get_offset(field.spelling) // 8 for field in cursor.type.get_fields()
        }
        found = {field: getattr(mine, field).offset for field, *_ in mine._fields_}
        if found != places or ctypes.sizeof(mine) != cursor.type.get_size():
            raise SystemExit(f"ctypes lays out {name} otherwise than C: {found} in place of {places}.")


def defaults(abi: Any, library: Path) -> Iterator[str]:
    """Lines with the values of llama.cpp's default parameters, and its version."""
    handle = ctypes.CDLL(str(library))
    for name in ("llama_version", "ggml_version"):
        function = getattr(handle, name)
        function.restype = ctypes.c_char_p
        yield f'{name.upper()}: Final = "{function().decode()}"\n"""What `{name}` returns."""\n'
    yield "DEFAULTS: Final[dict[str, dict[str, int | float | bool]]] = {"
    for name in sorted(abi.SIGNATURES):
        if not name.endswith("_default_params") or not name.startswith("llama_"):
            continue
        result, _ = abi.SIGNATURES[name]
        function = getattr(handle, name)
        function.restype, function.argtypes = result, ()
        values = function()
        yield f'    "{name}": {{'
        for field, of in result._fields_:
            if isinstance(value := getattr(values, field), (bool, int, float)) and of is not ctypes.c_void_p:
                yield f'        "{field}": {value!r},'
        yield "    },"
    yield "}"
    yield '"""What these functions return: other values mean that a library has other structs."""'


def unpacked(version: str, folder: Path) -> Path:
    """llama.cpp's sources, from the source distribution of this version."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "xllamacpp"]
    subprocess.run([*command, "-d", str(folder), f"xllamacpp=={version}"], check=True)  # noqa: S603
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "thirdparty/llama.cpp"


def library(version: str, folder: Path) -> Path:
    """The wheel's library of this version."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", "xllamacpp"]
    subprocess.run([*command, "-d", str(folder), f"xllamacpp=={version}"], check=True)  # noqa: S603
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    (found,) = (folder / "wheel/xllamacpp").glob("xllamacpp*.so")
    return found


def main() -> None:
    """Write the module, and the pin if the version is another one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?", help="of xllamacpp; the pinned one by default")
    project = PROJECT.read_text(encoding="utf-8")
    pinned = PIN.search(project)
    assert pinned is not None
    version = parser.parse_args().version or pinned[1]
    with tempfile.TemporaryDirectory() as folder:
        headers = unpacked(version, Path(folder))
        api = Api(headers)
        source = text(api, used(), version)
        abi = module(source)
        check_layout(api, abi)
        source += "\n" + "\n".join(defaults(abi, library(version, Path(folder)))) + "\n"
        different = native_abi.differences(headers, int(version.rpartition(".")[2]))
    TARGET.write_text(source, encoding="utf-8")
    PROJECT.write_text(PIN.sub(f"xllamacpp=={version}", project), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)], check=True)  # noqa: S603
    print(f"{TARGET.relative_to(ROOT)}: xllamacpp {version}, {len(abi.SIGNATURES)} functions")
    if different:
        raise SystemExit("\n".join(["To be changed in native/ggml_abi.h and native/library.h:", *different]))


if __name__ == "__main__":
    main()
