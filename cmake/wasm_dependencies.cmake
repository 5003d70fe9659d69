# The libraries of a WebAssembly build, compiled from the sources that scripts/wasm-deps brings: there
# are no packages of them. What is configured here is what their own configure scripts would find out.
set(KERMES_WASM_DEPS ${PROJECT_SOURCE_DIR}/build/wasm-deps CACHE PATH "Where scripts/wasm-deps put its sources")
if(NOT EXISTS ${KERMES_WASM_DEPS}/pcre2/src/pcre2.h.generic)
    message(FATAL_ERROR "no sources in ${KERMES_WASM_DEPS}: run scripts/wasm-deps, or make wasm")
endif()
set(made ${PROJECT_BINARY_DIR}/deps)

# An archive kermes_<name>, whose warnings are its authors' matter.
function(kermes_wasm_library name)
    add_library(kermes_${name} STATIC ${ARGN})
    target_compile_options(kermes_${name} PRIVATE -w)
endfunction()

# ---- PCRE2, 8-bit, with Unicode; there is no just-in-time compiler inside WebAssembly ----

set(from ${KERMES_WASM_DEPS}/pcre2/src)
configure_file(${from}/pcre2.h.generic ${made}/pcre2/pcre2.h COPYONLY)
configure_file(${from}/config.h.generic ${made}/pcre2/config.h COPYONLY)
configure_file(${from}/pcre2_chartables.c.dist ${made}/pcre2/pcre2_chartables.c COPYONLY)
set(sources ${made}/pcre2/pcre2_chartables.c)
foreach(part auto_possess compile config context convert dfa_match error extuni find_bracket jit_compile
        maketables match match_data newline ord2utf pattern_info script_run serialize string_utils study
        substitute substring tables ucd valid_utf xclass)
    list(APPEND sources ${from}/pcre2_${part}.c)
endforeach()
kermes_wasm_library(pcre2 ${sources})
target_include_directories(kermes_pcre2 PUBLIC ${made}/pcre2 PRIVATE ${from})
target_compile_definitions(kermes_pcre2 PUBLIC PCRE2_STATIC
    PRIVATE HAVE_CONFIG_H SUPPORT_UNICODE PCRE2_CODE_UNIT_WIDTH=8 HAVE_MEMMOVE HAVE_STRERROR)

# ---- utf8proc ----

kermes_wasm_library(utf8proc ${KERMES_WASM_DEPS}/utf8proc/utf8proc.c)
target_include_directories(kermes_utf8proc PUBLIC ${KERMES_WASM_DEPS}/utf8proc)
target_compile_definitions(kermes_utf8proc PUBLIC UTF8PROC_STATIC)

# ---- Jansson ----

file(WRITE ${made}/jansson/jansson_config.h "#define JSON_INLINE inline
#define JSON_INTEGER_IS_LONG_LONG 1
#define JSON_HAVE_LOCALECONV 1
#define JSON_HAVE_ATOMIC_BUILTINS 1
#define JSON_HAVE_SYNC_BUILTINS 1
#define JSON_PARSER_MAX_DEPTH 2048
")
file(WRITE ${made}/jansson/jansson_private_config.h "")
file(GLOB sources ${KERMES_WASM_DEPS}/jansson/src/*.c)
kermes_wasm_library(jansson ${sources})
target_include_directories(kermes_jansson PUBLIC ${KERMES_WASM_DEPS}/jansson/src ${made}/jansson)
target_compile_definitions(kermes_jansson PRIVATE HAVE_STDINT_H HAVE_STRTOLL HAVE_LOCALECONV
    HAVE_SYS_TIME_H HAVE_GETTIMEOFDAY HAVE_UNISTD_H HAVE_GETPID)

# ---- xxHash ----

kermes_wasm_library(xxhash ${KERMES_WASM_DEPS}/xxhash/xxhash.c)
target_include_directories(kermes_xxhash PUBLIC ${KERMES_WASM_DEPS}/xxhash)

set(KERMES_PACKAGES kermes_jansson kermes_xxhash kermes_pcre2 kermes_utf8proc)
set(KERMES_LIBRARIES ${KERMES_PACKAGES} m)
