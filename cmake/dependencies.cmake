# The libraries that Kermes links: Jansson, threads, dl and m. OpenBLAS, CUDA and the like are
# opened at run time and are no part of the build.
find_package(PkgConfig REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

pkg_check_modules(JANSSON IMPORTED_TARGET jansson)
if(NOT JANSSON_FOUND)
    message(FATAL_ERROR "Jansson is missing: run scripts/setup, or install libjansson-dev")
endif()

if(KERMES_STATIC_DEPS)
    find_library(JANSSON_ARCHIVE libjansson.a HINTS ${JANSSON_LIBRARY_DIRS} ${JANSSON_LIBDIR})
    if(NOT JANSSON_ARCHIVE)
        message(FATAL_ERROR "KERMES_STATIC_DEPS: libjansson.a was not found")
    endif()
    add_library(kermes_jansson INTERFACE)
    target_include_directories(kermes_jansson INTERFACE ${JANSSON_INCLUDE_DIRS})
    target_link_libraries(kermes_jansson INTERFACE ${JANSSON_ARCHIVE})
else()
    add_library(kermes_jansson ALIAS PkgConfig::JANSSON)
endif()

set(KERMES_LIBRARIES kermes_jansson Threads::Threads ${CMAKE_DL_LIBS} m)
