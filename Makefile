# A thin front to CMake, so that two words are enough. Each target does all of its own set-up.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
KERMES = build/release/kermes

.PHONY: release demo test test-long coverage bench wasm wheel install install-built uninstall deb tarball docs format clean help
.NOTPARALLEL:

release: ## Build the library, the command and the examples (build/release)
	@command -v cmake >/dev/null && command -v ninja >/dev/null || \
	    { echo "CMake or Ninja is missing: run scripts/setup" >&2; exit 1; }
	@cmake --preset release -DKERMES_ISAS=all
	@cmake --build --preset release -j $(JOBS)

demo: ## Set up, build, fetch a small model and chat with it
	@scripts/setup demo
	@scripts/get-model || true
	@cmake --preset release $(if $(wildcard build/release/CMakeCache.txt),,-DKERMES_ISAS=best)
	@cmake --build --preset release -j $(JOBS) --target kermes
	@scripts/demo $(KERMES)

test: ## Set up, build and run all tests: with sanitizers, then in release (2 GB, 15 minutes on 2 cores)
	@scripts/setup test
	@JOBS=$(JOBS) scripts/run-tests asan tsan release

test-long: ## Release tests with the long ones, at their full size
	@scripts/setup long
	@cmake --preset release -DKERMES_TESTS=ON -DKERMES_ISAS=all
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset long

coverage: ## Which lines and branches the tests run, by room (build/coverage)
	@scripts/setup test
	@cmake --preset coverage -DKERMES_TESTS=ON
	@cmake --build --preset coverage -j $(JOBS)
	@find build/coverage -name '*.gcda' -delete
	@ctest --preset coverage -j $(JOBS) || echo "make coverage: some tests failed; the figures are of what ran" >&2
	@scripts/coverage build/coverage --json build/coverage/coverage.json --missing 20

wasm: ## The engine for browsers with its page (build/wasm/web): serve that folder; needs Emscripten
	@scripts/setup wasm
	@scripts/wasm-deps
	@cmake --preset wasm
	@cmake --build --preset wasm -j $(JOBS)
	@echo "build/wasm/web is ready: any static server will do, such as python3 -m http.server -d build/wasm/web"

wheel: ## Build the Python wheel, with the library inside (dist/)
	@scripts/setup demo
	@scripts/wheel

bench: ## Measure everything; leaves build/release/bench.html
	@scripts/setup demo
	@cmake --preset release
	@cmake --build --preset release -j $(JOBS) --target kermes
	$(KERMES) bench --html build/release/bench.html

# What is installed, and nothing else, is built: after `make test` that is nothing.
INSTALLED = $(shell sed -n 's/^KERMES_INSTALLED:INTERNAL=//p' build/release/CMakeCache.txt 2>/dev/null | tr ';' ' ')

install: ## Install under PREFIX (default /usr/local)
	@scripts/setup demo
	@grep -qs '^KERMES_ISAS:[A-Z]*=all$$' build/release/CMakeCache.txt || cmake --preset release -DKERMES_ISAS=all
	@$(MAKE) --no-print-directory install-built

install-built:
	@cmake --build --preset release -j $(JOBS) --target $(INSTALLED)
	@cmake --install build/release --prefix $(or $(PREFIX),/usr/local)
	@scripts/after-install $(or $(PREFIX),/usr/local)

uninstall: ## Remove what `make install` put there
	@scripts/uninstall $(or $(PREFIX),/usr/local)

deb: ## Debian packages (build/packages): kermes, libkermes0, libkermes-dev, and kermes-cuda with nvcc
	@scripts/setup demo
	@JOBS=$(JOBS) scripts/make-deb

tarball: ## One folder that runs where it is put, packed (build/packages); ARCH="x86_64 aarch64"
	@scripts/setup demo
	@JOBS=$(JOBS) scripts/make-tarball $(ARCH)

docs: ## The docs as a site with a search (build/docs)
	@scripts/make-docs

format: ## Lay out all C and CUDA sources by .clang-format
	@git ls-files '*.c' '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -r clang-format -i

clean: ## Remove all that was built
	@rm -rf build

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
