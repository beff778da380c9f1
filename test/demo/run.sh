#!/usr/bin/env bash
# Builds what the demo needs, and runs it. `make demo` calls this script; its arguments are flags of the demo.
# The demo needs kube-apiserver, kubectl and etcd. Servers of the pinned minor version are taken from bin/,
# $KUBEBUILDER_ASSETS or $PATH; only the others are built.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset MAKEFLAGS

servers=$PWD/bin/demo # links to servers outside bin/
interval=20           # seconds between two lines of progress
work=$(mktemp -d)
log=$work/log job='' kubernetes=() etcd=()
: > "$log"

stop() {
  if [[ -n $job ]]; then kill -- "-$job" 2> /dev/null || true; fi
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# pinned TOOL MODULE prints the minor version of a module in tools/TOOL/go.mod, such as v1.36.
pinned() { sed -nE "s|^(require)?[[:space:]]*$2 (v[0-9]+\.[0-9]+)\..*|\2|p" "tools/$1/go.mod"; }

# version_of PROGRAM prints the version that a server reports, such as v1.36.3.
version_of() {
  local arguments=(--version)
  if [[ ${1##*/} == kubectl ]]; then arguments=(version --client); fi
  { timeout 20 "$1" "${arguments[@]}" 2> /dev/null || true; } |
    sed -nE '1s/^[^0-9]*([0-9]+\.[0-9]+\.[0-9]+).*/v\1/p'
}

# find_server NAME VERSION finds a server of that minor version, or fails.
find_server() {
  local path found
  for path in "bin/$1" "${KUBEBUILDER_ASSETS:+$KUBEBUILDER_ASSETS/$1}" "$(type -P "$1" || true)"; do
    [[ -n $path && -x $path ]] || continue
    found=$(version_of "$path")
    if [[ $found == "$2".* ]]; then
      [[ $path == bin/* ]] && return
      echo "using $path, version $found"
      ln -sfn "$(realpath "$path")" "$servers/$1"
      return
    fi
    echo "ignoring $path: its version is ${found:-unknown}, the demo needs $2"
  done
  return 1
}

# list_stale lists the packages that must be compiled.
list_stale() {
  local list=(-deps -f '{{if .Stale}}{{.ImportPath}}{{end}}') flags
  read -ra flags <<< "$PROGRAM_FLAGS"
  go list "${list[@]}" "${flags[@]}" ./cmd/agent ./cmd/webhook ./test/demo
  if ((${#kubernetes[@]})); then
    go list -C tools/kubernetes "${list[@]}" "${kubernetes[@]/#/k8s.io/kubernetes/cmd/}"
  fi
  if ((${#etcd[@]})); then go list -C tools/etcd "${list[@]}" go.etcd.io/etcd/server/v3; fi
}

# build builds Holdfast and the missing servers.
build() {
  local background=''
  list_stale | sort -u > "$work/listed"
  mv "$work/listed" "$work/stale"
  GOFLAGS="$(go env GOFLAGS) -v" # print each package that is compiled
  export GOFLAGS
  make --no-print-directory demo-programs
  # etcd is built in parallel, because a linker does not keep all cores busy.
  if ((${#etcd[@]})); then make -B --no-print-directory bin/etcd & background=$!; fi
  if ((${#kubernetes[@]})); then make -B --no-print-directory "${kubernetes[@]/#/bin/}"; fi
  if [[ -n $background ]]; then wait "$background"; fi
}

# progress prints how far the build is.
progress() {
  local took="$((SECONDS / 60)) min $((SECONDS % 60)) s" total built left=''
  if [[ ! -e $work/stale ]]; then
    echo "  downloading modules: $(grep -c '^go: downloading' "$log" || true) so far, $took"
    return
  fi
  compiling=${compiling:-$SECONDS}
  total=$(wc -l < "$work/stale")
  built=$(sort -u "$log" | grep -cxFf "$work/stale" || true)
  if ((built >= total)); then
    echo "  linking, $took"
    return
  fi
  if ((built * 10 >= total)); then # the first packages are small, and would promise too much
    left=", at least $(((SECONDS - compiling) * (total - built) / built / 60 + 1)) min left"
  fi
  echo "  compiling: $built of $total packages, $took$left"
}

rm -rf "$servers"
mkdir -p "$servers"
for name in kube-apiserver kubectl; do
  find_server "$name" "$(pinned kubernetes k8s.io/kubernetes)" || kubernetes+=("$name")
done
find_server etcd "$(pinned etcd go.etcd.io/etcd/server/v3)" || etcd=(etcd)
echo "building Holdfast" "${kubernetes[@]/#/and }" "${etcd[@]/#/and }"
if ((${#kubernetes[@]} + ${#etcd[@]})); then
  echo "Servers are built once, which takes several minutes. To skip it, set KUBEBUILDER_ASSETS to a directory"
  echo "with kube-apiserver $(pinned kubernetes k8s.io/kubernetes), kubectl and etcd $(pinned etcd go.etcd.io/etcd/server/v3)."
fi

SECONDS=0
set -o monitor # the job gets a process group, which stop kills as one
build >> "$log" 2>&1 &
job=$!
set +o monitor
for ((next = interval; ; )); do
  if ! kill -0 "$job" 2> /dev/null; then break; fi
  sleep 0.2
  if ((SECONDS >= next)); then
    progress
    next=$((SECONDS + interval))
  fi
done
if ! wait "$job"; then
  job=''
  echo "the build failed; end of its output:" >&2
  tail -n 30 "$log" >&2
  exit 1
fi
job=''
stop
trap - EXIT
HOLDFAST_SERVERS=$servers exec bin/holdfast-demo "$@"
