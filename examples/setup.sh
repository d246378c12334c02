# Sourced by quickstart.sh and tests/run.sh from the checkout's top folder: installs what is missing, says each step.
# Nothing is done twice: once set up, no network is needed. Variables: TENSILE_PYTHON (the interpreter to use),
# TENSILE_TORCH (what pip installs as torch, e.g. "torch==2.13.0"; else the build that the NVIDIA driver runs, or the CPU build).

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# What of Debian's packages is missing, one line. Programs are asked for, not packages: any origin will do.
missing_packages() {
  python=${TENSILE_PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || printf 'python3 '
  "$python" -c 'import ensurepip, venv' 2>/dev/null || printf 'python3-venv '
  "$python" -c 'import pathlib, sysconfig, sys; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' \
    2>/dev/null || printf 'python3-dev '
  command -v c++ >/dev/null || printf 'g++ '
  command -v cmake >/dev/null || printf 'cmake '
  command -v ninja >/dev/null || printf 'ninja-build '
  ls /usr/share/postgresql/*/extension/plpython3u.control >/dev/null 2>&1 || printf 'postgresql postgresql-plpython3 '
}

# Install with apt-get what the function `$1` lists (missing_packages where it is not given).
install_packages() {
  missing=${1:-missing_packages}
  wanted=$($missing)
  [ -z "$wanted" ] && return 0
  if [ "$(id -u)" -eq 0 ]; then as_root=; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=sudo; else
    as_root=none
  fi
  command -v apt-get >/dev/null || die "these are missing, and there is no apt-get to install them with: $wanted"
  case "$wanted" in
    *postgresql*)
      version=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
      if [ -z "$version" ] && [ "$as_root" != none ]; then
        say "refresh the list of Debian's packages"
        $as_root apt-get update -qq || die "apt-get update failed: check the network and /etc/apt/sources.list"
        version=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
      fi
      version=${version:-15}
      wanted=$(printf '%s' "$wanted" | sed "s/postgresql postgresql-plpython3/postgresql-$version postgresql-plpython3-$version/")
      ;;
  esac
  if [ "$as_root" = none ]; then
    die "system packages are missing and this user is neither root nor may use sudo; ask an administrator for:
  apt-get install --no-install-recommends $wanted"
  fi
  say "install Debian's packages: $wanted"
  # A server package makes and starts a cluster of its own unless told otherwise; ours is private.
  quiet=/etc/postgresql-common/createcluster.d/tensile-setup.conf
  $as_root mkdir -p /etc/postgresql-common/createcluster.d
  printf 'create_main_cluster = false\n' | $as_root tee "$quiet" >/dev/null
  code=0
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $wanted >.cache/apt.log 2>&1 ||
    { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends $wanted >.cache/apt.log 2>&1; } || code=$?
  $as_root rm -f "$quiet"
  [ "$code" -eq 0 ] || die "apt-get could not install $wanted: see .cache/apt.log"
  [ -z "$($missing)" ] || die "still missing after the installation: $($missing)"
}

# A stamp per step holds the digest of what it was made from.
fresh() { [ -f ".venv/.$1" ] && [ "$(cat ".venv/.$1")" = "$2" ]; }

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" || die "pip could not install: $*"; }

# The directory that WSL2 puts Windows' part of the driver in; /proc has no word of the driver there.
wsl_library=/usr/lib/wsl/lib

# "DRIVER CAPABILITY" of the first GPU, such as "580.65.06 9.0"; the capability is missing where nvidia-smi does not
# run, and nothing is printed where there is no driver.
nvidia_driver() {
  for program in nvidia-smi "$wsl_library/nvidia-smi"; do
    command -v "$program" >/dev/null || continue
    told=$("$program" --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d ,)
    case "$told" in [0-9]*) printf '%s' "$told"; return 0 ;; esac
  done
  [ ! -r "${nvidia_proc:-/proc/driver/nvidia/version}" ] ||
    sed -n 's/^NVRM version:.* \([0-9][0-9]*\.[0-9][0-9.]*\) .*/\1/p' "${nvidia_proc:-/proc/driver/nvidia/version}" | head -n 1
}

# The build of torch 2.13 for a driver and a compute capability (both may be missing): cu130, cu126 or cpu.
# Drivers: NVIDIA, CUDA Compatibility, table 1 (CUDA 12.x from 525, 13.x from 580). Devices: torch's RELEASE.md, CUDA
# support matrix. indb_tensile/executor/wheels.py has the same table.
torch_build() {
  driver=${1:-0}
  driver=${driver%%.*}
  capability=${2:-8.0}
  capability=${capability%%.*}${capability##*.}
  if [ "$driver" -ge 580 ] && [ "$capability" -ge 75 ]; then
    printf cu130
  elif [ "$driver" -ge 525 ] && [ "$capability" -ge 50 ] && [ "$capability" -lt 100 ]; then
    printf cu126
  else
    printf cpu
  fi
}

torch_of_this_machine() {
  # shellcheck disable=SC2046
  printf 'torch==2.13.0+%s' "$(torch_build $(nvidia_driver))"
}

# Not every index has the CPU build under a version of its own: where pip's has not, the plain version runs as well.
install_torch() {
  case "$1" in
    *+cpu)
      .venv/bin/python -m pip install --quiet --disable-pip-version-check "$1" >.cache/torch.log 2>&1 && return 0
      say "pip's index has no $1: install ${1%+cpu}, which may bring large packages for GPUs along"
      pip_install "${1%+cpu}"
      ;;
    *+cu*)
      .venv/bin/python -m pip install --quiet --disable-pip-version-check "$1" >.cache/torch.log 2>&1 && return 0
      pip_install --index-url "https://download.pytorch.org/whl/${1##*+}" "$1"
      ;;
    *) pip_install "$1" ;;
  esac
}

# The virtual environment with torch, the package and its native library.
setup() {
  mkdir -p .cache
  install_packages
  python=${TENSILE_PYTHON:-python3}
  # pip comes last: where it does not run, the making of the environment was interrupted; doing it again mends that.
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "create the virtual environment .venv"
    "$python" -m venv .venv || die "could not create .venv with $python"
  fi
  torch=${TENSILE_TORCH:-$(torch_of_this_machine)}
  if ! fresh torch "$torch"; then
    say "install $torch"
    install_torch "$torch"
    printf '%s' "$torch" >.venv/.torch
  fi
  # An editable installation knows its modules by name, so a new one calls for it to be made anew.
  made_from="$(pwd) $({
    find indb_tensile worker sql -name '*.py' -o -name '*.sql' | sort
    cat pyproject.toml $(find native -type f | sort)
  } | cksum)"
  if ! fresh package "$made_from"; then
    say "build the native library and install indb-tensile into .venv"
    pip_install "scikit-build-core>=0.10" "nanobind>=2.4"
    pip_install --no-build-isolation --editable .
    printf '%s' "$made_from" >.venv/.package
  fi
}

# Programs that only tests run.
missing_test_packages() {
  PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || printf 'pgbouncer '
  ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || printf 'libfaketime '
}

# What the test command needs besides, after setup.
install_test_tools() {
  install_packages missing_test_packages
  wanted=$(.venv/bin/python -c 'import tomllib
for tool in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"]: print(tool)')
  if ! fresh test "$wanted"; then
    say "install the tools of the test command"
    # shellcheck disable=SC2086
    pip_install $wanted
    printf '%s' "$wanted" >.venv/.test
  fi
}
