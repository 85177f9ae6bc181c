#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME each, one after the other: go test
# fuzzes one target of one package at a time.
#
# usage: FUZZTIME=10s tools/fuzz.sh
set -eu
GO=${GO:-go}
FUZZTIME=${FUZZTIME:-10s}

found=0
for package in $($GO list ./...); do
	list=$($GO test -list '^Fuzz' "$package") # on its own, so that what does not compile ends this
	for target in $(printf '%s\n' "$list" | grep '^Fuzz' || true); do
		found=$((found + 1))
		echo "== $package $target"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package"
	done
done
if [ "$found" -eq 0 ]; then
	echo "no fuzz target was found" >&2
	exit 1
fi
echo "$found fuzz targets ran for $FUZZTIME each"
