# shellcheck shell=bash
# Sourced by scripts/install and scripts/test. From a machine with nothing but a Python it makes:
#   PYTHON  a Python 3.11-3.13
#   CACHE   fimlsp's folder in the user's cache
#   UV      uv at one known version, kept under CACHE
# Works with the bash 3.2 of macOS.

UV_VERSION=0.13

# A user's settings for other projects must not leak into these environments.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV UV_PYTHON UV_SYSTEM_PYTHON UV_PROJECT_ENVIRONMENT
export UV_PYTHON_DOWNLOADS=never

say() { printf '%s\n' "$*"; }
step() { printf '\n==> %s  [%ds]\n' "$*" "$SECONDS"; }
fail() {
  printf '\n%s: %s\n' "${0##*/}" "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit 1
}

# Print "3.11.2" if the command is a Python that fimlsp runs on; else say on stderr what it is.
python_version() {
  "$1" -c '
import sys
version = "%d.%d.%d" % sys.version_info[:3]
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(version)
print(version)' 2>&1
}

find_python() {
  local candidate version found=""
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    command -v "$candidate" >/dev/null || continue
    if version=$(python_version "$candidate"); then
      PYTHON=$("$candidate" -c 'import sys; print(sys.executable)')
      say "Python $version ($PYTHON)"
      return
    fi
    found="$found${found:+, }$candidate ($version)"
  done
  fail "no suitable Python. Expected 3.11, 3.12 or 3.13; found: ${found:-none}." \
    "Debian and Ubuntu: apt install python3 python3-venv. macOS: brew install python@3.13." \
    "If it lies elsewhere: PYTHON=/path/to/python3.12 $0"
}

find_cache() {
  if [ "$(uname)" = Darwin ]; then
    CACHE="${HOME:?is not set}/Library/Caches/fimlsp"
  else
    CACHE="${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/fimlsp"
  fi
  mkdir -p "$CACHE" || fail "can't write the cache folder $CACHE." \
    "Make it writable, or set XDG_CACHE_HOME to a folder that is."
}

# need_room FOLDER MEGABYTES: stop early, not in the middle of an install.
need_room() {
  local free
  free=$("$PYTHON" -c 'import shutil, sys; print(shutil.disk_usage(sys.argv[1]).free >> 20)' "$1")
  [ "$free" -ge "$2" ] || fail "the disk of $1 has $free MB free; this needs about $2 MB." \
    "Make room and run $0 again; it goes on where it stopped."
}

find_uv() {
  local home="$CACHE/tools/uv-$UV_VERSION"
  UV="$home/bin/uv"
  "$UV" --version >/dev/null 2>&1 && python_version "$home/bin/python" >/dev/null 2>&1 && return
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$PYTHON can't make virtual environments (no venv or no ensurepip module)." \
      "Debian and Ubuntu: apt install python3-venv"
  say "Getting uv $UV_VERSION into $home"
  "$PYTHON" -m venv --clear "$home" || fail "could not make a virtual environment in $home."
  "$home/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION.*" ||
    fail "could not fetch uv from the Python package index; its own words are above." \
      "Is there a network? Behind a proxy set HTTPS_PROXY, with a mirror PIP_INDEX_URL and UV_INDEX_URL."
}

# make_environment FOLDER: make the virtual environment unless a good one with a right Python is there.
make_environment() {
  python_version "$1/bin/python" >/dev/null 2>&1 && return
  "$UV" venv --quiet --clear --python "$PYTHON" "$1" ||
    fail "could not make a virtual environment in $1; see above."
}

# install_into FOLDER ARGUMENT...: uv pip install from wheels alone. A package without one is an
# error at once and not a build of ten minutes.
install_into() {
  local folder=$1
  shift
  "$UV" pip install --python "$folder/bin/python" --only-binary :all: "$@" ||
    fail "installing the packages failed; uv's own words are above." \
      "No network: run $0 again when there is one; what has arrived is kept."
}

# install_llama_cpp FOLDER ARGUMENT...: fimlsp with llama-cpp-python, which has no wheel and is
# compiled unless that was done before. It comes first: a failed build should fail early.
install_llama_cpp() {
  local folder=$1 wheel
  shift
  wheel=$("${UV%/uv}/python" scripts/native_wheel.py "$CACHE") ||
    fail "compiling llama-cpp-python failed; its own words are above." \
      "It needs a C++ compiler and cmake (Debian and Ubuntu: apt install g++ cmake)."
  install_into "$folder" "$wheel" --editable '.[llama-cpp]' "$@"
}

has_module() { "$1/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$2') is None)"; }
