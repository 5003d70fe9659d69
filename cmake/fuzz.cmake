# Fuzzers: tests/fuzz/fuzz_NAME.c gives LLVMFuzzerTestOneInput, and says on a line "seeds: ..."
# which files of the repository to begin with. It becomes the test fuzz/NAME.
#
# With any compiler a small mutator of our own (tests/fuzz/driver.c) drives it for some seconds.
# With KERMES_FUZZ, clang's libFuzzer does, which sees what the code does with its input:
#   cmake -B build/fuzz -G Ninja -DKERMES_FUZZ=ON -DCMAKE_C_COMPILER=clang -DKERMES_CUDA=OFF
#   cmake --build build/fuzz --target fuzzers && build/fuzz/fuzz/gguf -max_total_time=60
if(KERMES_TESTS STREQUAL "OFF" OR KERMES_TSAN) # they start no threads
    return()
endif()

file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
add_custom_target(fuzzers)
foreach(source IN LISTS fuzz_sources)
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    file(STRINGS ${source} head LIMIT_COUNT 8)
    set(seeds)
    if(head MATCHES "seeds: ([^;*]*)")
        string(REGEX MATCHALL "[^ ]+" seeds "${CMAKE_MATCH_1}")
        list(TRANSFORM seeds PREPEND ${PROJECT_SOURCE_DIR}/)
    endif()
    if(name MATCHES "^(http|serve)$" AND NOT KERMES_SERVE_FOUND)
        continue()
    endif()
    add_executable(${target} ${source})
    kermes_compile(${target})
    if(name MATCHES "^(http|serve)$")
        target_link_libraries(${target} PRIVATE kermes_serve)
    endif()
    target_link_libraries(${target} PRIVATE ${KERMES_INSIDE})
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    add_dependencies(fuzzers ${target})
    if(KERMES_FUZZ)
        target_link_options(${target} PRIVATE -fsanitize=fuzzer)
        string(JOIN "," seeds ${seeds})
        set(arguments -max_total_time=60 -max_len=65536 -rss_limit_mb=2048 -timeout=10
            -print_final_stats=1 -seed_inputs=${seeds})
    else()
        target_sources(${target} PRIVATE tests/fuzz/driver.c)
        set(arguments ${seeds})
    endif()
    if(COMMAND kermes_add_test)
        kermes_add_test(fuzz/${name} $<TARGET_FILE:${target}> ${arguments})
    endif()
endforeach()
