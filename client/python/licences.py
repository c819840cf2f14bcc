# SPDX-License-Identifier: Apache-2.0
"""usage: licences.py WHEEL_FOLDER LIBRARY...

Writes the licences of a wheel that was unpacked: into its dist-info/licenses/, the project's own, and THIRD_PARTY: which of Debian's
packages the libraries in *.libs come from, under which licence, and what their authors want said (Debian's copyright files, which
tell of the whole source, tests and build files included); and NVIDIA's, where CUDA's runtime is in the extension. LIBRARY...: paths of
what was bundled, before it was renamed. Fails for a library of a package whose licence nobody has looked at yet.
"""
import glob
import pathlib
import re
import shutil
import subprocess
import sys

# Of the library itself. Where its source offers two, the one that we take: of zstd, BSD, not GPL.
LICENCES = {
    "libabsl20220623": "Apache-2.0",
    "libc-ares2": "MIT",
    "libevent-core-2.1-7": "BSD-3-Clause",
    "libgrpc29": "Apache-2.0",
    "libprotobuf-c1": "BSD-2-Clause",
    "libre2-9": "BSD-3-Clause",
    "libssl3": "Apache-2.0",
    "libxxhash0": "BSD-2-Clause",
    "libzstd1": "BSD-3-Clause",
}
# Linked into the extension where nvcc was found. NVIDIA lets others hand it on inside of programs (Attachment A of its text).
CUDA_MARK = b"libcudart_static_"
CUDA_TEXTS = ("/usr/local/cuda/EULA.txt", "/usr/local/cuda/dist-info/nvidia_cuda_runtime-*/licenses/*", "/usr/share/doc/libcudart*/copyright")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def asked(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def package_of(path):
    """Debian's, with its version."""
    for name in (path, path.removeprefix("/usr")):  # dpkg knows some of /usr/lib as /lib
        found = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if found.returncode == 0:
            package = found.stdout.split(":")[0]
            return package, asked("dpkg-query", "-W", "-f", "${Version}\n", package).splitlines()[0]
    raise SystemExit(f"licences.py: {path} is of no package")


def sources(libraries):
    """Name of a library -> where it is; by its link's name and by the file's own."""
    paths = [(pathlib.Path(library), pathlib.Path(library).resolve()) for library in libraries]
    return {name: str(real) for path, real in paths for name in (path.name, real.name)}


def third_party(bundled, libraries):
    """The text for these file names."""
    known, packages = sources(libraries), {}
    for name in sorted(bundled):
        plain = re.sub(r"-[0-9a-f]{8}(?=\.)", "", name)  # auditwheel's mark
        if plain not in known:
            raise SystemExit(f"licences.py: {name}: none of the libraries given")
        package, version = package_of(known[plain])
        if package not in LICENCES:
            raise SystemExit(f"licences.py: {plain} is of {package}: look at its licence, then add it to LICENCES")
        packages.setdefault((package, version), []).append(name)
    lines = ["Libraries that this wheel brings, as Debian 12 built them. The text of Apache-2.0 is in LICENSE beside.", ""]
    for (package, version), names in packages.items():
        lines += [f"{package} {version}: {LICENCES[package]}", *(f"    {name}" for name in names)]
    for package, version in packages:
        text = pathlib.Path("/usr/share/doc", package, "copyright").read_text(encoding="utf-8", errors="replace")
        lines += ["", "=" * 80, f"{package} {version}", "=" * 80, text]
    return "\n".join(lines) + "\n"


def cuda():
    """The text for an extension that has CUDA's runtime inside."""
    texts = [path for pattern in CUDA_TEXTS for path in glob.glob(pattern)]
    if not texts:
        raise SystemExit(f"licences.py: NVIDIA's licence is not at {', '.join(CUDA_TEXTS)}: put it there, or build with MILLRACE_CUDA=OFF")
    text = pathlib.Path(texts[0]).read_text(encoding="utf-8", errors="replace")
    return "\n".join(["", "=" * 80, "NVIDIA CUDA runtime, in millrace/_core.abi3.so", "=" * 80, text])


def main(folder, *libraries):
    [info] = pathlib.Path(folder).glob("*.dist-info")
    (info / "licenses").mkdir(exist_ok=True)
    shutil.copy(ROOT / "LICENSE", info / "licenses")
    bundled = [path.name for path in pathlib.Path(folder).glob("*.libs/*")]
    text = third_party(bundled, libraries)
    if any(CUDA_MARK in path.read_bytes() for path in pathlib.Path(folder).glob("millrace/*.so")):
        text += cuda()
    (info / "licenses" / "THIRD_PARTY").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
