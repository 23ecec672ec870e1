"""Installs what tests need from outside: Python and Node packages into a cache folder, Debian packages as a last resort.

Python's standard library only.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def succeeds(step, cwd=None):
    return subprocess.run([str(part) for part in step], cwd=cwd).returncode == 0


def add_package(name):
    """Installs a Debian package when this may do so; Debian keeps `venv` and `npm` apart from Python and Node."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    print(f"installing the package {name}", flush=True)
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    return succeeds(["apt-get", "update", "-qq"]) and succeeds(["apt-get", "install", "-y", "-qq", name])


def install(folder, wanted, steps):
    """Runs `steps` in an empty folder, unless it already holds what the file `wanted` asks for.

    A step that fails is tried again with the Debian package that it may lack.
    """
    mark = hashlib.sha256(wanted.read_bytes()).hexdigest()
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == mark:
        return
    print(f"installing {wanted.relative_to(TOP)} into {folder.relative_to(TOP)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(wanted, folder)
    for step, package in steps:
        there = shutil.which(str(step[0])) or (folder / step[0]).exists()
        if not (there and succeeds(step, folder)) and not (add_package(package) and succeeds(step, folder)):
            sys.exit(f"`{' '.join(map(str, step))}` failed; it needs the package {package} and its registry")
    stamp.write_text(mark)


def find_or_add(programs, package):
    """The first of these programs that there is; else the one that a Debian package brings; else an end that says so."""
    found = next(filter(None, map(shutil.which, programs)), None)
    if not found and add_package(package):
        found = next(filter(None, map(shutil.which, programs)), None)
    if not found:
        sys.exit(f"none of {', '.join(programs)} is installed, and the package {package} could not be added")
    return found
