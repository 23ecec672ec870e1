"""`make fuzz SECONDS=600`: builds the targets with coverage and tries inputs, the seconds shared between all targets.

    python3 tests/fuzz/run.py [--seconds N] [--target NAME]... [--keep]

The stable toolchain is enough: rustc passes LLVM what libFuzzer needs. A finding is written to `tests/fuzz/findings`;
mend it and put the file into the target's folder of `tests/fuzz/corpus`, where `make test` replays it. `--keep` takes a
sample of the inputs that reach something new into that corpus, as far as its limit of 100 KiB goes.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))
from packages import find_or_add  # noqa: E402

CORPUS_BYTES_MAX = 100 * 1024
# Of each target so many are kept beside those with names, short and long ones.
KEPT_MAX = 40
# Counters and a table of the code for coverage, and comparisons, so that the fuzzer learns the words it has to say.
COVERAGE = ["-Cpasses=sancov-module", "-Ccodegen-units=1"] + [
    f"-Cllvm-args=-sanitizer-coverage-{what}"
    for what in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")]


def main():
    arguments = argparse.ArgumentParser(description="fuzzes the code that meets bytes of strangers")
    arguments.add_argument("--seconds", type=int, default=600)
    arguments.add_argument("--target", action="append", default=[])
    arguments.add_argument("--keep", action="store_true")
    options = arguments.parse_args()
    program = build()
    listed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    targets = dict(line.split() for line in listed.splitlines())
    chosen = options.target or list(targets)
    unknown = [name for name in chosen if name not in targets]
    if unknown:
        sys.exit(f"no target {', '.join(unknown)}; there are: {', '.join(targets)}")
    seconds = max(1, options.seconds // len(chosen))
    results = [fuzz(program, name, targets[name], seconds, options.keep) for name in chosen]
    print(f"{'target':10} {'inputs':>12} {'a second':>9} {'coverage':>9}  finding")
    for name, inputs, coverage, finding in results:
        print(f"{name:10} {inputs:>12,} {inputs // seconds:>9,} {coverage:>9}  {finding or 'none'}")
    sys.exit(any(finding for *_, finding in results))


def build():
    find_or_add(["c++", "g++", "clang++"], "g++")
    host = re.search(r"host: (\S+)", subprocess.run(["rustc", "-vV"], capture_output=True, text=True).stdout)[1]
    # With a target named, build scripts and macros are built without these flags, which need the fuzzer's runtime.
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--target", host, "--manifest-path",
               HERE / "Cargo.toml"]
    if subprocess.run(command, env={**os.environ, "RUSTFLAGS": " ".join(COVERAGE)}).returncode:
        sys.exit("the fuzz targets were not built")
    return HERE / "target" / host / "release" / "fuzz"


def fuzz(program, name, bytes_max, seconds, keep):
    """Tries inputs for one target: its name, how many, what they covered, and the file of a finding."""
    corpus, grown = HERE / "corpus" / name, HERE / "target" / "grown" / name
    findings = HERE / "findings"
    for folder in (corpus, grown, findings):
        folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "FUZZ_TARGET": name}
    command = [program, grown, corpus, f"-max_total_time={seconds}", f"-max_len={bytes_max}", "-timeout=10",
               "-rss_limit_mb=1024", "-print_final_stats=1", "-use_value_profile=1", f"-artifact_prefix={findings}/{name}-"]
    words = HERE / f"{name}.dict"
    if words.exists():
        command.append(f"-dict={words}")
    ran = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, errors="replace")
    inputs = re.search(r"number_of_executed_units:\s*(\d+)", ran.stderr)
    coverage = re.findall(r"\bcov: (\d+)", ran.stderr)
    finding = None
    if ran.returncode:
        written = re.search(r"Test unit written to (\S+)", ran.stderr)
        finding = written[1] if written else f"exit status {ran.returncode}"
        print(f"{name}: {finding}\n" + "\n".join(ran.stderr.splitlines()[-60:]), file=sys.stderr)
    if keep and not finding:
        keep_some(program, env, name, corpus, grown)
    return name, int(inputs[1]) if inputs else 0, int(coverage[-1]) if coverage else 0, finding


def keep_some(program, env, name, corpus, grown):
    """Puts a sample of the inputs that together reach all that was reached in the place of the last one."""
    merged = grown.parent / f"{name}-merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    subprocess.run([str(program), "-merge=1", "-use_value_profile=0", merged, corpus, grown], env=env,
                   capture_output=True, check=True)
    # Findings and seeds have names; these are called by their digests.
    for file in corpus.iterdir():
        if re.fullmatch(r"[0-9a-f]{16}", file.name):
            file.unlink()
    share = CORPUS_BYTES_MAX * 9 // 10 // len(list((HERE / "corpus").iterdir()))
    used = sum(file.stat().st_size for file in corpus.iterdir())
    found = sorted(merged.iterdir(), key=lambda one: (one.stat().st_size, one.name))
    for file in found[::-(-len(found) // KEPT_MAX) or 1]:
        size = file.stat().st_size
        if used + size <= share:
            shutil.copy(file, corpus / file.name[:16])
            used += size


if __name__ == "__main__":
    main()
