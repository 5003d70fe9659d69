# Tests, found by name and run by CTest as room/concept:
#   tests/base/test_arena.c     a cmocka program, linked to all of the library: base/arena
#   tests/cli/devices.sh        an executable script, with $KERMES and $SRC_DIR set: cli/devices
#   tests/api/test_cxx.cpp      the header from C++, where there is a C++ compiler: api/cxx
#   tests/support/*.c           helpers that every test program may use
# Exit code 77 means skipped. Under the thread sanitizer tests are left out that start no threads, or
# whose threads others run in the same way (kermes_one_thread). Tests under tests/long/ carry the label "long", and
# `make test` leaves them out.
if(KERMES_TESTS STREQUAL "OFF")
    return()
endif()
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
if(NOT CMOCKA_FOUND)
    if(KERMES_TESTS STREQUAL "AUTO")
        message(STATUS "Kermes: no tests in this build, since cmocka is missing (scripts/setup test)")
        return()
    endif()
    message(FATAL_ERROR "cmocka is missing: run scripts/setup test, or install libcmocka-dev")
endif()

# A build to be carried elsewhere takes cmocka along, beside the tests.
if(KERMES_STATIC_DEPS)
    find_library(KERMES_CMOCKA_FILE cmocka HINTS ${CMOCKA_LIBRARY_DIRS} ${CMOCKA_LIBDIR})
    file(COPY ${KERMES_CMOCKA_FILE} DESTINATION ${PROJECT_BINARY_DIR}/tests FOLLOW_SYMLINK_CHAIN)
    set(CMAKE_BUILD_RPATH "\$ORIGIN")
endif()

set(kermes_test_env "SRC_DIR=${PROJECT_SOURCE_DIR}")
set(kermes_test_launcher)
# A test asks for absurd sizes on purpose and expects NULL from malloc; tests with a fake driver put
# tables of their own in place of the library's (odr).
if(KERMES_ASAN)
    # (sigill: undefined behaviour, cmake/flags.cmake)
    list(APPEND kermes_test_env ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1:detect_odr_violation=0:handle_sigill=1
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1)
elseif(KERMES_TSAN)
    list(APPEND kermes_test_env TSAN_OPTIONS=allocator_may_return_null=1)
    # The thread sanitizers of gcc 12 to 14 cannot start where the kernel randomises more address
    # bits than they know of, so randomisation is switched off for the tests where that is allowed.
    find_program(KERMES_SETARCH setarch)
    if(KERMES_SETARCH)
        execute_process(COMMAND ${KERMES_SETARCH} -R true RESULT_VARIABLE failed
            OUTPUT_QUIET ERROR_QUIET)
        if(NOT failed)
            set(kermes_test_launcher ${KERMES_SETARCH} -R)
        endif()
    endif()
endif()

# On another processor, test programs run by an emulator; scripts do not.
if(CMAKE_CROSSCOMPILING)
    set(kermes_test_launcher ${CMAKE_CROSSCOMPILING_EMULATOR})
endif()

# Threads are the pool's, the engine's, the server's and an index's: base, engine, infer, serve and vector run
# these, and ops/verify every kernel on a pool. What does the same once more is left to the other presets: a
# sanitizer that takes ten times as long over it finds nothing new. test_cli_json_file stays: scripts read
# JSON with it.
set(kermes_one_thread "^(format|fuzz|report|text|model|nn|tensor)/"
    "^api/(abi|bad_input|callbacks|callbacks_tensors|cxx|every_function|failed_allocations|files|models|predict|struct_sizes|train)$"
    "^autograd/(check_grad|cross_entropy|custom|flow|fused|optim|tape)$"
    "^backend/cpu_(attend|attention|blas|elementwise|fill|index|iter|loss|matmul|norm|peak|quant|reduce|rope|rows|vmath)$"
    "^backend/(ref_|cuda_(attention|chain|custom|fallback|fuse|matmul|quant_few|quant_odd)$)"
    "^base/(arena|array|error|json_read|rng)$"
    "^ops/(errors|gradients|order|products|quant|random|reduce_index|view_chains|views)$"
    "^examples/(chat|custom_gpu|custom_op_gradient|gpu|own_model|stream_schema|tensors_and_matmul|vectors|xor)$"
    "^serve/(keys|ways)$"
    "^cli/(args|bench|chat|chat_terminal|chat_tools|completion|convert|cuda_module|devices|info|loop|model_sampling|peers|perplexity|prompts|pull|pull_names|run|sample|tiny|tokenize|usage|vectors|vectors_bad|vectors_memory|verify)$"
    "^infer/(logits|perplexity|sample|choose|stop|cut_short)$"
    "^token/(families|gguf|hostile|huggingface|large|save|scan|simple)$"
    "^train/(bad_input|dataset|resume|sampler|settings|tokens)$"
    "^vector/(coder|cut_short|device_coder|device_index|exact|heldout|input|kmx|lengths|levels|measure|nearest|spill|transform|trellis)$")

# Vulkan's drivers have threads and memory of their own, which sanitizers know nothing of; and a build
# without the backend says so in the one test that is left.
set(kermes_without_vulkan "^$")
if(vulkan_missing)
    set(kermes_without_vulkan "/vulkan_(device|verify|logits|layers|graph|train|training|vectors|matrix_code)$")
elseif(KERMES_SANITIZED)
    set(kermes_without_vulkan "/vulkan_")
    list(APPEND kermes_test_env KERMES_LIBVULKAN=none)
endif()

# Nobody waits for a test's own code, but compiling it for speed took a minute. With sanitizers it is not
# optimised; in release a little, since some warnings need that.
set(kermes_test_effort)
if(KERMES_SANITIZED)
    set(kermes_test_effort -O0)
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    set(kermes_test_effort -O1)
endif()

# Is this test to be built and run?
function(kermes_wants_test name result)
    set(wanted ON)
    if(KERMES_TSAN)
        foreach(pattern IN LISTS kermes_one_thread) # one by one: CMake takes few parentheses in one
            if(name MATCHES "${pattern}")
                set(wanted OFF)
            endif()
        endforeach()
    endif()
    if(name MATCHES "/vulkan_" AND name MATCHES "${kermes_without_vulkan}")
        set(wanted OFF)
    elseif(KERMES_SANITIZED AND name MATCHES "^(api/exports$|docs/|house/|web/|serve/(page|web)$)")
        # of the sources, of release, and of a browser, whose time they mostly are
        set(wanted OFF)
    endif()
    set(${result} ${wanted} PARENT_SCOPE)
endfunction()

function(kermes_add_test name)
    add_test(NAME ${name} COMMAND ${kermes_test_launcher} ${ARGN})
    set_tests_properties(${name} PROPERTIES
        TIMEOUT 900 SKIP_RETURN_CODE 77 ENVIRONMENT "${kermes_test_env}")
    if(name MATCHES "/vulkan_")
        # Mesa's software device spends most of its time compiling shaders: less so in narrow vectors.
        set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT LP_NATIVE_VECTOR_WIDTH=128 GALLIVM_PERF=nopt)
    endif()
    if(name MATCHES "^long/")
        set_tests_properties(${name} PROPERTIES LABELS long TIMEOUT 3600)
    endif()
endfunction()

# tests/base/test_arena.c -> base/arena
function(kermes_test_name source result)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR}/tests ${source})
    get_filename_component(folder ${path} DIRECTORY)
    get_filename_component(stem ${path} NAME_WE)
    string(REGEX REPLACE "^test_" "" stem ${stem})
    string(JOIN "/" name ${folder} ${stem})
    set(${result} ${name} PARENT_SCOPE)
endfunction()

function(kermes_test_program source)
    kermes_test_name(${source} name)
    kermes_wants_test(${name} wanted)
    if(NOT wanted OR (name MATCHES "^serve/" AND NOT KERMES_SERVE_FOUND))
        return()
    endif()
    string(MAKE_C_IDENTIFIER "test_${name}" target)
    add_executable(${target} ${source})
    kermes_compile(${target})
    target_compile_options(${target} PRIVATE ${kermes_test_effort})
    if(KERMES_SANITIZED AND name MATCHES "^(backend/(cpu|ref)_|vector/exact$)") # these calculate for themselves, too
        target_compile_options(${target} PRIVATE -O1)
    endif()
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    if(name MATCHES "^serve/")
        target_link_libraries(${target} PRIVATE kermes_serve)
    endif()
    target_link_libraries(${target} PRIVATE ${kermes_test_support} ${KERMES_INSIDE} PkgConfig::CMOCKA)
    set_target_properties(${target} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    kermes_add_test(${name} $<TARGET_FILE:${target}>)
endfunction()

set(kermes_test_support)
file(GLOB support_sources CONFIGURE_DEPENDS tests/support/*.c)
if(support_sources)
    add_library(kermes_test_support STATIC ${support_sources})
    kermes_compile(kermes_test_support)
    target_include_directories(kermes_test_support PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(kermes_test_support PRIVATE PkgConfig::CMOCKA)
    set(kermes_test_support kermes_test_support)
endif()

file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS tests/test_*.c)
foreach(source IN LISTS test_sources)
    kermes_test_program(${source})
endforeach()

file(GLOB test_cxx CONFIGURE_DEPENDS tests/api/test_cxx.cpp)
if(test_cxx)
    include(CheckLanguage)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
        enable_language(CXX)
        kermes_test_program(${test_cxx})
    else()
        message(STATUS "Kermes: no C++ compiler, so the header is not tested from C++")
    endif()
endif()

if(TARGET kermes AND NOT CMAKE_CROSSCOMPILING)
    list(APPEND kermes_test_env "KERMES=$<TARGET_FILE:kermes>")
    file(GLOB_RECURSE scripts CONFIGURE_DEPENDS tests/*.sh)
    foreach(script IN LISTS scripts)
        execute_process(COMMAND test -x ${script} RESULT_VARIABLE not_executable)
        if(NOT not_executable)
            kermes_test_name(${script} name)
            kermes_wants_test(${name} wanted)
            if(wanted)
                kermes_add_test(${name} ${script})
            endif()
        endif()
    endforeach()
endif()

foreach(source IN LISTS kermes_examples)
    get_filename_component(name ${source} NAME_WE)
    kermes_add_test(examples/${name} $<TARGET_FILE:example_${name}>)
endforeach()
