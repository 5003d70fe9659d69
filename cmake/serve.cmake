# `kermes serve`: src/serve, on libevent, with TLS where its OpenSSL part is installed too. It is no part
# of the library, so that programs which use that need no libevent.
set(KERMES_SERVE AUTO CACHE STRING "The server: AUTO (when libevent is found), ON or OFF")
set_property(CACHE KERMES_SERVE PROPERTY STRINGS AUTO ON OFF)

set(KERMES_SERVE_FOUND OFF)
if(NOT KERMES_SERVE STREQUAL "OFF" AND NOT KERMES_STATIC_DEPS)
    pkg_check_modules(LIBEVENT IMPORTED_TARGET libevent_core libevent_extra)
    pkg_check_modules(LIBEVENT_TLS IMPORTED_TARGET libevent_openssl openssl)
    if(LIBEVENT_FOUND)
        set(KERMES_SERVE_FOUND ON)
    elseif(KERMES_SERVE STREQUAL "ON")
        message(FATAL_ERROR "libevent is missing: run scripts/setup, or install libevent-dev")
    else()
        message(STATUS "Kermes: no `kermes serve`, since libevent is missing (scripts/setup)")
    endif()
endif()

if(KERMES_SERVE_FOUND)
    file(GLOB_RECURSE kermes_serve_sources CONFIGURE_DEPENDS src/serve/*.c)
    add_library(kermes_serve STATIC ${kermes_serve_sources})
    kermes_compile(kermes_serve)
    set(kermes_page_folder ${PROJECT_SOURCE_DIR}/src/serve/page)
    set_source_files_properties(src/serve/page/page.c PROPERTIES
        COMPILE_DEFINITIONS KERMES_PAGE_FOLDER="${kermes_page_folder}"
        OBJECT_DEPENDS "${kermes_page_folder}/chat.html;${kermes_page_folder}/status.html")
    target_link_libraries(kermes_serve PUBLIC PkgConfig::LIBEVENT ${KERMES_PACKAGES})
    if(LIBEVENT_TLS_FOUND)
        target_compile_definitions(kermes_serve PRIVATE KERMES_TLS)
        target_link_libraries(kermes_serve PUBLIC PkgConfig::LIBEVENT_TLS)
    else()
        message(STATUS "Kermes: `kermes serve` has no TLS, since OpenSSL is missing (libssl-dev)")
    endif()
endif()
