# Compiler flags: what every C target gets (kermes_compile), what the library's arithmetic is
# compiled with (KERMES_MATH_FLAGS), and the sanitizers.

# Results must not depend on the compiler's mood: no -ffast-math, and a*b+c is fused only where
# a kernel says so. errno and floating-point traps are given up; nobody reads them.
set(KERMES_MATH_FLAGS -fno-math-errno -fno-trapping-math -ffp-contract=off)

function(kermes_compile target)
    target_include_directories(${target} PRIVATE
        ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wshadow -Wno-unused-parameter
        $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
        $<$<BOOL:${KERMES_WERROR}>:-Werror>)
    if(KERMES_ISA_ONLY_BASE)
        target_compile_definitions(${target} PRIVATE KM_ISA_ONLY_BASE)
    endif()
endfunction()

if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(KERMES_ISA_ONLY_BASE ON)
endif()

if(KERMES_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "KERMES_FUZZ needs clang: add -DCMAKE_C_COMPILER=clang")
    endif()
    set(KERMES_ASAN ON)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(KERMES_ASAN AND KERMES_TSAN)
    message(FATAL_ERROR "KERMES_ASAN and KERMES_TSAN exclude each other: build them apart")
elseif(KERMES_ASAN)
    # Undefined behaviour ends a program by an instruction that does not exist, and AddressSanitizer tells the
    # line (handle_sigill). KERMES_UB_EXPLAINED also tells what it was, by texts and places that take gcc longer.
    set(sanitizers -fsanitize=address,undefined)
    if(NOT KERMES_UB_EXPLAINED AND NOT KERMES_FUZZ AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        list(APPEND sanitizers -fsanitize-undefined-trap-on-error)
    elseif(KERMES_FUZZ)
        list(APPEND sanitizers -fno-sanitize-recover=undefined)
    endif()
elseif(KERMES_TSAN)
    set(sanitizers -fsanitize=thread)
endif()
set(KERMES_PIC ON)
if(EMSCRIPTEN) # a module is linked whole, and tables of addresses would slow it down
    set(KERMES_PIC OFF)
endif()
set(KERMES_SANITIZED OFF)
set(KERMES_VISIBILITY hidden)
if(sanitizers)
    set(KERMES_SANITIZED ON)
    set(KERMES_VISIBILITY default) # tests reach internal symbols in a shared library
    add_compile_options(${sanitizers} -fno-omit-frame-pointer)
    add_link_options(${sanitizers})
endif()
