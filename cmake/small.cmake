# KERMES_SMALL, which cmake/portable.cmake sets: a command for packages, of at most 8 MB with the libraries
# inside (tests/long/packages.sh holds it to that). What reads files, talks to people or checks is compiled
# for its size; what computes, and what measures that, is compiled as ever. The tables of C++ exceptions,
# 5% of it, are taken out of the command (cmake/no_unwind.ld); the library keeps them.
if(NOT KERMES_SMALL)
    return()
endif()
set(cold ${kermes_sources} ${kermes_serve_sources} ${kermes_cli_sources})
list(FILTER cold INCLUDE REGEX
    "/src/((cli|serve|comm|format|report|train)/|ops/(case|verify)|text/(jinja|json_schema)|model/(adapter_f|conf|conv|gguf|im|la|lo|o|sa|sy))")
list(FILTER cold EXCLUDE REGEX "/cli/(bench/.*|loop)\\.c$") # the second looks at each letter of an answer
set_source_files_properties(${cold} PROPERTIES COMPILE_OPTIONS -Os)
# What only prepares and hands out work has no loops for -O3 to widen.
set(plain ${kermes_sources})
list(FILTER plain INCLUDE REGEX "/src/(backend/(ref|cuda|vulkan)|ops|autograd|nn|engine)/")
list(FILTER plain EXCLUDE REGEX "/ops/(case|verify)")
set_source_files_properties(${plain} PROPERTIES COMPILE_OPTIONS -O2)

# The baseline's kernels, beside those of all x86-64 CPUs since 2013.
if(TARGET kermes_simd_avx2)
    target_compile_options(kermes_simd_base PRIVATE -Os)
endif()

set(script ${PROJECT_SOURCE_DIR}/cmake/no_unwind.ld)
target_link_options(kermes PRIVATE -Wl,--no-eh-frame-hdr -Wl,-T,${script})
set_property(TARGET kermes APPEND PROPERTY LINK_DEPENDS ${script})
