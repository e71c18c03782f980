# Targets for people. Tools are pinned in go.mod and need no installation.

# How long each fuzzer, and each long test, runs in `make soak`; each fault is repeated for
# a tenth of SOAK.
FUZZTIME ?= 1m
SOAK ?= 3m

# Where the table of faults goes; SIM_SEED repeats a run's requests.
FAULTS_FILE := $(CURDIR)/bin/faults.md
FAULT_TABLE := QUOTAD_FAULT_TABLE=$(FAULTS_FILE)

# Flags of `make bench` and `make bench-full`: BENCH=--json, or see BENCH=--help.
BENCH ?=

# Flags of `make mutants`.
MUTANTS ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: check
check: ## Everything a change must pass, as in CI: format, vet, staticcheck, vulnerabilities, race, tests
	bash .ci/run

.PHONY: test
test: ## All tests
	go test ./...

.PHONY: race
race: ## All tests with the race detector
	go test -race -shuffle=on ./...

.PHONY: clients
clients: ## Client libraries of Node read our answers; needs node and npm
	npm install --prefix test/clients --no-package-lock --no-audit --no-fund
	go test -count=1 -tags clients -run Node ./internal/api

.PHONY: bench
bench: ## Measure quotad beside what it could be replaced with
	go run ./internal/bench $(BENCH)

.PHONY: bench-full
bench-full: ## The same with a ledger of ten million entries, several instances and checkpoints; half an hour
	go run ./internal/bench --full $(BENCH)

.PHONY: microbench
microbench: ## Go benchmarks of single parts
	go test -run '^$$' -bench . ./internal/...

.PHONY: soak
soak: ## What finds more the longer it runs: fuzzers, long tests, all faults again and again; 55 minutes
	@FUZZTIME=$(FUZZTIME) SOAK=$(SOAK) bash .ci/soak

.PHONY: faults
faults: ## Every fault under load, once each, and the table of what came of it
	@mkdir -p bin
	@$(FAULT_TABLE) go test -C cmd/quotad -count=1 -timeout 1h -run '^TestFaults$$'; status=$$?; cat $(FAULTS_FILE); exit $$status

.PHONY: mutants
mutants: ## Plant faults in the code and see tests notice; MUTANTS=--run=REGEXP for some
	go run ./internal/mutants $(MUTANTS)

.PHONY: pgbouncer
pgbouncer: ## Tests through a real PgBouncer, which must be installed
	PATH="$$PATH:/usr/sbin" go test -count=1 -tags pgbouncer ./cmd/quotad -run PgBouncer

.PHONY: dev
dev: ## A private PostgreSQL, demo data and a server to try
	go run ./cmd/quotad dev

.PHONY: build
build: ## The binary, in bin/
	CGO_ENABLED=0 go build -trimpath -o bin/quotad ./cmd/quotad

.PHONY: fmt
fmt: ## Format all Go files
	go tool gofumpt -w .

.PHONY: schema
schema: ## Write migrations/schema.sql anew
	go test ./migrations -run Dump -update

.PHONY: clean
clean: ## Remove what build made
	rm -rf bin
