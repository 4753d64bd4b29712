#!/usr/bin/env bash
# Every figure of benches/README.md but those over Redis, measured again one after the other, and its plots drawn from them.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'END'
usage: scripts/benches.sh [PLOTS]

Some 9 minutes on two cores, and 5 more where nothing is built yet. Prints tables in markdown to standard output,
progress to standard error, and draws the plots into the folder PLOTS, by default benches/plots. The figures themselves go to
target/benches as JSON. For a machine that has nothing else to do.

Needs cargo and a C linker; instructions are counted only where there is valgrind.
Exits with 0 when all was measured, 2 if called or equipped wrongly, and otherwise with what failed.
END
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
plots=${1:-benches/plots}
if ! command -v cargo >/dev/null; then echo 'scripts/benches.sh: no cargo found' >&2; exit 2; fi
figures=${CARGO_TARGET_DIR:-$PWD/target}/benches
mkdir -p "$figures"

# bench NAME [OPTION...]: one of the library's own.
bench() {
  local name=$1 begun=$SECONDS
  shift
  printf '\n## %s\n\n' "$name $*"
  cargo bench --quiet --locked --bench "$name" "${features[@]}" -- "$@"
  echo "benches: $name took $((SECONDS - begun)) s" >&2
}

peers() {
  local begun=$SECONDS
  printf '\n## %s\n\n' "peers-bench.sh $1"
  scripts/peers-bench.sh "$@"
  echo "benches: peers-bench.sh $1 took $((SECONDS - begun)) s" >&2
}

echo 'benches: building' >&2
cargo bench --quiet --locked --no-run --bench instructions --bench latency --bench memory --bench ratios
cargo bench --quiet --locked --no-run --bench fleet --features global
cargo build --quiet --release --manifest-path scripts/peers-bench/Cargo.toml
begun=$SECONDS

echo "$(rustc --version), $(nproc) cores: $(grep -m 1 'model name' /proc/cpuinfo 2>/dev/null | cut -d: -f2), load before: $(uptime | sed 's/.*: //')"
features=()
peers time --json "$figures/peers.json"
bench ratios --json "$figures/ratios.json"
bench latency --json "$figures/latency.json"
bench latency --json "$figures/latency-10m.json" --keys 10000000 --shards 4096 --checks 2000000
bench memory --json "$figures/memory.json"
peers memory --json "$figures/peers-memory.json"
if command -v valgrind >/dev/null; then bench instructions; else echo 'benches: no valgrind, instructions are left out' >&2; fi
features=(--features global)
bench fleet
echo
echo "load after: $(uptime | sed 's/.*: //')"
scripts/peers-bench.sh plots "$figures" "$plots"
echo "benches: all took $((SECONDS - begun)) s, plots are in $plots" >&2
