"""Makes kermes/_abi.py, what cffi knows of the library, from include/kermes.h itself.

Nothing is declared twice: structs, enums and functions are read from the header, expanded by the C
preprocessor, and written as the tables that cffi loads without a compiler.

Usage: make_abi.py HEADER OUTPUT [CC]
"""
import os
import re
import subprocess
import sys

import cffi


def declarations(header: str, cc: str) -> str:
    """The header's declarations in plain C, macros expanded, system headers left out."""
    with open(header, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"^\s*#\s*include.*$", "", text, flags=re.M)
    done = subprocess.run(
        [cc, "-E", "-P", "-x", "c", "-U__GNUC__", "-U__cplusplus", "-"],
        input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"make_abi: {cc} could not preprocess {header}: {done.stderr.strip()}")
    # Calls that C compiles into the program; here their NAME_sized is called (_library.given).
    return re.sub(r"static inline [^;{]*(;|\{[^}]*\})", "", done.stdout)


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: make_abi.py HEADER OUTPUT [CC]")
    header, output = sys.argv[1:3]
    cc = sys.argv[3] if len(sys.argv) == 4 else "cc"
    ffi = cffi.FFI()
    ffi.cdef(declarations(header, cc), override=True)
    ffi.set_source("kermes._abi", None)
    beside = f"{output}.{os.getpid()}"
    ffi.emit_python_code(beside)
    os.replace(beside, output)


if __name__ == "__main__":
    main()
