#!/bin/sh
# Checks what a person would otherwise have to remember: that generated files are as
# `make generate` leaves them, that formatting and imports are in order, that every
# package has its import rules, and that the module is tidy. It goes on after a
# complaint, so that one run shows all of them, and answers 1 if there was any.
#
# usage: tools/verify.sh
set -u
GO=${GO:-go}
MAKE=${MAKE:-make}
bad=0

complain() {
	echo "verify: $*" >&2
	bad=1
}

# check WHAT COMMAND …
check() {
	what=$1
	shift
	echo "== $what"
	"$@" || complain "$what: not in order (see above)"
}

sums() {
	find db -type f -print | LC_ALL=C sort | xargs sha256sum
}

generated() {
	before=$(sums)
	"$MAKE" --no-print-directory generate || return 1
	after=$(sums)
	if [ "$before" != "$after" ]; then
		echo "db/ is not what make generate makes of sql/ and queries/; these files have changed:"
		printf '%s\n%s\n' "$before" "$after" | LC_ALL=C sort | uniq -u | awk '{ print "  " $2 }' | uniq
		return 1
	fi
}

# Every package of the product must have its block of allowed imports.
fenced() {
	missing=0
	for dir in $($GO list -f '{{.Dir}}' ./...); do
		name=${dir#"$PWD/"}
		if ! grep -qF "files: [\"**/$name/*.go\"" .golangci.yaml; then
			echo "package $name has no depguard block in .golangci.yaml"
			missing=1
		fi
	done
	return $missing
}

# What go mod tidy would change; of go.sum the first lines are enough.
tidy() {
	if ! changes=$($GO mod tidy -diff 2>&1); then
		printf '%s\n' "$changes" | head -60
		return 1
	fi
}

check "generated code and schema dump" generated
check "formatting" $GO tool -modfile=tools/go.mod golangci-lint fmt --diff ./...
check "go vet" $GO vet ./...
check "import rules" fenced
check "go.mod and go.sum" tidy
check "checksums of the modules" $GO mod verify
check "checksums of the tools" $GO -C tools mod verify
exit $bad
