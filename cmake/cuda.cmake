# The GPU kernels. Each src/backend/cuda/kernels/**/*.cu becomes one fatbin, and the fatbins are
# embedded in the library with a table of them (src/backend/cuda/modules.h). Nothing of CUDA is
# linked: the driver is opened at run time. Without nvcc the table is empty and the build yields
# a CPU engine, which opens kermes-cuda.so where that is installed. KERMES_CUDA_APART=ON builds that
# module in place of embedding.
#
# A kernel source that only some architectures can compile names them in its first five lines,
# `km-arch: 90a`, and is left out of builds that have none of them. One that needs a newer nvcc than
# 12.0 says so there, `km-nvcc: 12.1`, and is left out where it is older; others then do its work.

option(KERMES_CUDA_APART "GPU kernels as a module of their own, kermes-cuda.so, opened at run time" OFF)

# What kernels and the host side are compiled from, told apart by a checksum: they share structs.
file(GLOB_RECURSE cuda_texts CONFIGURE_DEPENDS src/backend/cuda/*.h src/backend/cuda/*.cuh src/backend/cuda/*.cu)
list(SORT cuda_texts)
set(cuda_sums ${PROJECT_VERSION})
foreach(text IN LISTS cuda_texts)
    file(SHA256 ${text} sum)
    string(APPEND cuda_sums " ${sum}")
endforeach()
string(SHA256 cuda_sources_sum "${cuda_sums}")
file(WRITE ${PROJECT_BINARY_DIR}/cuda/sources.sha256 "${cuda_sources_sum}\n") # a test reads it
set_source_files_properties(src/backend/cuda/modules.c PROPERTIES
    COMPILE_DEFINITIONS "KERMES_CUDA_SOURCES=\"${cuda_sources_sum}\"")

# ---- Is there a compiler, and does it work? ----

function(kermes_native_archs result)
    set(archs)
    find_program(KERMES_NVIDIA_SMI nvidia-smi)
    if(KERMES_NVIDIA_SMI)
        execute_process(COMMAND ${KERMES_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
            RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_QUIET)
        if(NOT failed)
            string(REGEX MATCHALL "[0-9]+\\.[0-9]" archs "${text}")
            list(TRANSFORM archs REPLACE "\\." "")
            list(TRANSFORM archs REPLACE "^90$" "90a") # Hopper's matrix units need the "a"
            list(REMOVE_DUPLICATES archs)
        endif()
    endif()
    set(${result} ${archs} PARENT_SCOPE)
endfunction()

set(cuda_missing)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/backend/cuda/kernels/*.cu)
if(KERMES_CUDA STREQUAL "OFF")
    set(cuda_missing "built with KERMES_CUDA=OFF")
else()
    file(GLOB cuda_folders /usr/local/cuda-*/bin)
    list(SORT cuda_folders COMPARE NATURAL ORDER DESCENDING)
    find_program(KERMES_NVCC nvcc
        PATHS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin ${cuda_folders} /opt/cuda/bin
        DOC "The CUDA compiler")
    set(cuda_here ON) # whether there is anything to compile for
    if(KERMES_CUDA_ARCHS STREQUAL "")
        kermes_native_archs(cuda_here)
    endif()
    if(NOT KERMES_NVCC)
        set(cuda_missing "built without nvcc")
    elseif(NOT cuda_here)
        set(cuda_missing "built where no NVIDIA GPU was; KERMES_CUDA_ARCHS=release builds for all")
    elseif(NOT KERMES_NVCC STREQUAL KERMES_NVCC_WORKS OR NOT DEFINED KERMES_NVCC_CHECK)
        set(probe ${PROJECT_BINARY_DIR}/cuda/probe)
        file(WRITE ${probe}.cu "extern \"C\" __global__ void probe(float *x) { *x = 1; }\n")
        execute_process(COMMAND ${KERMES_NVCC} -fatbin --std=c++17 -arch=sm_80
            -o ${probe}.fatbin ${probe}.cu
            RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
        if(failed)
            message(STATUS "${text}")
            set(cuda_missing "built without a working nvcc")
        else()
            set(KERMES_NVCC_WORKS ${KERMES_NVCC} CACHE INTERNAL "The nvcc that passed the probe")
            # From CUDA 12.8 on fatbins can be packed: line tables make them four times as large.
            execute_process(COMMAND ${KERMES_NVCC} -fatbin --std=c++17 -arch=sm_80
                -compress-mode=size -o ${probe}.fatbin ${probe}.cu
                RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
            set(KERMES_NVCC_PACK "" CACHE INTERNAL "How nvcc packs fatbins")
            if(NOT failed)
                set(KERMES_NVCC_PACK -compress-mode=size CACHE INTERNAL "How nvcc packs fatbins")
            endif()
            # To check a kernel, newer compilers need not generate code.
            execute_process(COMMAND ${KERMES_NVCC} -fatbin --std=c++17 -arch=sm_80
                -fdevice-syntax-only -o ${probe}.fatbin ${probe}.cu
                RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
            set(KERMES_NVCC_CHECK -Xcicc -O0 CACHE INTERNAL "How nvcc only checks")
            if(NOT failed)
                set(KERMES_NVCC_CHECK -fdevice-syntax-only CACHE INTERNAL "How nvcc only checks")
            endif()
        endif()
    endif()
    if(cuda_missing AND cuda_here AND KERMES_CUDA STREQUAL "ON")
        message(FATAL_ERROR "KERMES_CUDA=ON, but nvcc was not found or does not work; it is "
            "looked for on PATH, in $CUDA_HOME/bin, /usr/local/cuda*/bin and /opt/cuda/bin")
    endif()
endif()
if(NOT cuda_missing AND NOT cuda_sources)
    set(cuda_missing "built without kernel sources")
endif()

# ---- For which architectures? ----

# cuda_archs: "80;90a" for machine code. cuda_ptx: "80" for code that newer chips translate.
set(cuda_archs)
set(cuda_ptx)
set(cuda_check OFF)
set(cuda_effort -O3 -lineinfo ${KERMES_NVCC_PACK})

if(NOT cuda_missing)
    if(KERMES_CUDA_ARCHS STREQUAL "release")
        set(cuda_archs 75 80 86 87 89 90a 100 120)
        # A compiler older than a chip cannot build for it; PTX still reaches that chip.
        execute_process(COMMAND ${KERMES_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
        foreach(arch IN LISTS cuda_archs)
            string(REGEX REPLACE "a$" "" plain ${arch})
            if(NOT known MATCHES "sm_${plain}[^0-9]")
                message(STATUS "Kermes: this nvcc does not know sm_${arch}, left out")
                list(REMOVE_ITEM cuda_archs ${arch})
            endif()
        endforeach()
        # Chips between those named translate Ampere's: Turing's has plain paths in place of fast ones.
        list(GET cuda_archs -1 newest)
        set(cuda_ptx 80 ${newest})
    elseif(KERMES_CUDA_ARCHS MATCHES "^(native|check)?$")
        kermes_native_archs(cuda_archs)
        if(NOT cuda_archs AND KERMES_CUDA_ARCHS STREQUAL "native")
            message(FATAL_ERROR "KERMES_CUDA_ARCHS=native, but nvidia-smi shows no GPU here")
        elseif(NOT cuda_archs AND KERMES_CUDA_ARCHS STREQUAL "check")
            # Nothing here could run the kernels, so they are only checked: read, with all templates made, or
            # where nvcc cannot do that alone, down to PTX without optimising (tests/long/ptx.sh always does).
            # They are no part of the library then, which is the one that a plain build gives.
            set(cuda_ptx 80 90a)
            set(cuda_effort ${KERMES_NVCC_CHECK})
            set(cuda_check ON)
        endif()
    else()
        string(REGEX MATCHALL "[^,; ]+" words "${KERMES_CUDA_ARCHS}")
        foreach(word IN LISTS words)
            if(word MATCHES "^(sm_)?([0-9]+[af]?)$")
                list(APPEND cuda_archs ${CMAKE_MATCH_2})
            elseif(word MATCHES "^ptx_?([0-9]+[af]?)$")
                list(APPEND cuda_ptx ${CMAKE_MATCH_1})
            else()
                message(FATAL_ERROR "KERMES_CUDA_ARCHS: '${word}' is neither sm_NN nor ptxNN")
            endif()
        endforeach()
    endif()
endif()

# ---- One fatbin for each source ----

set(cuda_data)
set(cuda_table)
set(cuda_fatbins)
set(cuda_count 0)
if(NOT cuda_missing)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cuda_sources})
    execute_process(COMMAND ${KERMES_NVCC} --version OUTPUT_VARIABLE text)
    string(REGEX MATCH "release ([0-9.]+)" text "${text}")
    set(nvcc_version "${CMAKE_MATCH_1}")
    foreach(source IN LISTS cuda_sources)
        get_filename_component(name ${source} NAME_WE)
        set(archs ${cuda_archs})
        set(ptx ${cuda_ptx})
        file(STRINGS ${source} head LIMIT_COUNT 5)
        if(head MATCHES "km-arch: *([0-9af, ]*[0-9af])")
            string(REGEX MATCHALL "[0-9af]+" only "${CMAKE_MATCH_1}")
            set(archs)
            set(ptx)
            foreach(arch IN LISTS only)
                if(arch IN_LIST cuda_archs)
                    list(APPEND archs ${arch})
                elseif(arch IN_LIST cuda_ptx)
                    list(APPEND ptx ${arch})
                endif()
            endforeach()
            if(NOT archs AND NOT ptx)
                continue()
            endif()
        endif()
        # To check, one architecture does for code that looks the same to all.
        if(cuda_check AND "${ptx}" STREQUAL "80;90a")
            file(STRINGS ${source} looks REGEX "__CUDA_ARCH__" LIMIT_COUNT 1)
            if(NOT looks)
                set(ptx 80)
            endif()
        endif()
        if(head MATCHES "km-nvcc: *([0-9.]+)" AND nvcc_version VERSION_LESS CMAKE_MATCH_1)
            message(STATUS "Kermes: ${name}.cu needs nvcc ${CMAKE_MATCH_1}, left out")
            continue()
        endif()
        set(gencode)
        foreach(arch IN LISTS archs)
            list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
        endforeach()
        foreach(arch IN LISTS ptx)
            list(APPEND gencode -gencode arch=compute_${arch},code=compute_${arch})
        endforeach()

        set(fatbin ${PROJECT_BINARY_DIR}/cuda/${name}.fatbin)
        add_custom_command(OUTPUT ${fatbin}
            COMMAND ${PROJECT_SOURCE_DIR}/cmake/fatbin.sh ${PROJECT_SOURCE_DIR} ${fatbin} ${source}
                ${KERMES_NVCC} -fatbin --std=c++17 ${cuda_effort} ${gencode}
                -I ${PROJECT_SOURCE_DIR}/src -I ${PROJECT_SOURCE_DIR}/include
            DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/fatbin.sh DEPFILE ${fatbin}.d VERBATIM
            COMMENT "Compiling GPU kernels ${name}.cu")
        list(APPEND cuda_fatbins ${fatbin})
        if(cuda_check)
            continue()
        endif()
        math(EXPR cuda_count "${cuda_count} + 1")
        string(APPEND cuda_data
            "name_${cuda_count}:\n    .asciz \"${name}\"\n"
            "    .balign 64\n"
            "data_${cuda_count}:\n    .incbin \"${fatbin}\"\n"
            "end_${cuda_count}:\n")
        string(APPEND cuda_table
            "    .quad name_${cuda_count}, data_${cuda_count}, end_${cuda_count} - data_${cuda_count}\n")
    endforeach()
endif()

# ---- The table of them ----

if(cuda_check)
    add_custom_target(kermes_cuda_check ALL DEPENDS ${cuda_fatbins})
    list(LENGTH cuda_fatbins cuda_checked)
    message(STATUS "Kermes: no NVIDIA GPU here: ${cuda_checked} GPU kernel modules are compiled to check them")
    set(cuda_fatbins)
    set(cuda_missing "built where no NVIDIA GPU is")
endif()
if(cuda_missing)
    set(KERMES_CUDA_NOTE "${cuda_missing}: no GPU kernels")
    message(STATUS "Kermes: this is a CPU-only build (${KERMES_CUDA_NOTE})")
else()
    set(words ${cuda_archs})
    list(TRANSFORM words PREPEND sm_)
    set(ptx ${cuda_ptx})
    list(TRANSFORM ptx PREPEND ptx)
    list(APPEND words ${ptx})
    list(JOIN words " " KERMES_CUDA_NOTE)
    message(STATUS "Kermes: ${cuda_count} GPU kernel modules by ${KERMES_NVCC} for ${KERMES_CUDA_NOTE}")
endif()

# The note and the count are C. So is an empty table; one with sizes known only to the assembler
# is written for it, as pointers and sizes of 8 bytes each.
set(cuda_empty_table "const km_cuda_module km_cuda_modules[] = {{NULL, NULL, 0}};")
if(cuda_fatbins)
    set(cuda_empty_table)
    enable_language(ASM)
    set(generated ${PROJECT_BINARY_DIR}/cuda/modules.s)
    file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[    .section .rodata
@cuda_data@
    .section .data.rel.ro, "aw"
    .balign 8
    .globl km_cuda_modules
    .hidden km_cuda_modules
km_cuda_modules:
@cuda_table@
    .section .note.GNU-stack, "", %progbits
]])
    set_source_files_properties(${generated} PROPERTIES OBJECT_DEPENDS "${cuda_fatbins}")
    # A target of its own, so that C sources need not wait for the kernels.
    add_library(kermes_fatbins OBJECT ${generated})
    if(NOT KERMES_CUDA_APART)
        list(APPEND kermes_object_files $<TARGET_OBJECTS:kermes_fatbins>)
    endif()
endif()
if(cuda_fatbins AND KERMES_CUDA_APART)
    set(generated ${PROJECT_BINARY_DIR}/cuda/module.c)
    file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[/* Generated by cmake/cuda.cmake. */
#include "backend/cuda/modules.h"

__attribute__((visibility("default"))) const km_cuda_kernels km_cuda_module_kernels = {
    "@cuda_sources_sum@", "@KERMES_CUDA_NOTE@", @cuda_count@, km_cuda_modules};
]])
    # Nothing but data, so it needs no library, and any system can open it.
    add_library(kermes_cuda MODULE ${generated} $<TARGET_OBJECTS:kermes_fatbins>)
    kermes_compile(kermes_cuda)
    target_link_options(kermes_cuda PRIVATE -nostdlib)
    set_target_properties(kermes_cuda PROPERTIES PREFIX "" OUTPUT_NAME kermes-cuda LINKER_LANGUAGE C
        C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    install(TARGETS kermes_cuda DESTINATION lib/kermes COMPONENT cuda)
    # The library itself has none.
    set(cuda_count 0)
    set(cuda_empty_table "const km_cuda_module km_cuda_modules[] = {{NULL, NULL, 0}};")
    set(KERMES_CUDA_NOTE "built with KERMES_CUDA_APART: no GPU kernels inside")
endif()

set(generated ${PROJECT_BINARY_DIR}/cuda/modules.c)
file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[/* Generated by cmake/cuda.cmake. */
#include "backend/cuda/modules.h"

@cuda_empty_table@
const int km_cuda_module_count = @cuda_count@;

const char *km_cuda_build_note(void)
{
    return "@KERMES_CUDA_NOTE@";
}
]])
target_sources(kermes_objects PRIVATE ${generated})
