# The menu. Every target works alone from a fresh clone: what it needs, it sets up first.

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs bench interop

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: ## install what is missing: Debian packages, .venv
	@scripts/setup

demo: ## a rack on this machine, a word list in far memory, READs against traversals
	@scripts/demo $(ARGS)

test: ## everything CI runs: format, lints, tidy, tests, documentation
	@scripts/test

lint: ## the part of it that runs nothing: format, lints, tidy, documentation
	@scripts/lint

docs: ## the documentation as a book, links checked: target/book
	@scripts/docs

bench: ## benchmarks; ARGS="net --json --quick" picks one
	@scripts/bench $(ARGS)

interop: ## a rack against Linux's Soft-RoCE, in a guest under QEMU; ARGS="6-1024 4-4096-loss" picks tests
	@scripts/interop $(ARGS)
