"""Lets a PyTorch built for CUDA start without CUDA's libraries, to compute on the CPU.

PyTorch's own libraries name CUDA's by file name and by versioned function. One empty library takes all these names; each
function in it answers 100, CUDA's "no device". On a build without CUDA nothing is missing and nothing is done.
"""
import re

from .common import run

FOREIGN_FILE = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nccl|nv)[^\]]*)\]")
FOREIGN_FUNCTION = re.compile(r"_*(?:cu|nccl|nv)\w*$")
ANSWERS_TEXT = re.compile("String|ErrorName")


def install(folder):
    """Puts the empty library and its names into PyTorch's `lib` folder. Needs gcc and binutils."""
    libraries = [*folder.glob("libtorch*.so"), *folder.glob("libc10*.so")]
    files = set(FOREIGN_FILE.findall(run("readelf", "-d", *libraries)))
    if not files:
        return
    functions = {}
    for line in run("nm", "-D", "--undefined-only", *libraries).splitlines():
        name, _, version = line.split(" ")[-1].partition("@")
        if FOREIGN_FUNCTION.match(name):
            functions[name] = version
    code = "".join(f'const char *{name}(void) {{ return "no CUDA"; }}\n' if ANSWERS_TEXT.search(name)
                   else f"int {name}(void) {{ return 100; }}\n" for name in functions)
    versions = "".join(f"{version} {{ {' '.join(f'{n};' for n, v in functions.items() if v == version)} }};\n"
                       for version in sorted(set(functions.values()) - {""}))
    script = folder / "no_cuda.map"
    script.write_text(versions)
    run("gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", folder / "libno_cuda.so", f"-Wl,--version-script={script}",
        input=code)
    for file in files:
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to("libno_cuda.so")
