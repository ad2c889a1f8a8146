# The menu. Every target works from a fresh clone and installs what it needs first.

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs install package bench interop

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: ## install what is missing: Debian packages, .venv
	@scripts/setup

demo: ## six short acts on this machine, each with its cost
	@scripts/demo $(ARGS)

test: ## everything CI runs; ONLY=kv runs the tests of one crate
	@ONLY=$(ONLY) scripts/test

lint: ## the part that runs no code: format, lints, tidy, documentation
	@scripts/lint

docs: ## the documentation as a book, links checked: target/book
	@scripts/docs

install: ## build a release and install it; PREFIX=/usr/local
	@scripts/install --prefix "$(or $(PREFIX),/usr/local)"

package: ## build a Debian package in target/
	@scripts/package

bench: ## benchmarks; ARGS="net --json --quick" picks one
	@scripts/bench $(ARGS)

interop: ## a rack and Linux's Soft-RoCE in a QEMU guest; ARGS="6-1024 4-4096-loss" picks tests
	@scripts/interop $(ARGS)
