# The libraries that Kermes links: Jansson, xxHash, PCRE2, utf8proc, threads, dl and m. OpenBLAS,
# CUDA and the like are opened at run time and are no part of the build.
find_package(PkgConfig REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# A library found by pkg-config as target kermes_<name>; its archive with KERMES_STATIC_DEPS.
function(kermes_dependency name module archive package)
    string(TOUPPER ${name} upper)
    pkg_check_modules(${upper} IMPORTED_TARGET ${module})
    if(NOT ${upper}_FOUND)
        message(FATAL_ERROR "${module} is missing: run scripts/setup, or install ${package}")
    endif()
    add_library(kermes_${name} INTERFACE)
    if(KERMES_STATIC_DEPS)
        find_library(${upper}_ARCHIVE ${archive}
            HINTS ${${upper}_LIBRARY_DIRS} ${${upper}_LIBDIR})
        if(NOT ${upper}_ARCHIVE)
            message(FATAL_ERROR "KERMES_STATIC_DEPS: ${archive} was not found")
        endif()
        target_include_directories(kermes_${name} INTERFACE ${${upper}_INCLUDE_DIRS})
        target_link_libraries(kermes_${name} INTERFACE ${${upper}_ARCHIVE})
    else()
        target_link_libraries(kermes_${name} INTERFACE PkgConfig::${upper})
    endif()
endfunction()

kermes_dependency(jansson jansson libjansson.a libjansson-dev)
kermes_dependency(xxhash libxxhash libxxhash.a libxxhash-dev)
kermes_dependency(pcre2 libpcre2-8 libpcre2-8.a libpcre2-dev)
kermes_dependency(utf8proc libutf8proc libutf8proc.a libutf8proc-dev)
if(KERMES_STATIC_DEPS)
    target_compile_definitions(kermes_utf8proc INTERFACE UTF8PROC_STATIC)
endif()

set(KERMES_PACKAGES kermes_jansson kermes_xxhash kermes_pcre2 kermes_utf8proc)
set(KERMES_LIBRARIES ${KERMES_PACKAGES} Threads::Threads ${CMAKE_DL_LIBS} m)
