#!/bin/sh
# Checks that PostgreSQL's server binaries are where millrace/db/pgtest looks for them,
# and installs them on Debian and Ubuntu if they are not. It starts no server: tests and
# the demo start their own, and the cluster that Debian's package makes is not wanted.
#
# usage: tools/postgres.sh
set -eu

has_server() {
	[ -n "$1" ] && [ -x "$1/initdb" ] && [ -x "$1/postgres" ]
}

# The places are those of db/pgtest, in its order.
find_server() {
	if [ -n "${PGBIN:-}" ]; then
		has_server "$PGBIN" && return 0
		echo "PGBIN=$PGBIN has no initdb and postgres: correct it or unset it" >&2
		exit 1
	fi
	initdb=$(command -v initdb || true)
	if [ -n "$initdb" ] && initdb=$(readlink -f "$initdb") && has_server "$(dirname "$initdb")"; then
		return 0
	fi
	if has_server "$(pg_config --bindir 2>/dev/null || true)"; then
		return 0
	fi
	for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin \
		/opt/homebrew/opt/postgresql*/bin /usr/lib/postgresql*/bin; do
		has_server "$dir" && return 0
	done
	return 1
}

advise() {
	cat >&2 <<-'END'
		No PostgreSQL server binaries (initdb and postgres, version 15 or later) were found.
		Install them, or set PGBIN to the folder that holds them:
		  Debian, Ubuntu   apt-get install postgresql
		  Fedora, RHEL     dnf install postgresql-server
		  Alpine           apk add postgresql
		  Arch             pacman -S postgresql
		  macOS            brew install postgresql@17
	END
	exit 1
}

if find_server; then
	exit 0
fi
command -v apt-get >/dev/null 2>&1 || advise

if [ "$(id -u)" -eq 0 ]; then
	as_root=
elif command -v sudo >/dev/null 2>&1; then
	as_root=sudo
else
	advise
fi

install_packages() {
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" </dev/null >&2
}

echo "PostgreSQL's server binaries are missing: installing Debian's package postgresql" >&2
$as_root apt-get update >&2 || echo "apt-get update did not end well, trying with the lists that are there" >&2

# Debian's package makes a cluster and starts it unless it is told not to. It is told for
# as long as this installation takes.
conf=/etc/postgresql-common/createcluster.conf
install_packages postgresql-common
$as_root cp -p "$conf" "$conf.millrace"
restore() {
	if [ -e "$conf.millrace" ]; then
		$as_root mv "$conf.millrace" "$conf"
	fi
}
trap restore EXIT
trap 'exit 1' INT TERM HUP
echo "create_main_cluster = false" | $as_root tee -a "$conf" >/dev/null
install_packages postgresql

find_server || advise
