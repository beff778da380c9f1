# Holdfast's targets; `make` alone lists them. Everything that they need is built from pinned Go modules into bin/.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export CGO_ENABLED ?= 0

VERSION    := v0.1.0
KUBERNETES := v1.36.3
k8s_x      := k8s.io/component-base/version
K8S_LDFLAGS := -s -w -X $(k8s_x).gitVersion=$(KUBERNETES) -X $(k8s_x).gitMajor=1 -X $(k8s_x).gitMinor=36
SERVERS := bin/kube-apiserver bin/kube-controller-manager bin/kubectl bin/etcd bin/etcdctl

.PHONY: help
help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- tools ----------------------------------------------------------------------------------------------------------
# Each tool is a module of its own under tools/, so that no tool's dependencies move another's or ours.
# tool MODULE PACKAGE: build one tool with a line of progress before and a line with the time it took after.
define tool
	@mkdir -p bin; start=$$SECONDS; echo "building $@ (the first time may take minutes)"; \
	go build -C tools/$(1) -buildvcs=false -ldflags "$(3)" -o $(CURDIR)/$@ $(2) && echo "built $@ in $$((SECONDS-start)) s"
endef

bin/kube-apiserver bin/kube-controller-manager bin/kubectl: bin/%: tools/kubernetes/go.mod tools/kubernetes/go.sum
	$(call tool,kubernetes,k8s.io/kubernetes/cmd/$*,$(K8S_LDFLAGS))

bin/etcd: tools/etcd/go.mod tools/etcd/go.sum
	$(call tool,etcd,go.etcd.io/etcd/server/v3,-s -w)

bin/etcdctl: tools/etcd/go.mod tools/etcd/go.sum
	$(call tool,etcd,go.etcd.io/etcd/etcdctl/v3,-s -w)

bin/controller-gen: tools/controller-gen/go.mod tools/controller-gen/go.sum
	$(call tool,controller-gen,sigs.k8s.io/controller-tools/cmd/controller-gen,-s -w)

bin/kind: tools/kind/go.mod tools/kind/go.sum
	$(call tool,kind,sigs.k8s.io/kind,-s -w)

bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	$(call tool,lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,-s -w)

.PHONY: tools
tools: $(SERVERS) bin/controller-gen bin/golangci-lint ## Build the servers and tools that tests, demo and lint use

# ---- code -----------------------------------------------------------------------------------------------------------
.PHONY: generate
generate: bin/controller-gen ## Write deep copies and the CRD from the types in api/
	bin/controller-gen object paths=./api/... crd:allowDangerousTypes=false output:crd:dir=manifests/base/crd

# grpc's page of traces is a template, which calls methods by name, and for that the linker would keep every method there is:
# without it an agent is a sixth smaller, on disk and in memory.
TAGS := grpcnotrace

.PHONY: build
build: ## Build agent and webhook into bin/
	@mkdir -p bin
	go build -tags $(TAGS) -ldflags "-s -w" -o bin/holdfast-agent ./cmd/agent
	go build -tags $(TAGS) -ldflags "-s -w" -o bin/holdfast-webhook ./cmd/webhook

# The race detector needs a C compiler; without one the tests run without it, and say so.
RACE := $(if $(shell command -v gcc || command -v clang),-race)

.PHONY: test
test: export CGO_ENABLED = $(if $(RACE),1,0)
test: $(SERVERS) ## Unit and integration tests: real etcd, real kube-apiserver, race detector
	@$(if $(RACE),,echo "no C compiler: testing without the race detector")
	go test $(RACE) -timeout 9m ./...

.PHONY: lint
lint: bin/golangci-lint bin/controller-gen ## Lint, and check that generated files and go.mod are what they should be
	bin/golangci-lint run ./...
	bin/golangci-lint fmt --diff ./...
	@go mod tidy -diff
	@$(MAKE) --no-print-directory generate && git diff --exit-code -- api manifests/base/crd \
		|| { echo "generated files are stale: run make generate and commit"; exit 1; }

.PHONY: demo
demo: $(SERVERS) build ## The main job, told as it happens, on real parts: no Docker, no root (KEEP=1 leaves it running)
	@go build -o bin/holdfast-demo ./test/demo
	@exec bin/holdfast-demo $(if $(KEEP),-keep)

.PHONY: bench
bench: $(SERVERS) build ## Measure what was promised about speed, on real parts (ONLY=verdict,hung for a part; STRICT=1 fails if a target is missed)
	@go build -o bin/holdfast-bench ./test/bench
	@exec bin/holdfast-bench -only='$(ONLY)' $(if $(STRICT),-strict)

# Each target by itself, since go test fuzzes one at a time. What fails is kept below testdata/fuzz of its package.
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
check: test lint demo ## What CI runs, but for e2e, which needs Docker

# The same commit makes the same images, whoever builds them and where: one toolchain, no paths, no time but the commit's.
# REVISION and SOURCE_DATE_EPOCH are to be given where there is no git.
GO_IMAGES := go1.26.8
ARCH ?= $(shell go env GOARCH)
REVISION ?= $(shell git rev-parse HEAD)$(if $(shell git status --porcelain),-changed)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
SOURCE := https://github.com/holdfast-dev/holdfast

bin/pack-image: tools/image/main.go tools/image/go.mod tools/image/go.sum
	$(call tool,image,.,-s -w)

.PHONY: image-files
image-files: bin/pack-image
	@mkdir -p bin/images; for part in agent webhook; do \
		GOTOOLCHAIN=$(GO_IMAGES) GOFLAGS= GOEXPERIMENT= GOFIPS140=off GOOS=linux GOARCH=$(ARCH) GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 \
		go build -tags $(TAGS) -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.version=$(VERSION)+$(REVISION)" \
			-o bin/images/holdfast-$$part ./cmd/$$part && \
		bin/pack-image -program bin/images/holdfast-$$part -tag holdfast-$$part:$(VERSION) -arch $(ARCH) -limit 40 \
			-epoch $(SOURCE_DATE_EPOCH) -label org.opencontainers.image.title=holdfast-$$part \
			-label org.opencontainers.image.source=$(SOURCE) -label org.opencontainers.image.version=$(VERSION) \
			-label org.opencontainers.image.revision=$(REVISION) -label org.opencontainers.image.licenses=Apache-2.0 \
			-out bin/images/holdfast-$$part.tar || exit 1; \
	done

.PHONY: images
images: image-files ## Build the container images holdfast-agent and holdfast-webhook (FROM scratch) into bin/images; Docker takes them
	@$(if $(shell command -v docker),for part in agent webhook; do docker load -q -i bin/images/holdfast-$$part.tar || exit 1; done, \
		echo "no docker: the images are in bin/images/*.tar, for crane push or skopeo copy docker-archive:FILE")

.PHONY: images-check
images-check: ## Build the images of HEAD twice, in two places, and compare (FRESH=1: the second time with an empty build cache)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	git clone -q . "$$dir/a" && $(MAKE) --no-print-directory -C "$$dir/a" image-files && \
	umask 077 && export TZ=Asia/Tokyo $(if $(FRESH),GOCACHE="$$dir/cache") && \
	git clone -q . "$$dir/somewhere/else" && $(MAKE) --no-print-directory -C "$$dir/somewhere/else" image-files && \
	for part in agent webhook; do cmp "$$dir/a/bin/images/holdfast-$$part.tar" "$$dir/somewhere/else/bin/images/holdfast-$$part.tar" || exit 1; done && \
	echo "the same images twice"

.PHONY: e2e
e2e: images bin/etcd bin/etcdctl bin/kubectl $(if $(shell command -v kind),,bin/kind) ## The whole system on a kind cluster; needs Docker (E2E_KEEP=1 keeps the cluster, E2E_KUBECONFIG takes one, KIND_NODE_IMAGE)
	go test -tags e2e -count=1 -timeout 80m -v ./test/e2e

# In this order: no node is born held and no deletion is judged any more, then nobody is there to put back what is taken off.
KUBECTL ?= kubectl
.PHONY: uninstall
uninstall: ## Take Holdfast off the cluster of KUBECONFIG: nodes that it holds are opened, and what it wrote on Nodes goes
	go build -o bin/holdfast-uninstall ./cmd/uninstall
	if $(KUBECTL) get mutatingadmissionpolicies > /dev/null 2>&1; then \
		$(KUBECTL) delete --ignore-not-found mutatingadmissionpolicybindings,mutatingadmissionpolicies holdfast-born-held; fi
	$(KUBECTL) delete --ignore-not-found validatingwebhookconfigurations holdfast
	$(KUBECTL) delete --ignore-not-found validatingadmissionpolicybindings,validatingadmissionpolicies \
		holdfast-nodes holdfast-agent-observations holdfast-grants
	$(KUBECTL) -n holdfast-system delete --ignore-not-found --cascade=foreground --timeout=5m daemonset/holdfast-agent deployment/holdfast-webhook
	bin/holdfast-uninstall
	$(KUBECTL) delete --ignore-not-found --timeout=5m -k manifests/overlays/without-born-held

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf bin
