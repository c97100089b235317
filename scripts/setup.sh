#!/usr/bin/env bash
# Prepares a machine: Debian packages where they are missing, a virtual environment, pinned Python packages.
# Usage: scripts/setup.sh VENV. Safe to run again; says in plain words what it cannot do.
set -euo pipefail
cd "$(dirname "$0")/.."
venv="$1"

fail() { printf '\nsetup: %s\n' "$1" >&2; exit 1; }

# command -> Debian package. bubblewrap and the rest are the sandbox's; /usr/bin/python3 runs the jobs in it. The tests
# put PgBouncer before their database, run the sandbox suite on every container engine, open the dashboard, which Node
# builds, in Chromium, sit down at a screen that nobody sees, and put machines behind routers of their own.
declare -A needed=(
  [bwrap]=bubblewrap [setpriv]=util-linux [mount]=mount [mkfs.ext4]=e2fsprogs [losetup]=mount [/usr/bin/python3]=python3-minimal
  [pgbouncer]=pgbouncer [podman]=podman [crun]=crun [/usr/lib/podman/netavark]=netavark [runc]=runc [catatonit]=catatonit [dockerd]=docker.io [tini]=tini [runsc]=runsc
  [chromium]=chromium [node]=nodejs [npm]=npm [cc]=build-essential [Xvfb]=xvfb [xdotool]=xdotool [ip]=iproute2 [iptables]=iptables
)
missing=()
for command in "${!needed[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null 2>&1 || missing+=("${needed[$command]}")
done
# The check of the shipped seccomp filters reads system call numbers from this library.
ldconfig=$(PATH="$PATH:/usr/sbin:/sbin" command -v ldconfig || true)
[ -n "$ldconfig" ] && ! "$ldconfig" -p | grep -q 'libseccomp\.so\.2' && missing+=(libseccomp2)
# A graphics card's work is tried on an OpenCL for processors.
[ -e /etc/OpenCL/vendors/pocl.icd ] || missing+=(pocl-opencl-icd ocl-icd-libopencl1)

if [ "$(uname -s)" = Linux ] && [ ${#missing[@]} -gt 0 ]; then
  packages=$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')
  command -v apt-get >/dev/null 2>&1 || fail "these packages are missing and there is no apt-get to install them: $packages
Install them with your system's package manager, then run this again."
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || fail "these packages are missing: $packages
Install them with: sudo apt-get install $packages"
    as_root="sudo"
  fi
  echo "setup: installing $packages"
  $as_root apt-get update -qq >/dev/null || true
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $packages >/dev/null ||
    fail "apt-get could not install: $packages"
  # These packages start services of their own, which nobody asked for.
  case " $packages " in *" pgbouncer "*) $as_root systemctl disable --now pgbouncer >/dev/null 2>&1 || true ;; esac
  case " $packages " in
    *" docker.io "*) $as_root systemctl disable --now docker.service docker.socket >/dev/null 2>&1 || true ;;
  esac
fi

python=""
for candidate in python3.13 python3.12 python3.11 python3; do
  if command -v "$candidate" >/dev/null 2>&1 &&
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python="$candidate"
    break
  fi
done
[ -n "$python" ] || fail "the hub needs Python 3.11 or newer; install it and run this again."

if [ ! -x "$venv/bin/python" ]; then
  echo "setup: making $venv with $($python --version)"
  "$python" -m venv "$venv" || fail "the venv module is missing: sudo apt-get install python3-venv"
fi
echo "setup: installing Python packages"
# PyTorch comes as pip finds it. On Linux PyPI's build brings CUDA along, gigabytes that a machine without a card has no
# use for: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make setup takes the small build of the same version.
"$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[hub,networks,dev]' \
  2>"$venv/pip.log" || {
  tail -n 20 "$venv/pip.log" >&2
  fail "pip could not install the packages; its last words are above."
}
