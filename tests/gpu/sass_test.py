# SPDX-License-Identifier: Apache-2.0
"""What the machine code of the kernels is like, without a GPU: registers that the threads of a block fit in, no spill but where
sass.txt says why, loads and stores as wide as they are there.

  sass_test.py CUDA_VERSION OBJECT...            holds the objects against sass.txt
  sass_test.py --write CUDA_VERSION OBJECT...    writes it anew, keeping the reasons

Needs cuobjdump and nvdisasm of the toolkit or of Python's packages (nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm); 77 and the
reason where they are not, or where the compiler is not the one of sass.txt, whose registers are others.
"""
import os
import re
import shutil
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sass.txt")
REGISTERS = 65536  # of a multiprocessor
HEAD = """# Kernels of libballast-cuda-compute.so: registers at most, bytes of spilled registers, bytes of the widest load and store of
# device memory; then why it spills, where it does. Written by tests/gpu/sass_test.py --write.
"""


def skip(why):
    print("SKIPPED:", why)
    sys.exit(77)


def tool(name):
    folders = os.environ.get("PATH", "").split(os.pathsep) + ["/usr/local/cuda/bin"]
    try:
        import nvidia
        folders += [os.path.join(path, part, "bin") for path in nvidia.__path__ for part in os.listdir(path)]
    except ImportError:
        pass
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        skip(f"no {name}: it is in the CUDA toolkit and in the Python package nvidia-cuda-{name}")
    return found


def output(*command):
    environment = dict(os.environ, PATH=os.path.dirname(command[0]) + os.pathsep + os.environ.get("PATH", ""))
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=True, timeout=300).stdout


def short(names):
    """norm_backward<bl_bf16, true, false, 4> of each mangled name."""
    text = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    clean = [re.sub(r"\((bool|int|unsigned int)\)", "", line) for line in text.split("\n")]
    return dict(zip(names, (re.sub(r"^void ", "", line.split("(")[0]).replace(", ", ",") for line in clean)))


def resources(cuobjdump, file):
    """(architecture, mangled name): registers, spilled bytes."""
    found, arch, name = {}, "", ""
    for line in output(cuobjdump, "--dump-resource-usage", file).splitlines():
        arch = (re.search(r"arch = sm_(\d+)", line) or [None, arch])[1]
        name = (re.search(r"Function (\S+):", line) or [None, name])[1]
        numbers = re.search(r"REG:(\d+) STACK:(\d+)", line)
        if numbers and name != "GLOBAL":
            found[arch, name] = [int(numbers[1]), int(numbers[2])]
    return found


def threads_of(cuobjdump, file):
    """The most threads of a block that each kernel is made for; what says nothing, 1024."""
    found, arch, name, wanted = {}, "", "", False
    for line in output(cuobjdump, "--dump-elf", file).splitlines():
        arch = (re.search(r"arch = sm_(\d+)", line) or [None, arch])[1]
        section = re.match(r"\.nv\.info\.(\S+)", line)
        name = section[1] if section else name
        if wanted:
            value = re.search(r"Value:\s*0x([0-9a-f]+)", line)
            if value:
                found[arch, name], wanted = int(value[1], 16), False
        wanted = wanted or "EIATTR_MAX_THREADS" in line
    return found


def widths(cuobjdump, file):
    """The widest load from and store to device memory, bytes; 0: none."""
    found, arch, name = {}, "", ""
    for line in output(cuobjdump, "-sass", file).splitlines():
        arch = (re.search(r"arch = sm_(\d+)", line) or [None, arch])[1]
        name = (re.search(r"Function : (\S+)", line) or [None, name])[1]
        access = re.search(r"\b(LDG|STG)((?:\.\w+)*)", line)
        if access:
            pair = found.setdefault((arch, name), [0, 0])
            bits = re.search(r"\.(128|64|U8|S8|U16|S16)\b", access[2])
            size = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}.get(bits[1] if bits else "", 4)
            at = 0 if access[1] == "LDG" else 1
            pair[at] = max(pair[at], size)
    return found


def measure(objects):
    cuobjdump = tool("cuobjdump")
    tool("nvdisasm")
    rows = {}
    for file in objects:
        wide, threads = widths(cuobjdump, file), threads_of(cuobjdump, file)
        for key, (registers, stack) in resources(cuobjdump, file).items():
            rows[key] = [registers, stack, *wide.get(key, [0, 0]), threads.get(key, 1024)]
    names = short(sorted({name for _, name in rows}))
    return {(names[name], arch): row for (arch, name), row in rows.items()}


def read():
    version, rows = "", {}
    with open(TABLE) as file:
        for line in file:
            if line.startswith("cuda "):
                version = line.split()[1]
            elif line.strip() and not line.startswith("#"):
                name, arch, registers, stack, load, store, *why = line.rstrip("\n").split(None, 6)
                rows[name, arch] = [int(registers), int(stack), int(load), int(store), " ".join(why)]
    return version, rows


def main():
    writes = sys.argv[1] == "--write"
    version, *objects = sys.argv[2:] if writes else sys.argv[1:]
    if not objects:
        skip("the kernels are not built")
    known_version, known = read() if os.path.exists(TABLE) else ("", {})
    if not writes and version != known_version:
        skip(f"sass.txt is of CUDA {known_version}, the compiler of {version}")
    found = measure(objects)
    if writes:
        with open(TABLE, "w") as file:
            file.write(f"{HEAD}cuda {version}\n")
            for (name, arch), row in sorted(found.items()):
                why = known.get((name, arch), [""])[-1]
                file.write(" ".join([name, arch, *map(str, row[:4]), *([why] if why else [])]) + "\n")
        return 0
    faults = []
    for (name, arch), (registers, stack, load, store, threads) in sorted(found.items()):
        what = f"{name} for {arch}"
        if (registers + 7) // 8 * 8 * threads > REGISTERS:
            faults.append(f"{what}: {registers} registers of {threads} threads are more than {REGISTERS}")
        if (name, arch) not in known:
            faults.append(f"{what} is not in sass.txt")
            continue
        allowed = known[name, arch]
        if registers > allowed[0]:
            faults.append(f"{what}: {registers} registers, {allowed[0]} before")
        if stack > (allowed[1] if allowed[4] else 0):
            faults.append(f"{what}: spills {stack} bytes")
        if load < allowed[2] or store < allowed[3]:
            faults.append(f"{what}: loads {load} and stores {store} bytes at a time, {allowed[2]} and {allowed[3]} before")
    for key in sorted(set(known) - set(found)):
        faults.append(f"{key[0]} for {key[1]} is in sass.txt, and not in the objects")
    print(*faults, f"{len(found)} kernels, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


sys.exit(main())
