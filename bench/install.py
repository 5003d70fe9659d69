#!/usr/bin/env python3
"""What installing costs: from a clone to the first answer, the size on disk, the time of --version.

    bench/install.py [-o FILE] [--no-clone] [--both] [--packages FOLDER]

Clones this repository's last commit into a temporary folder and runs `make demo` there with its input
closed and without a compiler cache. FILE keeps one figure with nvcc and one without, so that a second run
where there is none adds to it; --both measures both here, the second with the folders of CUDA hidden (root). Packages of the system must be there (scripts/setup demo), and so must a
model or a network. Wall time depends on what else runs, CPU time (user and system, of all processes) much
less; the load before the run is told. --packages FOLDER takes the sizes of packages that scripts/make-deb
made.
"""
import argparse, glob, json, os, pathlib, resource, shutil, subprocess, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def timed(command, **options):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL, **options)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(wall, 1), round(cpu, 1), done.stdout


# In a mount namespace of its own, what is hidden there is there for everybody else.
HIDE_CUDA = """for d in /usr/local/cuda*; do [ -L "$d" ] || mount -t tmpfs none "$d"; done
while nvcc=$(command -v nvcc); do mount --bind /dev/null "$(readlink -f "$nvcc")" || exit 1; done
exec "$@"
"""


def clone_to_chat(nvcc, hide=False):
    environment = {k: v for k, v in os.environ.items() if "LAUNCHER" not in k and not k.startswith("CCACHE")}
    environment["CCACHE_DISABLE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        load = os.getloadavg()[0]
        clone = timed(["git", "clone", "-q", str(ROOT), folder + "/kermes"])
        line = ["unshare", "-m", "sh", "-c", HIDE_CUDA, "sh"] if hide else []
        wall, cpu, said = timed([*line, "make", "demo"], cwd=folder + "/kermes", env=environment)
        return {"nvcc": nvcc, "wall_s": round(clone[0] + wall, 1), "cpu_s": round(clone[1] + cpu, 1),
                "load_before": round(load, 1), "niceness": os.nice(0), "answer": said[said.rfind("> "):].splitlines()[:2]}


def version_time(kermes):
    times = []
    for _ in range(200):
        start = time.perf_counter()
        subprocess.run([kermes, "--version"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(200):
        subprocess.run([kermes, "--version"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 200
    times.sort()
    return {"median_ms": round(times[100] * 1e3, 2), "least_ms": round(times[0] * 1e3, 2), "cpu_ms": round(cpu * 1e3, 2)}


def package_sizes(folder):
    sizes = {}
    for deb in sorted(glob.glob(folder + "/*.deb")):
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["dpkg-deb", "-x", deb, place], check=True)
            size = sum(os.lstat(f).st_size for f in glob.glob(place + "/**", recursive=True) if os.path.isfile(f))
            name = os.path.basename(deb).split("_")[0]
            sizes[name] = {"installed_bytes": size, "package_bytes": os.path.getsize(deb)}
            if name == "kermes":
                sizes[name]["version"] = version_time(place + "/usr/bin/kermes")
    return sizes


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", default=None)
    p.add_argument("--no-clone", action="store_true")
    p.add_argument("--both", action="store_true")
    p.add_argument("--packages")
    a = p.parse_args()
    cpu = next((x.split(":")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "?")
    out = {"kind": "install", "date": time.strftime("%Y-%m-%d"), "cpu": cpu, "cores": len(os.sched_getaffinity(0)),
           "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True,
                                    capture_output=True).stdout.strip(),
           "command": "bench/install.py"}
    if a.o and os.path.exists(a.o):
        out = {**json.load(open(a.o)), **out}
    if a.packages:
        out["packages"] = package_sizes(a.packages)
    if not a.no_clone:
        found = shutil.which("nvcc") or glob.glob("/usr/local/cuda*/bin/nvcc")
        mine = [clone_to_chat(bool(found))]
        if a.both and found:
            mine.append(clone_to_chat(False, hide=True))
        kept = [c for c in out.get("clone_to_chat", []) if c["nvcc"] not in [m["nvcc"] for m in mine]]
        out["clone_to_chat"] = kept + mine
    text = json.dumps(out, indent=1) + "\n"
    if a.o:
        open(a.o, "w").write(text)
    print(text, end="")


if __name__ == "__main__":
    main()
