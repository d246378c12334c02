# Sourced by quickstart.sh and tests/run.sh from the checkout's top directory. Installs missing software and announces
# each step. It repeats no step, and after the first complete run it needs no network. Variables: TENSILE_PYTHON (the
# interpreter), TENSILE_TORCH (pip's requirement for torch, e.g. "torch==2.13.0"; default: the build that the NVIDIA
# driver runs, or the CPU build).

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Print the missing packages of Debian on one line. Looks for programs and not for packages, so any origin will do.
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

# Install with apt-get the packages that the function `$1` (default: missing_packages) prints.
install_packages() {
  missing=${1:-missing_packages}
  packages=$($missing)
  [ -z "$packages" ] && return 0
  if [ "$(id -u)" -eq 0 ]; then as_root=; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=sudo; else
    as_root=none
  fi
  command -v apt-get >/dev/null || die "these are missing, and there is no apt-get to install them with: $packages"
  case "$packages" in
    *postgresql*)
      version=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
      if [ -z "$version" ] && [ "$as_root" != none ]; then
        say "refresh the list of Debian's packages"
        $as_root apt-get update -qq || die "apt-get update failed: check the network and /etc/apt/sources.list"
        version=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
      fi
      version=${version:-15}
      packages=$(printf '%s' "$packages" | sed "s/postgresql postgresql-plpython3/postgresql-$version postgresql-plpython3-$version/")
      ;;
  esac
  if [ "$as_root" = none ]; then
    die "system packages are missing and this user is neither root nor may use sudo; ask an administrator for:
  apt-get install --no-install-recommends $packages"
  fi
  say "install Debian's packages: $packages"
  # Without this setting Debian's server package creates and starts a cluster, which we do not use.
  quiet=/etc/postgresql-common/createcluster.d/tensile-setup.conf
  $as_root mkdir -p /etc/postgresql-common/createcluster.d
  printf 'create_main_cluster = false\n' | $as_root tee "$quiet" >/dev/null
  code=0
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages >.cache/apt.log 2>&1 ||
    { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends $packages >.cache/apt.log 2>&1; } || code=$?
  $as_root rm -f "$quiet"
  [ "$code" -eq 0 ] || die "apt-get could not install $packages: see .cache/apt.log"
  [ -z "$($missing)" ] || die "still missing after the installation: $($missing)"
}

# Succeed if step `$1` has already run with the input `$2`. Each step stores the digest of its input in a stamp file.
fresh() { [ -f ".venv/.$1" ] && [ "$(cat ".venv/.$1")" = "$2" ]; }

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" || die "pip could not install: $*"; }

# WSL2 has Windows' part of the driver in this directory; /proc does not show the driver there.
wsl_library=/usr/lib/wsl/lib

# Print "DRIVER CAPABILITY" of the first GPU, such as "580.65.06 9.0". The capability is missing if nvidia-smi does not
# run. Without a driver, print nothing.
nvidia_driver() {
  for program in nvidia-smi "$wsl_library/nvidia-smi"; do
    command -v "$program" >/dev/null || continue
    versions=$("$program" --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d ,)
    case "$versions" in [0-9]*) printf '%s' "$versions"; return 0 ;; esac
  done
  [ ! -r "${nvidia_proc:-/proc/driver/nvidia/version}" ] ||
    sed -n 's/^NVRM version:.* \([0-9][0-9]*\.[0-9][0-9.]*\) .*/\1/p' "${nvidia_proc:-/proc/driver/nvidia/version}" | head -n 1
}

# Print the build of torch 2.13 for a driver and a compute capability (both may be missing): cu130, cu126 or cpu.
# Drivers: NVIDIA, CUDA Compatibility, table 1 (CUDA 12.x from 525, 13.x from 580). Devices: torch's RELEASE.md, CUDA
# support matrix. indb_tensile/device/torch_wheels.py has the same table.
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

# Some indexes have no CPU build under a version of its own. The plain version, which is installed then, also works.
install_torch() {
  case "$1" in
    *+cpu)
      .venv/bin/python -m pip install --quiet --disable-pip-version-check "$1" >.cache/torch.log 2>&1 && return 0
      say "pip's index has no $1: install ${1%+cpu}, which may also install large packages for GPUs"
      pip_install "${1%+cpu}"
      ;;
    *+cu*)
      .venv/bin/python -m pip install --quiet --disable-pip-version-check "$1" >.cache/torch.log 2>&1 && return 0
      pip_install --index-url "https://download.pytorch.org/whl/${1##*+}" "$1"
      ;;
    *) pip_install "$1" ;;
  esac
}

# Create the virtual environment with torch, the package and its native library.
setup() {
  mkdir -p .cache
  install_packages
  python=${TENSILE_PYTHON:-python3}
  # venv installs pip last, so if pip does not run, venv was interrupted. Running venv again repairs the environment.
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
  # An editable installation lists its modules by name, so a new module requires a new installation.
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

# Print the missing packages of Debian that only tests need.
missing_test_packages() {
  PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || printf 'pgbouncer '
  ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || printf 'libfaketime '
  { command -v chromium && command -v chromedriver; } >/dev/null || printf 'chromium chromium-driver '
  PATH=$PATH:/usr/sbin command -v ip >/dev/null || printf 'iproute2 '
}

# Install what the extra `$1` of pyproject.toml lists, apart from the package itself.
install_extra() {
  wanted=$(.venv/bin/python -c 'import sys, tomllib
for tool in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]]: print(tool)' "$1")
  if ! fresh "$1" "$wanted"; then
    say "install the tools of the extra $1"
    # shellcheck disable=SC2086
    pip_install $wanted
    printf '%s' "$wanted" >".venv/.$1"
  fi
}

# Install what the test command needs in addition to setup.
install_test_tools() {
  install_packages missing_test_packages
  install_extra test
}
