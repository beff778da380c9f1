# Holdfast's targets; `make` lists them. They build the tools that they need from pinned Go
# modules into bin/.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export CGO_ENABLED ?= 0

VERSION := v0.1.0
SERVERS := bin/kube-apiserver bin/kube-controller-manager bin/kubectl bin/etcd bin/etcdctl
TEST_TOOLS := bin/kube-scheduler bin/pack-image bin/crane bin/krew

# The versions of the API server that tests can run: the newest one in bin/, and the others in
# bin/kubernetes-MINOR/. kube-controller-manager and kubectl are always of the newest version.
NEWEST := v1.37.2
VERSIONS := $(NEWEST) $(shell sed -nE 's/^\tk8s\.io\/kubernetes (v[0-9.]+).*/\1/p' tools/kubernetes-*/go.mod | sort -rV)
KUBERNETES := $(NEWEST)
$(if $(filter $(VERSIONS),$(KUBERNETES)),,$(error KUBERNETES=$(KUBERNETES) is not one of the versions in tools/: $(VERSIONS)))
# minor VERSION, such as 1.34
minor = 1.$(word 2,$(subst ., ,$(1)))
k8s_x := k8s.io/component-base/version
k8s_ldflags = -s -w -X $(k8s_x).gitVersion=$(1) -X $(k8s_x).gitMajor=1 -X $(k8s_x).gitMinor=$(word 2,$(subst ., ,$(1)))
ifneq ($(KUBERNETES),$(NEWEST))
# The tests take servers from this directory first.
export HOLDFAST_SERVERS := $(CURDIR)/bin/kubernetes-$(call minor,$(KUBERNETES))
SERVERS += bin/kubernetes-$(call minor,$(KUBERNETES))/kube-apiserver
endif

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-25s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- tools ---------------------------------------------------------------------------------------
# Each tool is a module of its own in tools/, so that its dependencies do not change those of other
# tools or of Holdfast.
# tool MODULE,PACKAGE,LDFLAGS builds one tool. It prints a line before, and one with the duration.
define tool
	@mkdir -p $(@D); start=$$SECONDS; echo "building $@ (the first time may take minutes)"; \
	go build -C tools/$(1) -buildvcs=false -ldflags "$(3)" -o $(CURDIR)/$@ $(2) && echo "built $@ in $$((SECONDS-start)) s"
endef

bin/kube-apiserver bin/kube-controller-manager bin/kube-scheduler bin/kubectl: bin/%: tools/kubernetes/go.mod tools/kubernetes/go.sum
	$(call tool,kubernetes,k8s.io/kubernetes/cmd/$*,$(call k8s_ldflags,$(NEWEST)))

bin/kubernetes-%/kube-apiserver: tools/kubernetes-%/go.mod tools/kubernetes-%/go.sum
	$(call tool,kubernetes-$*,k8s.io/kubernetes/cmd/kube-apiserver,$(call k8s_ldflags,$(filter v$*.%,$(VERSIONS))))

bin/etcd: tools/etcd/go.mod tools/etcd/go.sum
	$(call tool,etcd,go.etcd.io/etcd/server/v3,-s -w)

bin/etcdctl: tools/etcd/go.mod tools/etcd/go.sum
	$(call tool,etcd,go.etcd.io/etcd/etcdctl/v3,-s -w)

# Other versions of etcd. The program is named etcd, because that is how the agent finds it. 3.4 has
# no module path with its version.
bin/etcd-v3.4/etcd: tools/etcd-3.4/go.mod tools/etcd-3.4/go.sum
	$(call tool,etcd-3.4,go.etcd.io/etcd,-s -w)

bin/etcd-v3.5/etcd bin/etcd-v3.6/etcd: bin/etcd-v%/etcd: tools/etcd-%/go.mod tools/etcd-%/go.sum
	$(call tool,etcd-$*,go.etcd.io/etcd/server/v3,-s -w)

# etcd inside another process, as in k3s.
bin/etcd-embedded/etcd: tools/etcd/embedded/main.go tools/etcd/go.mod tools/etcd/go.sum
	$(call tool,etcd,./embedded,-s -w)

bin/controller-gen: tools/controller-gen/go.mod tools/controller-gen/go.sum
	$(call tool,controller-gen,sigs.k8s.io/controller-tools/cmd/controller-gen,-s -w)

bin/kind: tools/kind/go.mod tools/kind/go.sum
	$(call tool,kind,sigs.k8s.io/kind,-s -w)

# The programs of test/drainers. Karpenter is the newest that builds with the Go version of the other
# tools; it runs with kwok, its provider without a cloud.
bin/karpenter: tools/karpenter/go.mod tools/karpenter/go.sum
	$(call tool,karpenter,sigs.k8s.io/karpenter/kwok,-s -w)

bin/cluster-api: tools/cluster-api/go.mod tools/cluster-api/go.sum
	$(call tool,cluster-api,sigs.k8s.io/cluster-api/core,-s -w)

# The service discoveries of clouds are most of promtool. Not every module proxy has all of their
# modules, so `go mod tidy` may fail in tools/prometheus; `go get -tags remove_all_sd` works.
PROMETHEUS_TAGS := remove_all_sd
bin/promtool: export GOFLAGS := $(GOFLAGS) -tags=$(PROMETHEUS_TAGS)
bin/promtool: tools/prometheus/go.mod tools/prometheus/go.sum
	$(call tool,prometheus,github.com/prometheus/prometheus/cmd/promtool,-s -w)

bin/krew: tools/krew/go.mod tools/krew/go.sum
	$(call tool,krew,sigs.k8s.io/krew/cmd/krew,-s -w)

bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	$(call tool,lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,-s -w)

bin/helm: tools/helm/go.mod tools/helm/go.sum
	$(call tool,helm,helm.sh/helm/v4/cmd/helm,-s -w)

bin/actionlint: tools/actionlint/go.mod tools/actionlint/go.sum
	$(call tool,actionlint,github.com/rhysd/actionlint/cmd/actionlint,-s -w)

bin/govulncheck: tools/govulncheck/go.mod tools/govulncheck/go.sum
	$(call tool,govulncheck,golang.org/x/vuln/cmd/govulncheck,-s -w)

# Vale parses Go comments with tree-sitter, which is C: two dozen parsers, compiled without
# optimization to save minutes.
C_COMPILER := $(shell command -v gcc || command -v clang)
bin/vale: export CGO_ENABLED = 1
bin/vale: export CGO_CFLAGS = -O0 -w
bin/vale: tools/vale/go.mod tools/vale/go.sum
	$(call tool,vale,github.com/vale-cli/vale/v3/cmd/vale,-s -w)

.PHONY: tools
tools: $(SERVERS) $(TEST_TOOLS) bin/helm bin/controller-gen bin/golangci-lint ## Build the servers and tools that tests, demo and lint use

# ---- code ----------------------------------------------------------------------------------------
.PHONY: generate
generate: bin/controller-gen bin/helm ## Write deep copies and the CRD from the types in api/, and the manifests from the chart
	bin/controller-gen object paths=./api/... crd:allowDangerousTypes=false output:crd:dir=charts/holdfast/files
	charts/render

# gRPC's page of traces is a template that calls methods by name, so the linker would keep every
# method. Without that page the agent is a sixth smaller, on disk and in memory.
TAGS := grpcnotrace
# All builds of Holdfast have these flags, so that they use the same compiled packages.
PROGRAM_FLAGS := -trimpath -tags $(TAGS)

.PHONY: build
build: ## Build agent, webhook and the program of guard pods into bin/
	@mkdir -p bin
	go build $(PROGRAM_FLAGS) -ldflags "-s -w" -o bin/holdfast-agent ./cmd/agent
	go build $(PROGRAM_FLAGS) -ldflags "-s -w" -o bin/holdfast-webhook ./cmd/webhook
	go build $(PROGRAM_FLAGS) -ldflags "-s -w" -o bin/holdfast-guard ./cmd/guard

.PHONY: plugin
plugin: ## Build the plugin of kubectl into bin/kubectl-holdfast
	@mkdir -p bin
	go build $(PROGRAM_FLAGS) -ldflags "-s -w" -o bin/kubectl-holdfast ./cmd/kubectl-holdfast

# The race detector needs a C compiler. Without one the tests run without it and report that. The
# servers are built without cgo in any case, so that other targets use the same compiled packages.
RACE := $(if $(C_COMPILER),-race)
TEST_CGO := CGO_ENABLED=$(if $(RACE),1,0)

# The packages whose tests run etcd as a user's cluster. The etcd of each kube-apiserver stays 3.7.
ETCD_PACKAGES := ./internal/testenv/etcd ./internal/node/etcdprobe ./internal/node/etcddetect ./internal/node/host ./cmd/agent ./test/stress
ETCD_VERSIONS := v3.4 v3.5 v3.6 v3.7
ETCD_SERVERS  := $(patsubst %,bin/etcd-%/etcd,$(filter-out v3.7,$(ETCD_VERSIONS)))
# The server of the version that was chosen with ETCD=.
ETCD_SERVER   := $(filter bin/etcd-$(ETCD)/etcd,$(ETCD_SERVERS))

# go test starts packages in this order, so the longest come first. golangci-lint runs vet.
SLOWEST := ./cmd/webhook ./test/stress ./internal/operator/plugin ./cmd/agent ./manifests ./internal/control/leader
# With the race detector, the simulation takes six times as long. The packages that it runs have
# tests of their own, with the detector. The packages in pkg/ start no goroutine, so the detector
# would find nothing there (test/docs, TestDecisionsStartNoGoroutine).
SIMULATION := ./test/simulation
WITHOUT_RACE := $(SIMULATION) ./pkg/...
# Tests wait for servers for half of their time.
SIDE_BY_SIDE := -p $(shell echo $$(($$(nproc 2> /dev/null || echo 1) * 3)))
# The exploration of every way to leave, whose depth is a flag.
EVERY_LEAVE := ./pkg/protect/membership -run '^TestEveryLeave$$'

# The decisions start no server, so these tests need no tools.
.PHONY: unit
unit: ## Run the tests of the decisions (pkg/): no servers, a minute from an empty build cache
	go test -vet=off ./pkg/...

.PHONY: test
test: export HOLDFAST_ETCD = $(ETCD)
test: $(SERVERS) $(TEST_TOOLS) bin/helm $(ETCD_SERVER) ## Run unit and integration tests: real etcd, real kube-apiserver, real helm, race detector (KUBERNETES=v1.34.4 for another API server, ETCD=v3.5 for the tests with that etcd)
	@$(if $(RACE),,echo "no C compiler: testing without the race detector")
	$(if $(ETCD),,go test -vet=off -timeout 20m $(WITHOUT_RACE))
	$(if $(ETCD),,go test -vet=off $(EVERY_LEAVE) -leave-depth=5)
	$(TEST_CGO) go test $(RACE) -vet=off -timeout 20m $(SIDE_BY_SIDE) $(if $(ETCD),$(ETCD_PACKAGES),$(SLOWEST) $$(go list ./... | grep -vE '/(pkg/|$(SIMULATION:./%=%)$$)'))
	$(if $(ETCD),,$(TEST_CGO) go test -C tools/image $(RACE) ./...)

.PHONY: test-etcd
test-etcd: $(SERVERS) $(ETCD_SERVERS) bin/etcd-embedded/etcd ## Run the tests with etcd 3.4 to 3.7, the settings of k3s and k0s, and a rolling upgrade and downgrade
	@for version in $(ETCD_VERSIONS); do $(MAKE) --no-print-directory test ETCD=$$version || exit 1; done
	go test -tags etcdversions -count=1 -timeout 20m -v -run '^Test(Upgrade|EmbeddedCluster|LoopbackCluster|RealProxy)$$' ./test/stress ./cmd/agent ./internal/node/etcddetect

# One version: make test-kubernetes-version KUBERNETES=v1.34.4 (ONLY='./manifests ./charts' for some packages)
.PHONY: test-kubernetes-version
test-kubernetes-version: $(SERVERS) $(TEST_TOOLS) bin/helm
	@echo "testing with Kubernetes $(KUBERNETES)"; go run ./test/versions -kubernetes $(KUBERNETES) $(ONLY)

.PHONY: test-kubernetes-versions
test-kubernetes-versions: ## Run the tests that start an API server with each supported version of it, and write the table in docs/kubernetes-versions.md (ONLY='./manifests ./charts')
	@failed=; for version in $(VERSIONS); do \
		$(MAKE) --no-print-directory test-kubernetes-version KUBERNETES=$$version || failed+=" $$version"; done; \
	[ -z "$$failed" ] || { echo "tests failed with$$failed"; exit 1; }

# Each run has other seeds. The output names them, and SEED=N plays one history again.
HISTORIES ?= 10000
WITHIN ?= 3m
.PHONY: histories
histories: ## Play random histories against the webhook (HISTORIES=10000 WITHIN=3m; SEED=N plays one again)
	go test -count=1 -timeout 0 -v -run '^Test(Histories|Replay)$$' ./test/simulation \
		$(if $(SEED),-seed $(SEED),-histories $(HISTORIES) -within $(WITHIN))
	$(if $(SEED),,go test -count=1 -timeout 0 -v $(EVERY_LEAVE) -leave-depth=7 -leave-time=$(WITHIN))

# `make soak RECORD=tools/prometheus/testdata/soak.csv` records the samples again.
HOURS ?= 2
.PHONY: soak
soak: $(SERVERS) ## Run Holdfast for hours with faults, and check that nothing grows (HOURS=2, RECORD=FILE)
	go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./test/stress -soak $(HOURS)h \
		$(if $(RECORD),-record $(abspath $(RECORD)))

.PHONY: lint
lint: bin/golangci-lint bin/controller-gen bin/helm prose workflows vulncheck ## Lint code and language, and check that generated files and go.mod are up to date
	GOFLAGS="$(GOFLAGS) -trimpath" bin/golangci-lint run ./...
	bin/golangci-lint fmt --diff ./...
	@go mod tidy -diff
	@$(MAKE) --no-print-directory generate && git diff --exit-code -- api charts/holdfast/files manifests \
		|| { echo "generated files are stale: run make generate and commit"; exit 1; }

.PHONY: workflows
workflows: bin/actionlint ## Check the GitHub workflows
	bin/actionlint -shellcheck= -pyflakes=

# govulncheck exits with 3 for findings. If the database cannot be reached, the check is left out,
# unless STRICT=1.
.PHONY: vulncheck
vulncheck: bin/govulncheck ## Look for known vulnerabilities in the code that is called (VULNDB=URL for a mirror; STRICT=1 fails without the database)
	@found=$$(bin/govulncheck $(if $(VULNDB),-db '$(VULNDB)') ./... 2>&1) && { tail -n 1 <<< "$$found"; exit 0; }; \
	if [ -z '$(STRICT)' ] && grep -q '^govulncheck: fetching vulnerabilities' <<< "$$found"; then \
		echo "the vulnerability database cannot be reached: vulnerabilities are not checked"; exit 0; fi; \
	echo "$$found"; exit 1

# The rules are in tools/vale/styles/Holdfast. They apply to comments in Go, not to strings.
LEVEL ?= error
.PHONY: prose
prose: $(if $(C_COMPILER),bin/vale) ## Check the language of Markdown and Go comments (LEVEL=warning lists vague words as well)
	@$(if $(C_COMPILER),git ls-files -z '*.md' '*.go' ':!*/zz_generated.*' \
		| xargs -0 bin/vale --config=tools/vale/vale.ini --no-global --output=line --minAlertLevel=$(LEVEL),\
		echo "no C compiler: the language is not checked")

# `make demo RECORD=tools/prometheus/testdata/demo.metrics.gz` records the metrics again.
.PHONY: monitoring
monitoring: bin/promtool ## Test the alerts and the dashboard with Prometheus' own code (UPDATE=1 draws the picture in docs/ again)
	go test -C tools/prometheus -tags $(PROMETHEUS_TAGS) . $(if $(UPDATE),-update)

# Product is what the programs consist of. Support is what tests start, and programs of developers.
SUPPORT := 'test/*.go' 'tools/*.go' 'internal/testenv/*.go' '*test/*.go'
.PHONY: counts
counts: ## Count what a maintainer has to take in: lines, words, terms
	@count() { printf '%8d %s\n' "$$(git ls-files -- "$${@:3}" | xargs cat | bash -c "$$2")" "$$1"; }; \
	count 'lines of product' 'wc -l' '*.go' ':!*_test.go' ':!*/zz_generated.*' $(addprefix ':!',$(SUPPORT)); \
	count 'lines of test support' 'wc -l' $(SUPPORT) ':!*_test.go'; \
	count 'lines of tests' 'wc -l' '*_test.go'; \
	count 'words of documents' 'wc -w' '*.md'; \
	count 'terms' "grep -c '^### '" docs/glossary.md; \
	printf '%8d %s\n' "$$(git ls-files | grep -vc /)" 'files in the root'

.PHONY: demo-programs
demo-programs: build
	go build $(PROGRAM_FLAGS) -ldflags "-s -w" -o bin/holdfast-demo ./test/demo

# To measure the first run of a new user, in a clone without bin/:
# GOCACHE=$(mktemp -d) GOMODCACHE=$(mktemp -d) make demo
.PHONY: demo
demo: ## Show the main features on real servers; no Docker, no root (V=1 prints all commands, KEEP=1 keeps the cluster running, RECORD=FILE records the metrics)
	@PROGRAM_FLAGS="$(PROGRAM_FLAGS)" exec test/demo/run.sh $(if $(V),-v) $(if $(KEEP),-keep) $(if $(RECORD),-record $(RECORD))

.PHONY: bench
bench: $(SERVERS) build ## Measure the speed on real servers (ONLY=verdict,hung for some measurements; KUBERNETES=v1.34.4 for another API server; FILES=1000000 for the tree of search, STRICT=1 fails if a target is missed)
	@go build -o bin/holdfast-bench ./test/bench
	@FILES='$(FILES)' exec bin/holdfast-bench -only='$(ONLY)' $(if $(STRICT),-strict)

# go test fuzzes one target at a time. It keeps failing inputs in testdata/fuzz of the package.
FUZZTIME ?= 20s
.PHONY: fuzz
fuzz: ## Fuzz every parser and the verdict (FUZZTIME=20s or 100000x for each; ONLY=FuzzFlags for some, a regular expression)
	@for file in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
		for name in $$(sed -nE 's/^func (Fuzz[A-Za-z]+).*/\1/p' $$file | grep -E '$(ONLY)'); do \
			echo "$$name of $$(dirname $$file)"; \
			found=$$(go test -toolexec $(CURDIR)/tools/fuzz/compile -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$(dirname $$file) 2>&1) \
				|| { echo "$$found"; exit 1; }; tail -n 3 <<< "$$found"; \
		done; \
	done

.PHONY: check
check: test histories lint monitoring demo ## Run what CI runs, except images-check, drainers and e2e

# The same commit makes the same images on every machine: one toolchain, no paths, and no time but
# that of the commit. Without git, set REVISION and SOURCE_DATE_EPOCH.
GO_IMAGES := go1.26.8
GOOS := linux
ARCH ?= $(shell go env GOARCH)
REVISION ?= $(shell git rev-parse HEAD)$(if $(shell git status --porcelain),-changed)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
SOURCE := https://github.com/holdfast-dev/holdfast

bin/pack-image: tools/image/main.go tools/image/go.mod tools/image/go.sum
	$(call tool,image,.,-s -w)

.PHONY: program
program:
	@mkdir -p $(OUT) && GOTOOLCHAIN=$(GO_IMAGES) GOFLAGS= GOEXPERIMENT= GOFIPS140=off GOOS=$(GOOS) GOARCH=$(ARCH) GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 \
		go build $(PROGRAM_FLAGS) -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$(VERSION)+$(REVISION)" \
			-o $(OUT)/$(PROGRAM) ./cmd/$(PROGRAM:holdfast-%=%)

bin/crane: tools/image/go.mod tools/image/go.sum
	$(call tool,image,github.com/google/go-containerregistry/cmd/crane,-s -w)

# The image of the agent also contains the program of guard pods: that image is on every node. The
# image of the plugin is for Jobs, such as manifests/uninstall.
IMAGES := holdfast-agent holdfast-webhook kubectl-holdfast
.PHONY: image-files
image-files: bin/pack-image
	@for program in $(IMAGES) holdfast-guard; do $(MAKE) --no-print-directory program PROGRAM=$$program OUT=bin/images || exit 1; done
	@for image in $(IMAGES); do also=; [ $$image != holdfast-agent ] || also="-also bin/images/holdfast-guard"; \
		limit=40; [ $$image != kubectl-holdfast ] || limit=60; \
		bin/pack-image -program bin/images/$$image $$also -tag $$image:$(VERSION) -arch $(ARCH) -limit $$limit \
			-epoch $(SOURCE_DATE_EPOCH) -label org.opencontainers.image.title=$$image \
			-label org.opencontainers.image.source=$(SOURCE) -label org.opencontainers.image.version=$(VERSION) \
			-label org.opencontainers.image.revision=$(REVISION) -label org.opencontainers.image.licenses=Apache-2.0 \
			-out bin/images/$$image.tar || exit 1; \
	done

.PHONY: images
images: image-files ## Build the container images (FROM scratch) of agent, webhook and plugin into bin/images, and load them into Docker
	@$(if $(shell command -v docker),for image in $(IMAGES); do docker load -q -i bin/images/$$image.tar || exit 1; done, \
		echo "no docker: the images are in bin/images/*.tar; push them with crane push or skopeo copy docker-archive:FILE")

.PHONY: images-check
images-check: ## Build the images of HEAD twice, in two places, and compare (FRESH=1: the second time with an empty build cache)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	git clone -q . "$$dir/a" && $(MAKE) --no-print-directory -C "$$dir/a" image-files && \
	umask 077 && export TZ=Asia/Tokyo $(if $(FRESH),GOCACHE="$$dir/cache") && \
	git clone -q . "$$dir/somewhere/else" && $(MAKE) --no-print-directory -C "$$dir/somewhere/else" image-files && \
	for image in $(IMAGES); do cmp "$$dir/a/bin/images/$$image.tar" "$$dir/somewhere/else/bin/images/$$image.tar" || exit 1; done && \
	echo "the same images twice"

.PHONY: release-check
release-check: ## Check that TAG is the version of this commit, and that the commit is clean
	@[ '$(TAG)' = '$(VERSION)' ] || { echo "the tag is '$(TAG)', but VERSION in the Makefile is $(VERSION)"; exit 1; }
	@grep -q '^appVersion: $(VERSION)$$' charts/holdfast/Chart.yaml && grep -q '^version: $(VERSION:v%=%)$$' charts/holdfast/Chart.yaml \
		|| { echo "charts/holdfast/Chart.yaml has another version or appVersion than $(VERSION)"; exit 1; }
	@grep -q 'image: holdfast-agent:$(VERSION)$$' manifests/base/agent.yaml || { echo "manifests/base/agent.yaml has another version than $(VERSION): run make generate"; exit 1; }
	@grep -q 'newTag: $(VERSION)$$' manifests/uninstall/kustomization.yaml || { echo "manifests/uninstall/kustomization.yaml has another newTag than $(VERSION)"; exit 1; }
	@[ -z "$$(git status --porcelain)" ] || { echo "the work tree has changes: commit them, or remove them"; exit 1; }

# An SBOM names the hash of the program that made it.
bin/cyclonedx-gomod: export GOFLAGS := $(GOFLAGS) -trimpath
bin/cyclonedx-gomod: export GOTOOLCHAIN := $(GO_IMAGES)
bin/cyclonedx-gomod: tools/sbom/go.mod tools/sbom/go.sum
	$(call tool,sbom,github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod,-s -w)

# REPOSITORY is where the images will be pushed. It is in the manifests, the chart and nothing else.
.PHONY: release-files
release-files: export VERSION := $(VERSION)
release-files: export REVISION := $(REVISION)
release-files: export SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)
release-files: export REPOSITORY ?= registry.example.org/holdfast-dev
release-files: bin/pack-image bin/cyclonedx-gomod bin/kubectl bin/helm ## Build the files of a release for amd64 and arm64 into bin/release (REPOSITORY=registry.example.org/holdfast-dev)
	@tools/release/build

.PHONY: release-snapshot
release-snapshot: ## Build the files of a release of HEAD twice, in two places, and compare them
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	git clone -q . "$$dir/a" && $(MAKE) --no-print-directory -C "$$dir/a" release-files && \
	umask 077 && export TZ=Asia/Tokyo && \
	git clone -q . "$$dir/somewhere/else" && $(MAKE) --no-print-directory -C "$$dir/somewhere/else" release-files > /dev/null && \
	diff -r "$$dir/a/bin/release" "$$dir/somewhere/else/bin/release" && rm -rf bin/release && cp -R "$$dir/a/bin/release" bin/ && \
	echo "the same files twice; they are in bin/release"

# The state from which make e2e upgrades: the last release, or while there is none, a commit.
PREVIOUS ?= $(shell git describe --tags --abbrev=0 HEAD^ 2> /dev/null || echo 6d7b0c980a8fe72e926d3aec372041b0c00203ce)

.PHONY: previous
previous: ## Build the images and the chart of an earlier state into bin/previous (PREVIOUS=v0.1.0, a tag or a commit)
	@git cat-file -e '$(PREVIOUS)^{commit}' || { echo "the clone does not have $(PREVIOUS): fetch the whole history, or name another state with PREVIOUS="; exit 1; }
	@rm -rf bin/previous && mkdir -p bin/previous && dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	git archive '$(PREVIOUS)' | tar -xC "$$dir" && \
	$(MAKE) --no-print-directory -C "$$dir" image-files IMAGES='holdfast-agent holdfast-webhook' VERSION=previous REVISION='$(PREVIOUS)' SOURCE_DATE_EPOCH=0 && \
	mv "$$dir"/bin/images/*.tar "$$dir/charts/holdfast" bin/previous/

.PHONY: e2e
e2e: export HOLDFAST_ETCD = $(ETCD)
e2e: images previous bin/etcd bin/etcdctl bin/kubectl bin/helm bin/crane $(ETCD_SERVER) $(if $(shell command -v kind),,bin/kind) ## Test the whole system on a kind cluster; needs Docker (ETCD=v3.5 with that etcd, ONLY='(install_on|detect|delete_etcd)' for some scenarios, E2E_KEEP=1 keeps the cluster, E2E_KUBECONFIG uses an existing one, KIND_NODE_IMAGE)
	go test -tags e2e -count=1 -timeout 80m -v $(if $(ONLY),-run 'TestHoldfast/$(ONLY)') ./test/e2e

.PHONY: drainers
drainers: $(SERVERS) bin/karpenter bin/cluster-api ## Test with the real Karpenter and Cluster API on a real kube-apiserver and etcd (ONLY=Karpenter; no Docker)
	go test -tags drainers -count=1 -timeout 30m -v -run '$(ONLY)' ./test/drainers

.PHONY: uninstall
uninstall: plugin ## Remove Holdfast from the cluster of KUBECONFIG; the same as kubectl holdfast uninstall --yes
	bin/kubectl-holdfast uninstall --yes

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf bin
