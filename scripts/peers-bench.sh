#!/usr/bin/env bash
# Checks in one process: tollgate and its peers, in turns.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'END'
usage: scripts/peers-bench.sh                     both, some 4 minutes
       scripts/peers-bench.sh time [OPTION...] [GROUP]
       scripts/peers-bench.sh memory [OPTION...]
       scripts/peers-bench.sh plots FROM TO

  time    what a check costs; only groups that have GROUP in their name, such as direct, "hot key", 10k, 1M, "2 threads"
  memory  bytes for each of a million keys
  plots   draws what the benches have written to the folder FROM, as pictures in the folder TO

  time|memory --help   the options of a bench, such as --json PATH

Prints tables in markdown to standard output, progress to standard error. Needs cargo and a C linker. What it builds first takes
some 4 minutes on two cores.
Exits with 0 when all was measured, 2 if called or equipped wrongly, and otherwise with what failed.
END
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  '') runs=(time memory) ;;
  time | memory | plots) runs=("$1"); shift ;;
  *) usage >&2; exit 2 ;;
esac
if ! command -v cargo >/dev/null; then echo 'scripts/peers-bench.sh: no cargo found' >&2; exit 2; fi

echo 'peers-bench: building' >&2
# Not --locked: no check builds this, and what the library depends on may have changed since.
cargo build --quiet --release --manifest-path scripts/peers-bench/Cargo.toml
target=${CARGO_TARGET_DIR:-$PWD/scripts/peers-bench/target}
for run in "${runs[@]}"; do
  program=$target/release/peers-$run
  if [ "$run" = plots ]; then program=$target/release/plots; fi
  "$program" "$@"
done
