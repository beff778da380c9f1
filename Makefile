# Holdfast's targets; `make` alone lists them. Everything that they need is built from pinned Go modules into bin/.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export CGO_ENABLED ?= 0

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

bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	$(call tool,lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,-s -w)

.PHONY: tools
tools: $(SERVERS) bin/controller-gen bin/golangci-lint ## Build the servers and tools that tests, demo and lint use

# ---- code -----------------------------------------------------------------------------------------------------------
.PHONY: generate
generate: bin/controller-gen ## Write deep copies and the CRD from the types in api/
	bin/controller-gen object paths=./api/... crd:allowDangerousTypes=false output:crd:dir=manifests/base/crd

.PHONY: build
build: ## Build agent and webhook into bin/
	@mkdir -p bin
	go build -ldflags "-s -w" -o bin/holdfast-agent ./cmd/agent
	go build -ldflags "-s -w" -o bin/holdfast-webhook ./cmd/webhook
