#!/usr/bin/env bash
# Limits over Redis under the same load: tollgate and its peers, beside one another, on a server of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'END'
usage: scripts/fleet-bench.sh                                 all three, some 17 minutes
       scripts/fleet-bench.sh flood|replay|speed [OPTION...]
       scripts/fleet-bench.sh --only NAME [BENCH [OPTION...]]

  flood   every node floods one client: over-admission, latency, work of the server
  replay  many clients, most of them below their limit: requests misjudged
  speed   as many checks as there can be, and one round trip for each

  --only NAME    only those whose name has NAME in it, such as tollgate, trypema, limitador, INCR
  BENCH --help   the options of a bench

Starts a redis-server on a free port of the loopback interface, without persistence, and stops it in the end. Prints tables in
markdown to standard output, progress to standard error. Needs cargo, redis-server 7.0 or later, and, for what limitador brings
along, a C compiler, libclang and the headers of OpenSSL (apt: gcc libclang-dev libssl-dev pkg-config).
Exits with 0 when all was measured, 2 if called or equipped wrongly, and otherwise with what failed.
END
}

only=()
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  --only)
    if [ -z "${2:-}" ]; then usage >&2; exit 2; fi
    only=(--only "$2")
    shift 2
    ;;
esac
case "${1:-}" in
  '') runs=(flood replay speed) ;;
  flood | replay | speed) runs=("$1"); shift ;;
  *) usage >&2; exit 2 ;;
esac
for tool in cargo redis-server redis-cli; do
  if ! command -v "$tool" >/dev/null; then echo "scripts/fleet-bench.sh: no $tool found" >&2; exit 2; fi
done

# Limitador compiles only with its storage on disk, which nothing here calls: instead of RocksDB, half an hour of C++, it is
# given empty archives. Were any of it called, linking would fail.
target=${CARGO_TARGET_DIR:-$PWD/scripts/fleet-bench/target}
empty=$target/empty
mkdir -p "$empty"
for name in rocksdb snappy; do
  [ -e "$empty/lib$name.a" ] || printf '!<arch>\n' >"$empty/lib$name.a"
done
export ROCKSDB_LIB_DIR=$empty ROCKSDB_STATIC=1 SNAPPY_LIB_DIR=$empty SNAPPY_STATIC=1

echo 'fleet-bench: building' >&2
# Not --locked: no check builds this, and what the library depends on may have changed since.
cargo build --quiet --release --manifest-path scripts/fleet-bench/Cargo.toml

folder=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Whether the server that was started here is the one that answers: another one may have taken the port.
answers() {
  [ "$(redis-cli -p "$1" info server 2>/dev/null | tr -d '\r' | sed -n 's/^process_id://p')" = "$server" ]
}

for _ in 1 2 3 4 5; do
  port=$((20000 + RANDOM % 20000))
  redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$folder" --logfile "$folder/log" &
  server=$!
  for _ in $(seq 50); do
    if answers "$port"; then break 2; fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
done
if [ -z "$server" ]; then echo 'scripts/fleet-bench.sh: redis-server does not start' >&2; exit 2; fi

echo "$(redis-server --version | cut -d' ' -f1-3), $(nproc) cores, load before: $(cut -d' ' -f1-3 /proc/loadavg)"
for run in "${runs[@]}"; do
  printf '\n### %s %s\n\n' "$run" "$*"
  "$target/release/fleet-bench" --redis "redis://127.0.0.1:$port" "${only[@]}" "$run" "$@"
done
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
